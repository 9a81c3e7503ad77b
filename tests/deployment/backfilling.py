"""Backfills that the provider lets wait, for as long as their daemon has to look at them twice."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from batchor_core.simulator import Simulator
from tests.e2e.answers_story import hold_of, is_hold
from tests.e2e.dagster_dev import Backfill, BackfillWait, DagsterDev

PROJECTS = Path(__file__).parent / "projects"
BATCH_SECONDS = 600.0
DAYS = ["d0", "d1"]


def local_env(folder: Path) -> dict[str, str]:
    """Return the variables by which a project finds places on this machine."""
    return {
        "BATCHOR_STATE": str(folder / "state.sqlite3"),
        "BATCHOR_ARTIFACTS": str(folder / "artifacts"),
        "BATCHOR_OUT": str(folder / "out"),
    }


def workspace(folder: Path, locations: Sequence[tuple[str, str]]) -> list[str]:
    """Return the target of a workspace: names of code locations and their project files.

    A location's definitions are the attribute of its own name.
    """
    entries = [
        {
            "python_file": {
                "relative_path": str(PROJECTS / f"{project}.py"),
                "location_name": name,
                "attribute": name,
            }
        }
        for name, project in locations
    ]
    path = folder / "workspace.yaml"
    path.write_text(json.dumps({"load_from": entries}))  # JSON is YAML
    return ["-w", str(path)]


def hold_over_two_looks(dev: DagsterDev, backfill_ids: Sequence[str]) -> list[Backfill]:
    """Wait until all requests have ended and the daemon has looked at each backfill twice more.

    Without a hold, the second look fails a backfill. Returns the backfills after it.
    """
    for backfill_id in backfill_ids:
        _wait(dev, backfill_id, _is_held)
    enough = {backfill_id: _looks(dev, backfill_id) + 2 for backfill_id in backfill_ids}
    for backfill_id in backfill_ids:
        _wait(dev, backfill_id, lambda b: _looks(dev, b.backfill_id) >= enough[b.backfill_id])
    return [dev.backfill(backfill_id) for backfill_id in backfill_ids]


def finish(dev: DagsterDev, running: Simulator, backfill_id: str) -> BackfillWait:
    """Let the provider work until Dagster has ended the backfill."""

    def provider_works(backfill: Backfill) -> None:
        running.advance_time(BATCH_SECONDS)

    return dev.wait_backfill(backfill_id, timeout_s=400, on_tick=provider_works)


def _wait(
    dev: DagsterDev, backfill_id: str, is_so: Callable[[Backfill], bool], patience_s: float = 300
) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so(backfill := dev.backfill(backfill_id)):
        assert backfill.is_open, backfill
        assert time.monotonic() < deadline, backfill
        time.sleep(0.5)


def _looks(dev: DagsterDev, backfill_id: str) -> int:
    return dev.log().count(f"Asset backfill {backfill_id} completed iteration")


def _is_held(backfill: Backfill) -> bool:
    """Whether every partition has been asked for, and nothing but the hold is going on."""
    statuses = [run.status for run in backfill.runs if not is_hold(run)]
    return (
        statuses.count("SUCCESS") == len(DAYS)
        and set(statuses) <= {"SUCCESS", "FAILURE"}  # of which Dagster retries the failed ones
        and hold_of(backfill).status in {"QUEUED", "SUSPENDED"}
    )
