"""What a real webserver gives the UI: metadata, asset checks of each partition, lineage."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchor_core.simulator import Simulator
from tests.e2e.dagster_dev import AssetEvent, DagsterDev, RunInfo
from tests.e2e.still_provider import provider_env, still_provider

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(420)]

PROJECT = Path(__file__).parent / "projects" / "ui_project.py"
BATCH_SECONDS = 600.0
REFUSED = {"kind": "line_error", "status": 400, "message": "Simulated refusal."}
CHECKS = ["rows_answered", "failure_rate", "invalid_output_rate", "cost_within_budget"]

_CHECKS = """
  query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
      metadataEntries { label ... on TableSchemaMetadataEntry { schema { columns { name } } } }
      assetChecksOrError { ... on AssetChecks { checks {
        name blocking canExecuteIndividually
        partitionStatuses { ... on AssetCheckDefaultPartitionStatuses {
          succeededPartitions failedPartitions skippedPartitions } } } } } } } }
"""
_EXECUTIONS = """
  query($key: AssetKeyInput!, $check: String!) {
    assetCheckExecutions(assetKey: $key, checkName: $check, limit: 50) {
      runId status partition
      evaluation { success severity description targetMaterialization { runId }
        metadataEntries { label ... on FloatMetadataEntry { floatValue } } } } }
"""
_LINEAGE = """
  query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
      assetMaterializations(limit: 1) { metadataEntries { label
        ... on TableColumnLineageMetadataEntry { lineage {
          columnName columnDeps { assetKey { path } columnName } } } } } } } }
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the webserver said, of the requests and in the end.

    Attributes:
        requests: The Dagster runs of the requests, by partition.
        waiting: Status of each execution of a check of the good day, while it waited.
        checks: The checks of ``answers``, by name.
        executions: Of each check, newest first.
        runs: All Dagster runs, by id.
        definition: The definition metadata of ``answers``: columns, or None, by label.
    """

    requests: Mapping[str, RunInfo]
    waiting: Mapping[str, list[str]]
    checks: Mapping[str, dict[str, Any]]
    executions: Mapping[str, list[dict[str, Any]]]
    notes: list[dict[str, Any]]
    runs: Mapping[str, RunInfo]
    definition: Mapping[str, Any]
    materializations: Mapping[str, AssetEvent]
    observation: AssetEvent
    lineage: Mapping[str, list[tuple[str, str]]]
    digests: list[AssetEvent]

    def evaluation(self, check: str, partition: str) -> dict[str, Any]:
        """The only evaluation of a check of a partition."""
        found = [e for e in self.executions[check] if e["partition"] == partition]
        (evaluation,) = [e["evaluation"] for e in found if e["evaluation"]]
        return dict(evaluation)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Two days and the notes are asked, answered and materialized, each by a run of its own."""
    folder, home = tmp_path_factory.mktemp("ui"), tmp_path_factory.mktemp("home")
    with still_provider(BATCH_SECONDS) as simulator:
        simulator.faults(match={"prompt": "bad ticket 1 "}, **REFUSED)
        env = {"ANSWERS_FOLDER": str(folder), **provider_env(simulator)}
        with DagsterDev(target=["-f", str(PROJECT)], env=env, home=home) as dev:
            yield _look(dev, simulator)


def _look(dev: DagsterDev, simulator: Simulator) -> Seen:
    asked = {day: dev.launch_asset_run(["tickets", "answers"], day) for day in ("good", "bad")}
    asked[""] = dev.launch_asset_run(["notes", "digest"])
    requests = {day: dev.wait_run(run_id, timeout_s=120) for day, run_id in asked.items()}
    waiting = {name: [e["status"] for e in _executions(dev, "answers", name)] for name in CHECKS}

    def provider_works() -> bool:
        simulator.advance_time(BATCH_SECONDS)
        runs = {run.run_id: run for run in dev.runs()}
        ended = [e for e in _executions(dev, "notes", "failure_rate") if e["evaluation"]]
        return (
            len(dev.materializations("answers")) == 2
            and bool(ended)
            and all(run.is_finished for run in runs.values())
        )

    _wait_until(provider_works, timeout_s=150)
    node = dev.query(_CHECKS, key={"path": ["answers"]})["assetNodeOrError"]
    return Seen(
        requests=requests,
        waiting=waiting,
        checks={check["name"]: check for check in node["assetChecksOrError"]["checks"]},
        executions={n: _executions(dev, "answers", n) for n in [*CHECKS, "users_own"]},
        notes=_executions(dev, "notes", "failure_rate"),
        runs={run.run_id: run for run in dev.runs()},
        definition={e["label"]: e.get("schema") for e in node["metadataEntries"]},
        materializations={str(e.partition): e for e in dev.materializations("answers")},
        observation=dev.observations("answers")[-1],
        lineage=_lineage(dev),
        digests=dev.materializations("digest"),
    )


