"""The kit for users' own tests: the same code as in production, in one process, at once."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from pydantic import BaseModel

from batchor_core import ConfigurationError
from batchor_core.simulator import Question, Simulator, SimulatorOptions
from batchor_dagster import (
    BatchorResource,
    BatchParquetIOManager,
    OpenAIBatchResource,
    batch_asset,
    batchor_definitions,
    build_batch_sensors,
)
from batchor_dagster.testing import (
    QueuedRun,
    materialize_batch_assets,
    simulated_environment,
)
from batchor_dagster.testing.fixtures import batchor_simulator, batchor_simulator_options
from batchor_dagster.waiting.sensor_status import MATERIALIZE_SENSOR
from tests.core.mortal import DiedError
from tests.dagster.mortality import MortalBatchorResource
from tests.dagster.world import DAYS, Verdict, World, answers_asset

__all__ = ["batchor_simulator", "batchor_simulator_options"]


class Profile(BaseModel):
    """An answer with shapes that no provider takes as they are."""

    name: str
    weights: dict[str, float]
    span: tuple[int, str]
    note: str | None


@dg.asset(partitions_def=DAYS)
def labels(answers: pl.DataFrame) -> pl.DataFrame:
    """Ordinary downstream of the same partitions."""
    return answers.select("label")


@dg.asset(ins={"labels": dg.AssetIn(metadata={"allow_missing_partitions": True})})
def all_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Downstream without partitions."""
    return labels


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A simulator without the environment that leads to it."""
    with Simulator() as opened:
        yield opened


def one_row(prompt: str = "Judge this", **options: Any) -> dg.AssetsDefinition:
    """Return an unpartitioned batch asset ``one`` with one row."""

    @batch_asset(**{"model": "gpt-4.1-mini", "output": Verdict, **options})
    def one() -> pl.DataFrame:
        return pl.DataFrame({"prompt": [prompt]})

    return one


def test_partitions_with_what_is_around_them() -> None:
    """A user could test a batch asset alone, but not the pipeline around it."""
    result = materialize_batch_assets(
        [answers_asset(), labels, all_labels], partition_keys=["d1", "d2"]
    )
    assert result.success
    assert result.problems == []
    assert result.partitions("answers") == ["d1", "d2"]
    assert result.partitions("all_labels") == [None]  # once, when both were there
    assert result.table("all_labels").height == 6
    assert result.table("labels", "d1").equals(result.table("answers", "d1").select("label"))
    assert result.metadata("answers", "d2")["batchor/rows_ok"] == 3
    assert [run.counts.ok for run in result.batch_runs] == [3, 3]
    assert result.executed_requests == 6
    assert result.ledger["paid_twice"] == []


def test_one_batch_asset_feeds_another() -> None:
    """Only the first of a chain would be answered."""

    @batch_asset(model="gpt-4.1-mini")
    def summaries(one: pl.DataFrame) -> pl.DataFrame:
        return one.select(prompt=pl.lit("Sum up ") + pl.col("label"))

    @dg.asset(deps=[summaries])
    def last() -> None: ...

    result = materialize_batch_assets([one_row(), summaries, last])
    assert result.success
    assert "Sum up" in result.table("summaries")["output_text"].item()
    assert result.partitions("last") == [None]
    assert len(result.batch_runs) == 2


def test_blocking_assets_do_not_wait() -> None:
    """A test of an asset that waits for its answers would sleep for half a minute and more."""
    result = materialize_batch_assets([one_row(wait=True)])
    assert result.success
    assert len(result.dagster_runs) == 1  # the request itself has materialized it


def test_delays_pass_at_once(simulator: Simulator) -> None:
    """A test of a retry would take as long as the retry policy waits."""
    simulator.faults(kind="line_error", status=500, rounds=2)
    result = materialize_batch_assets([one_row()], simulator=simulator)
    assert result.table("one")["batch_attempts"].item() == 3


def test_expiry_after_a_day_passes_at_once() -> None:
    """Nobody could test what happens when a provider lets a batch expire."""
    with Simulator(SimulatorOptions(batch_seconds=86_400)) as simulator:
        simulator.faults(kind="expire", times=1, fraction=0)
        result = materialize_batch_assets([one_row()], simulator=simulator)
    assert result.success
    assert sorted(batch["status"] for batch in result.ledger["batches"].values()) == [
        "completed",
        "expired",
    ]


def test_a_full_queue_passes_at_once() -> None:
    """A test of many rows at an account's limit would wait for its back-off, or give up."""
    with Simulator(SimulatorOptions(enqueued_token_limit=250)) as simulator:
        result = materialize_batch_assets(
            [answers_asset()], partition_keys=["d1", "d2", "d3"], simulator=simulator
        )
    assert result.executed_requests == 9
    assert result.ledger["paid_twice"] == []
    assert "failed" in {batch["status"] for batch in result.ledger["batches"].values()}


