"""Two backfills on an instance with run retries, whose run queue does not look at pools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchor_core.simulator import Simulator
from batchor_dagster.constants import TAG_KIND
from tests.deployment.backfilling import (
    BATCH_SECONDS,
    DAYS,
    finish,
    hold_over_two_looks,
    local_env,
    workspace,
)
from tests.e2e.dagster_dev import Backfill, BackfillWait, DagsterDev, RunInfo
from tests.e2e.still_provider import provider_env, still_provider

SETTINGS = """
run_retries:
  enabled: true
  max_retries: 2
# Of two equal keys the later counts.
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
    block_op_concurrency_limited_runs:
      enabled: false
"""
_BAD_ROW = {
    "kind": "line_error",
    "status": 400,
    "match": {"prompt": "Judge strict d0 ticket 1;"},
}


@dataclass(frozen=True, kw_only=True)
class SettingsStory:
    """What was seen of the two backfills.

    Attributes:
        held: Each after the daemon had looked at it twice, the provider working.
        flaky: Its rows, and each of its reports, could not be read or made at first.
        strict: A row of its first day was refused for good, which it does not tolerate.
        runs: All Dagster runs.
        ledger: What the provider says that it did.
    """

    held: Mapping[str, Backfill]
    flaky: BackfillWait
    strict: BackfillWait
    runs: Sequence[RunInfo]
    ledger: Mapping[str, Any]

    def materialize_runs(self, asset: str) -> list[RunInfo]:
        """The Dagster runs that were to materialize an asset's partitions."""
        ours = {"batchor/asset": asset, TAG_KIND: "materialize"}
        return [run for run in self.runs if ours.items() <= run.tags.items()]


def tell(folder: Path) -> SettingsStory:
    """Hold both while the daemon looks twice, and let go."""
    marks = folder / "marks"
    marks.mkdir()
    with still_provider(BATCH_SECONDS) as running:
        running.faults(_BAD_ROW)
        dev = DagsterDev(
            target=workspace(folder, [("retried", "retried_project")]),
            env={**provider_env(running), **local_env(folder), "MARKS": str(marks)},
            home=folder / "home",
            extra_yaml=SETTINGS,
        )
        with dev:
            return _tell(dev, running)


def _tell(dev: DagsterDev, running: Simulator) -> SettingsStory:
    flaky = dev.launch_backfill(["flaky_answers", "flaky_report"], DAYS)
    strict = dev.launch_backfill(["strict_answers"], DAYS)
    held = hold_over_two_looks(dev, [flaky, strict])
    return SettingsStory(
        held=dict(zip(("flaky", "strict"), held, strict=True)),
        flaky=finish(dev, running, flaky),
        strict=finish(dev, running, strict),
        runs=dev.runs(),
        ledger=running.state.ledger_report(entries=True),
    )