def _wait_until(is_done: Callable[[], bool], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < until, "the partitions do not materialize"
        time.sleep(0.5)


def _executions(dev: DagsterDev, asset: str, check: str) -> list[dict[str, Any]]:
    result = dev.query(_EXECUTIONS, key={"path": [asset]}, check=check)
    return list(result["assetCheckExecutions"])


def _lineage(dev: DagsterDev) -> dict[str, list[tuple[str, str]]]:
    node = dev.query(_LINEAGE, key={"path": ["answers"]})["assetNodeOrError"]
    (event,) = node["assetMaterializations"]
    (entry,) = [e for e in event["metadataEntries"] if e["label"] == "dagster/column_lineage"]
    return {
        column["columnName"]: [
            ("/".join(dep["assetKey"]["path"]), dep["columnName"]) for dep in column["columnDeps"]
        ]
        for column in entry["lineage"]
    }


def test_request_leaves_the_checks_alone(seen: Seen) -> None:
    """The user's run would end red, or a check would pass before there is anything to check."""
    assert {run.status for run in seen.requests.values()} == {"SUCCESS"}
    assert seen.waiting == {name: ["SKIPPED", "SKIPPED"] for name in CHECKS}


def test_checks_show_each_partition_by_itself(seen: Seen) -> None:
    """A good day would hide the bad one before it."""
    statuses = {name: seen.checks[name]["partitionStatuses"] for name in CHECKS}
    succeeded = {name: set(found["succeededPartitions"]) for name, found in statuses.items()}
    failed = {name: set(found["failedPartitions"]) for name, found in statuses.items()}
    assert failed == {name: {"bad"} if name == "failure_rate" else set() for name in CHECKS}
    assert succeeded == {name: {"good", "bad"} - failed[name] for name in CHECKS}


def test_failed_check_says_how_bad_it_is(seen: Seen) -> None:
    """Somebody who gets an alert would have to look for the number."""
    evaluation = seen.evaluation("failure_rate", "bad")

    assert (evaluation["success"], evaluation["severity"]) == (False, "ERROR")
    assert evaluation["description"].startswith("1 of 4 rows failed (25.0%)")
    shown = {e["label"]: e.get("floatValue") for e in evaluation["metadataEntries"]}
    assert shown["batchor/failure_rate"] == 0.25
    assert shown["batchor/error_above"] == 0.2


def test_failed_check_fails_no_run(seen: Seen) -> None:
    """One bad row would cost the whole partition, and turn its backfill red."""
    run = seen.runs[seen.materializations["bad"].run_id]
    assert run.status == "SUCCESS"
    evaluation = seen.evaluation("failure_rate", "bad")
    assert evaluation["targetMaterialization"]["runId"] == run.run_id


def test_checks_cannot_be_executed_apart_from_their_asset(seen: Seen) -> None:
    """A button would start a run of the asset under the name of a check, and pay for it."""
    assert {seen.checks[name]["canExecuteIndividually"] for name in CHECKS} == {
        "REQUIRES_MATERIALIZATION"
    }


def test_user_s_own_check_runs_with_the_materialization(seen: Seen) -> None:
    """The sensor's run would leave out what users check themselves."""
    found = seen.executions["users_own"]
    evaluated = {e["runId"] for e in found if e["evaluation"]}
    assert evaluated == {event.run_id for event in seen.materializations.values()}


def test_blocking_check_is_tried_once_and_blocks(seen: Seen) -> None:
    """Bad answers would go on downstream, or be materialized again and again."""
    (evaluated,) = [e for e in seen.notes if e["evaluation"]]
    assert evaluated["status"] == "FAILED"
    assert seen.runs[evaluated["runId"]].status == "FAILURE"
    assert seen.digests == []


def test_metadata_is_there_to_be_plotted_and_read(seen: Seen) -> None:
    """A number that comes as text is not plotted, a table that comes as text is not read."""
    shown = seen.materializations["bad"].metadata

    assert shown["dagster/partition_row_count"] == 4
    assert shown["batchor/failure_rate"] == 0.25
    assert shown["batchor/cost_usd"] > 0
    assert shown["openai.gpt-4.1-mini.calls"] >= 3
    assert [row["item_id"] for row in shown["batchor/preview"]] == [f"bad/{n}" for n in range(4)]
    columns = {column["name"]: column for column in shown["dagster/column_schema"]}
    assert columns["category"]["description"] == "What it is about."
    assert shown["batchor/preview"][0]["customer"].startswith('{"name": ')


def test_columns_are_known_before_anything_was_run(seen: Seen) -> None:
    """The asset's page would be empty until the first batch has come back."""
    names = [column["name"] for column in seen.definition["dagster/column_schema"]["columns"]]
    assert names[:3] == ["item_id", "text", "category"]
    assert "batchor/model" in seen.definition


def test_lineage_reaches_the_columns_upstream(seen: Seen) -> None:
    """The column lineage tab would end at the batch asset."""
    assert seen.lineage["item_id"] == [("tickets", "ticket_id")]
    assert seen.lineage["text"] == [("tickets", "text")]
    assert seen.lineage["category"] == [("tickets", "text")]


def test_progress_is_told_while_it_waits(seen: Seen) -> None:
    """Whoever waits would not know for what."""
    shown = seen.observation.metadata
    assert shown["batchor/progress_status"] == "running"
    assert shown["batchor/progress_rows_in_flight"] == 4
    assert shown["batchor/progress_cost_usd"] == 0