def test_failing_verdict(simulator: Simulator) -> None:
    """A test could not expect a partition to fail, or would not learn why it did."""
    simulator.faults(kind="line_error", status=400, match={"prompt": "d3"})
    assets = [answers_asset(max_failure_rate=0.1), labels]
    with pytest.raises(dg.Failure, match="3 of 3 rows failed"):
        materialize_batch_assets(assets, partition_key="d3", simulator=simulator)
    result = materialize_batch_assets(
        [*assets, all_labels],
        partition_keys=["d2", "d3"],
        simulator=simulator,
        raise_on_error=False,
    )
    assert not result.success
    assert [text.startswith("answers[d3]: 3 of 3 rows failed") for text in result.problems] == [
        True
    ]
    assert result.partitions("labels") == ["d2"]
    assert result.partitions("all_labels") == []  # a backfill would not come to it either


def test_mistakes_of_the_users_are_theirs() -> None:
    """A mistake in the user's function would come out as something of ours, or not at all."""

    @batch_asset(model="gpt-4.1-mini")
    def broken() -> pl.DataFrame:
        raise LookupError("no such table")

    with pytest.raises(LookupError, match="no such table"):
        materialize_batch_assets([broken])
    result = materialize_batch_assets([broken], raise_on_error=False)
    assert not result.success
    assert "no such table" in result.problems[0]
    with pytest.raises(KeyError, match="broken"):
        result.metadata("broken")


def test_what_helps_no_more_is_told(simulator: Simulator) -> None:
    """A test would hang, or end without a word, where a run is paused until somebody helps."""
    simulator.faults(kind="http_error", status=401, match={"route": "files.create"})
    with pytest.raises(dg.Failure, match=r"one: batch run .* \(pause: "):
        materialize_batch_assets([one_row()], simulator=simulator)


def test_checks_are_evaluated() -> None:
    """A user's checks would not be part of their tests."""
    one = one_row()

    @dg.asset_check(asset=one)
    def has_a_label(one: pl.DataFrame) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=one["label"].null_count() == 0)

    result = materialize_batch_assets([one, has_a_label])
    found = {check.check_name: check.passed for check in result.checks("one")}
    assert found["has_a_label"]


def test_definitions_are_kept_away_from_the_world(tmp_path: Path) -> None:
    """A test would write to the team's store and bucket, or send tickets to a real provider."""
    theirs = {
        "batchor": BatchorResource(
            state=dg.EnvVar("NOT_SET_IN_CI"), artifacts=str(tmp_path / "real"), namespace="team"
        ),
        "openai": OpenAIBatchResource(
            api_key=dg.EnvVar("NOT_SET_IN_CI"), base_url="https://real.invalid", api_version="v1"
        ),
        "io_manager": BatchParquetIOManager(base_path=str(tmp_path / "real")),
    }
    defs = batchor_definitions([answers_asset(), labels, one_row()], resources=theirs)
    result = materialize_batch_assets(
        defs, selection="answers+", partition_key="d1", folder=tmp_path / "test"
    )
    assert result.success
    assert result.partitions("labels") == ["d1"]
    assert result.partitions("one") == []
    assert not (tmp_path / "real").exists()
    assert (tmp_path / "test" / "results" / "labels" / "d1.parquet").exists()


def test_given_resources_are_taken(tmp_path: Path) -> None:
    """A test could not put another IO manager, or its own resources, in the place of the real."""

    @batch_asset(model="gpt-4.1-mini", provider="house", io_manager_key="frames")
    def answered(greeting: dg.ResourceParam[str]) -> pl.DataFrame:
        return pl.DataFrame({"prompt": [greeting]})

    resources = {
        "house": OpenAIBatchResource(base_url="https://real.invalid"),
        "greeting": "Hello you",
        "frames": BatchParquetIOManager(base_path=str(tmp_path / "frames")),
        "batchor": BatchorResource(state=str(tmp_path / "mine.sqlite3")),
    }
    result = materialize_batch_assets([answered], resources=resources)
    assert "Hello you" in result.table("answered")["output_text"].item()
    assert (tmp_path / "frames" / "answered.parquet").exists()
    assert (tmp_path / "mine.sqlite3").exists()
    with pytest.raises(ConfigurationError, match="no resource 'house'"):
        materialize_batch_assets([answered])


# Dagster warns of the names that it gives its own tags.
@pytest.mark.filterwarnings("ignore:Non-compliant tag keys:DeprecationWarning")
@pytest.mark.parametrize(
    ("partitions_def", "key"),
    [
        (dg.DailyPartitionsDefinition(start_date="2026-01-01"), "2026-01-02"),
        (dg.DynamicPartitionsDefinition(name="customers"), "Ada & Söhne/1"),
        (
            dg.MultiPartitionsDefinition(
                {"day": DAYS, "land": dg.StaticPartitionsDefinition(["ch"])}
            ),
            dg.MultiPartitionKey({"day": "d1", "land": "ch"}),
        ),
    ],
    ids=["daily", "dynamic", "multi"],
)
def test_every_kind_of_partitions(partitions_def: Any, key: str) -> None:
    """Assets of some partitionings could not be tested."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("customers", ["Ada & Söhne/1"])
        result = materialize_batch_assets(
            [answers_asset(partitions_def=partitions_def)], partition_key=key, instance=instance
        )
        assert result.partitions("answers") == [key]
        assert result.table("answers", key).height == 3


def test_a_range_of_partitions() -> None:
    """A test could not ask for several partitions at once, as a single-run backfill does."""

    @dg.asset(partitions_def=DAYS)
    def each(answers: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        return {day: table.select("label") for day, table in answers.items()}

    result = materialize_batch_assets([answers_asset(), each], partition_range=("d1", "d3"))
    assert result.success
    assert sorted(result.partitions("answers")) == ["d1", "d2", "d3"]
    assert sorted(result.partitions("each")) == ["d1", "d2", "d3"]
    assert len(result.requests) == len(result.batch_runs) == 1
    assert result.table("each", "d2").height == 3


def test_a_range_with_different_verdicts(simulator: Simulator) -> None:
    """The partitions of a range that are good would not be there beside one that is bad."""
    simulator.faults(kind="line_error", status=400, match={"prompt": "d3"})
    result = materialize_batch_assets(
        [answers_asset(max_failure_rate=0.1)],
        partition_range=("d1", "d4"),
        simulator=simulator,
        raise_on_error=False,
    )
    assert sorted(result.partitions("answers")) == ["d1", "d2", "d4"]
    assert "3 of 3 rows failed" in result.problems[0]


def test_going_on_with_the_same_folder(tmp_path: Path) -> None:
    """Nobody could test what materializing a partition again asks."""
    with dg.DagsterInstance.ephemeral() as instance, Simulator() as simulator:
        kept: dict[str, Any] = {"instance": instance, "folder": tmp_path, "simulator": simulator}
        first = materialize_batch_assets([answers_asset()], partition_key="d1", **kept)
        again = materialize_batch_assets([answers_asset()], partition_key="d1", **kept)
    assert first.executed_requests == again.executed_requests == 3
    assert again.metadata("answers")["batchor/rows_reused"] == 3
    assert len(again.batch_runs) == 1


def test_a_folder_goes_with_its_result() -> None:
    """Each run of a test suite would leave its results on the disk."""
    result = materialize_batch_assets([one_row()])
    folder = result.folder
    assert folder.exists()
    del result
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"partition_key": "d1", "partition_keys": ["d1"]}, "one of partition_key"),
        ({"selection": ["answers"]}, "where partitioned assets are selected"),
        ({"partition_key": "d1", "selection": ["one"]}, "and only there"),
        ({"partition_key": "d1", "selection": ["answers", "other"]}, "2 kinds of partitions"),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], words: str) -> None:
    """A test would materialize something else than it says."""
    other = dg.asset(partitions_def=dg.StaticPartitionsDefinition(["x"]), name="other")
    assets = [answers_asset(), one_row(), other(lambda: None)]
    with pytest.raises(ValueError, match=words):
        materialize_batch_assets(assets, **arguments)


def test_sensors_that_find_their_assets() -> None:
    """A project whose sensors are not given their assets could not be tested."""
    defs = dg.Definitions(assets=[one_row()], sensors=build_batch_sensors())
    assert materialize_batch_assets(defs).success


def test_definitions_without_the_sensors_are_refused() -> None:
    """A project that forgot its sensors would pass its tests and wait for ever in production."""
    with pytest.raises(ConfigurationError, match="build_batch_sensors"):
        materialize_batch_assets(dg.Definitions(assets=[one_row()]))
    with pytest.raises(ConfigurationError, match="none of the assets"):
        materialize_batch_assets([labels])


ACCOUNTS = [
    {"provider": "openai", "model": "gpt-4.1-mini"},
    {"provider": "openai", "model": "gpt-4.1-mini", "endpoint": "chat"},
    {"provider": "anthropic", "model": "claude-sonnet-4-5", "max_output_tokens": 500},
    {"provider": "gemini", "model": "gemini-2.5-flash"},
]


def ids_of(options: dict[str, Any]) -> str:
    """Name a provider and its endpoint."""
    return f"{options['provider']}-{options.get('endpoint', 'usual')}"


@pytest.mark.parametrize("account", ACCOUNTS, ids=ids_of)
def test_answers_of_ones_own(account: dict[str, Any], simulator: Simulator) -> None:
    """Nobody could test what their pipeline does with an answer, but only that there is one."""
    profile = Profile(name="Ada", weights={"price": 0.5}, span=(3, "days"), note=None)
    simulator.answer({"name": "Bob"})
    simulator.answer(profile, containing="d1 row 1;")
    simulator.answer(
        lambda question: {"name": question.prompt} if "row 2;" in question.prompt else None
    )
    result = materialize_batch_assets(
        [answers_asset(output=Profile, **account)], partition_key="d1", simulator=simulator
    )
    rows = result.table("answers", "d1").to_dicts()
    assert [row["name"] for row in rows] == ["Bob", "Ada", "Judge d1 row 2;"]
    assert all(row["batch_status"] == "ok" for row in rows)  # the other fields are made up
    assert rows[1]["note"] is None
    assert list(rows[1]["span"].values()) == [3, "days"]
    assert "price" in str(rows[1]["weights"])


@pytest.mark.parametrize("account", ACCOUNTS, ids=ids_of)
def test_texts_of_ones_own(account: dict[str, Any], simulator: Simulator) -> None:
    """An asset without an output model could not be given its answers."""
    simulator.answer("No")
    simulator.answer("Yes", containing="row 0")
    simulator.answer(_fails, containing="row 2")
    result = materialize_batch_assets(
        [answers_asset(output=None, max_failure_rate=0.5, **account)],
        partition_key="d1",
        simulator=simulator,
    )
    rows = result.table("answers", "d1").to_dicts()
    assert [row["output_text"] for row in rows[:2]] == ["Yes", "No"]
    assert "ZeroDivisionError" in rows[2]["batch_error_message"]


def _fails(question: Question) -> str:
    return str(1 / (len(question.model) * 0))


@pytest.mark.parametrize("account", ACCOUNTS, ids=ids_of)
def test_answers_that_do_not_fit(account: dict[str, Any], simulator: Simulator) -> None:
    """A slip of the pen in a test would be taken for an answer, or an invalid one could not be."""
    simulator.answer({"label": "x", "scoer": 1}, containing="row 0")
    simulator.answer({"label": "x", "score": "high"}, containing="row 1")
    simulator.answer("no JSON", containing="row 2")
    result = materialize_batch_assets(
        [answers_asset(**account)], partition_key="d1", simulator=simulator, raise_on_error=False
    )
    assert "3 of 3 rows failed" in result.problems[0]
    (batch_run,) = result.batch_runs
    assert batch_run.counts.failed == 3


def test_answers_go_out_of_force(simulator: Simulator) -> None:
    """An answer of one test would be given in the next."""
    simulator.answer("Yes")
    simulator.clear_answers()
    result = materialize_batch_assets([one_row(output=None)], simulator=simulator)
    assert "no model was involved" in result.table("one")["output_text"].item()
    with pytest.raises(TypeError, match="a list as answer"):
        simulator.answer(["Yes"])  # type: ignore[arg-type]  # the point of the test


def test_fixture_leads_every_sdk_to_the_simulator(batchor_simulator: Simulator) -> None:
    """A test without a key would fail, or one with a key reach a real account."""
    assert batchor_simulator.environment.items() <= os.environ.items()
    batchor_simulator.answer("Yes")
    result = materialize_batch_assets([one_row(output=None)], simulator=batchor_simulator)
    assert result.table("one")["output_text"].item() == "Yes"
    assert batchor_simulator.ledger().summary()["executed"] == 1


def test_environment_is_as_before(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests that come later would talk to a simulator that is gone."""
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("NO_PROXY", "intern")
    before = dict(os.environ)
    with simulated_environment(simulator):
        assert "OPENAI_ORG_ID" not in os.environ
        assert os.environ["NO_PROXY"] == "intern,127.0.0.1"
        assert os.environ["OPENAI_API_KEY"] == "simulated"
    assert dict(os.environ) == before


def test_kit_needs_no_pytest() -> None:
    """Whoever uses the kit from another test runner would have to install pytest."""
    code = (
        "import sys, batchor_dagster; assert 'batchor_core.simulator' not in sys.modules;"
        "import batchor_dagster.testing; assert 'pytest' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_descendant_that_always_fails_is_told(simulator: Simulator) -> None:
    """A test would pass although what builds on the answers never materializes."""

    @dg.asset(partitions_def=DAYS)
    def broken(answers: pl.DataFrame) -> None:
        raise LookupError("no such column")

    @dg.asset(deps=[broken], partitions_def=DAYS)
    def last() -> None: ...

    @dg.asset(deps=[broken])
    def after() -> None: ...

    result = materialize_batch_assets(
        [answers_asset(), broken, last, labels, after],
        partition_keys=["d1", "d2"],
        simulator=simulator,
        raise_on_error=False,
    )
    assert not result.success
    why = "LookupError: no such column"
    assert result.problems == [f"broken[{day}]: {why}" for day in ("d1", "d2")]
    assert set(result.partitions("labels")) == {"d1", "d2"}
    assert result.partitions("after") == []  # a backfill would not come to it either


@pytest.mark.parametrize("crashes", [True, False])
def test_a_blocking_check_that_fails_is_told(*, crashes: bool) -> None:
    """A test would pass although the pipeline stops at its own check."""
    one = one_row()

    @dg.asset_check(asset=one, blocking=True)
    def good(one: pl.DataFrame) -> dg.AssetCheckResult:
        if crashes:
            raise LookupError("no such column")
        return dg.AssetCheckResult(passed=False)

    result = materialize_batch_assets([one, good], raise_on_error=False)
    assert not result.success
    assert "'good'" in result.problems[0]


def test_what_yields_nothing_is_told() -> None:
    """A test would pass although an asset was skipped."""
    skipped = dg.asset(name="skipped", deps=["one"], output_required=False)

    def nothing() -> Iterator[Any]:
        yield from ()

    result = materialize_batch_assets([one_row(), skipped(nothing)], raise_on_error=False)
    assert result.problems == ["skipped: it was not materialized"]


def running_total(name: str, seen: list[int]) -> dg.AssetsDefinition:
    """An asset that takes the answers of a day to its own of the day before."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        name=name, partitions_def=DAILY, ins={"total": dg.AssetIn(name, partition_mapping=before)}
    )
    def total(total: pl.DataFrame | None, answers: pl.DataFrame) -> pl.DataFrame:
        seen.append(0 if total is None else total.height)
        return answers if total is None else pl.concat([total, answers])

    return total


DAILY = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
TWO_DAYS = ["2026-01-01", "2026-01-02"]


def test_an_asset_that_depends_on_itself() -> None:
    """A pipeline with a running total could not be tested at all."""
    seen: list[int] = []
    result = materialize_batch_assets(
        [answers_asset(partitions_def=DAILY), running_total("total", seen)],
        partition_keys=TWO_DAYS,
    )
    assert result.success
    assert result.partitions("total") == TWO_DAYS
    assert seen == [0, 3]


def test_a_batch_asset_that_depends_on_itself() -> None:
    """The second day would be asked before the first has its answers."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @batch_asset(
        model="gpt-4.1-mini",
        partitions_def=DAILY,
        ins={"story": dg.AssetIn("story", partition_mapping=before)},
    )
    def story(context: dg.AssetExecutionContext, story: pl.DataFrame | None) -> pl.DataFrame:
        seen.append(story is None)
        return pl.DataFrame({"prompt": [f"Go on with {context.partition_key}"]})

    seen: list[bool] = []
    result = materialize_batch_assets([story], partition_keys=TWO_DAYS)
    assert result.success
    assert seen == [True, False]
    assert result.partitions("story") == TWO_DAYS


class TestDaemon:
    """The driving loop, as far as tests of a code location that changes need it."""

    def test_a_run_key_is_launched_once(self, world: World) -> None:
        """A test would pass because of a second launch that Dagster's daemon never makes."""
        answers = answers_asset()
        world.request(answers)
        world.drive(answers)
        daemon = world.daemon([answers])
        (request,) = daemon.requests(MATERIALIZE_SENSOR)
        daemon.deploy(daemon_definitions(world, request))
        assert [asked.run_key for asked in daemon.requests("again")] == [request.run_key]
        daemon.launch(request)
        assert daemon.requests("again") == []

    def test_a_full_queue_is_emptied_in_any_order(self, world: World) -> None:
        """Nobody could test what the sensors do while their Dagster runs wait for a slot."""
        answers = answers_asset()
        for day in ("d0", "d1", "d2"):
            world.request(answers, partition=day)
        world.drive(answers)
        daemon = world.daemon([answers])
        queued = [daemon.enqueue(request) for request in daemon.requests(MATERIALIZE_SENSOR)]
        assert daemon.requests(MATERIALIZE_SENSOR) == []
        world.instance.report_run_canceled(record_of(world, queued[1]))
        results = [daemon.execute(run) for run in reversed(queued)]
        assert [result is not None and result.run_id for result in results] == [
            queued[2].run_id,
            False,
            queued[0].run_id,
        ]
        assert world.materialized() == ["d2", "d0"]

    def test_what_was_queued_meets_a_deploy(self, world: World) -> None:
        """Nobody could test what becomes of a queued run whose asset is gone meanwhile."""
        answers = answers_asset()
        world.request(answers)
        world.drive(answers)
        daemon = world.daemon([answers])
        (request,) = daemon.requests(MATERIALIZE_SENSOR)
        queued = daemon.enqueue(request)
        daemon.deploy(batchor_definitions([one_row()], resources=world.resources))
        assert daemon.execute(queued) is None
        assert record_of(world, queued).status is dg.DagsterRunStatus.FAILURE

    def test_runs_of_jobs_and_of_checks(self, world: World) -> None:
        """Requests that name a job, or checks, would run as something else."""
        answers = answers_asset()
        checked: list[str] = []

        @dg.asset_check(asset=answers)
        def looked_at(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            checked.append(context.run.job_name)
            return dg.AssetCheckResult(passed=True)

        job = dg.define_asset_job("daily", [answers], tags={"team": "support"})
        daemon = world.daemon([answers])
        parts = dg.Definitions(asset_checks=[looked_at], jobs=[job])
        ours = batchor_definitions([answers], resources=world.resources)
        daemon.deploy(dg.Definitions.merge(ours, parts))
        asked = dg.RunRequest(job_name="daily", partition_key="d3", asset_selection=[answers.key])
        result = daemon.launch(asked)
        assert result.success
        assert result.dagster_run.job_name == "daily"
        assert result.dagster_run.tags["team"] == "support"
        (check_key,) = looked_at.check_keys
        only = dg.RunRequest(asset_check_keys=[check_key], asset_selection=[])
        assert daemon.launch(only).success
        assert checked == ["__ASSET_JOB"]

    @pytest.mark.parametrize("commit", range(1, 5))
    def test_a_dead_tick_is_made_up_for(self, world: World, commit: int) -> None:
        """A tick that dies between two commits would leave a partition behind."""
        mortal = MortalBatchorResource.of(world)
        answers = answers_asset()
        world.request(answers)
        world.drive(answers)
        mortal.die_at(commit)
        with suppress(DiedError):
            world.finish(answers)
        mortal.live()
        world.finish(answers)
        assert world.materialized()[-1:] == ["d0"]
        assert world.open_waiters == 0

    @pytest.mark.parametrize("probe", ["store.claim", "submit.intended", "submit.activated"])
    def test_a_dead_request_is_made_up_for(self, world: World, probe: str) -> None:
        """A request that dies between two commits would never be answered, or paid twice."""
        mortal = MortalBatchorResource.of(world)
        answers = answers_asset()
        mortal.die_at(1, probe)
        assert not world.request(answers).success
        mortal.live()
        world.finish(answers)
        assert world.materialized() == ["d0"]
        assert world.sim.ledger().paid_twice() == []


def record_of(world: World, queued: QueuedRun) -> dg.DagsterRun:
    """What Dagster has on record of a queued run."""
    run = world.instance.get_run_by_id(queued.run_id)
    assert run is not None
    return run


def daemon_definitions(world: World, request: dg.RunRequest) -> dg.Definitions:
    """A code location with one more sensor, which always asks for the same."""

    @dg.sensor(name="again", asset_selection=dg.AssetSelection.all())
    def again() -> dg.RunRequest:
        return request

    ours = batchor_definitions([answers_asset()], resources=world.resources)
    return dg.Definitions.merge(ours, dg.Definitions(sensors=[again]))
