"""Six backfills side by side in one real ``dagster dev``, against one simulated provider.

The provider's clock stands still until the story moves it, so that the provider works for exactly
as long as is needed: over more than two ticks of Dagster's daemon.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from batchor_core import SQLiteStorage
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.model.states import RunState
from batchor_core.simulator import Simulator
from batchor_dagster.constants import TAG_KIND
from tests.e2e.dagster_dev import (
    AssetEvent,
    Backfill,
    BackfillWait,
    DagsterDev,
    RunInfo,
)
from tests.e2e.still_provider import provider_env, still_provider

PROJECTS = Path(__file__).parent / "projects"
ASSETS = ["tickets", "answers", "digest", "overview"]
STRAIGHT = ["straight-0", "straight-1", "straight-2"]
FLAKY = ["flaky-0", "flaky-1"]
STOPPED = ["stopped-0", "stopped-1"]
TERMINATED = ["terminated-0", "terminated-1"]
ORPHANED = ["orphaned-0"]
SUSPENDED = ["suspended-0"]
FLAKY_TICKETS = {"flaky-0/1", "flaky-1/4"}
BATCH_SECONDS = 600.0
LONGER_THAN_TWO_TICKS_S = 75.0
"""The daemon looks at backfills every 30 s; without a hold, the second look fails them."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is seen of the straight backfill while the provider works.

    Attributes:
        runs: Status of each of its Dagster runs but for the hold.
        materializing: The partitions that the asset's page shows in progress.
        batches: How many provider batches are working.
        active: Dagster runs of any kind that have a worker.
        is_calm: Whether everything that was cancelled had come to its end before.
    """

    seconds: float
    status: str
    hold: str
    runs: Sequence[str]
    materializing: set[str]
    batches: int
    active: Sequence[RunInfo]
    is_calm: bool


@dataclass(frozen=True, kw_only=True)
class Story:
    """The backfills and everything that was seen of them.

    Attributes:
        straight: Nobody meddled with it.
        flaky: One ticket of each partition got an error of the provider's at first.
        stopped: It was cancelled while its batches were working.
        terminated: Its hold was terminated while its batches were working.
        orphaned: Its hold was deleted while its batch was working.
        suspended: Its hold is of the suspended kind; it was cancelled.
        refusal: Why Dagster refused to terminate the hold; None if it did not.
    """

    folder: Path
    home: Path
    looks: Sequence[Look]
    straight: BackfillWait
    flaky: BackfillWait
    stopped: BackfillWait
    terminated: BackfillWait
    orphaned: BackfillWait
    suspended: BackfillWait
    refusal: str | None
    materializations: Mapping[str, Sequence[AssetEvent]]
    observations: Sequence[AssetEvent]
    ledger: Mapping[str, Any]
    log: str

    def table(self, asset: str, partition: str) -> pl.DataFrame:
        """The stored table of a partition."""
        return pl.read_parquet(self.folder / "out" / asset / f"{partition}.parquet")

    def event(self, asset: str, partition: str) -> AssetEvent:
        """The only materialization of a partition."""
        (event,) = [e for e in self.materializations[asset] if e.partition == partition]
        return event

    def waiters(self, partitions: Sequence[str]) -> list[Waiter]:
        """Who waited for these partitions."""
        with SQLiteStorage(self.folder / "state.sqlite3") as store:
            return [w for w in store.list_waiters() if set(w.partitions) <= set(partitions)]

    def batch_runs(self, partitions: Sequence[str]) -> list[RunRecord]:
        """The batch runs of these partitions."""
        waiters = self.waiters(partitions)
        with SQLiteStorage(self.folder / "state.sqlite3") as store:
            return [store.get_run(waiter.run_id) for waiter in waiters]

    def executions(self, partitions: Sequence[str]) -> list[dict[str, Any]]:
        """What the provider says that it did for these partitions."""
        ours = {run.run_id for run in self.batch_runs(partitions)}
        return [entry for entry in self.ledger["entries"] if entry["run"] in ours]

    def batches(self, partitions: Sequence[str]) -> list[str]:
        """Status of the provider batches of these partitions."""
        ours = {run.run_id for run in self.batch_runs(partitions)}
        return [b["status"] for b in self.ledger["batches"].values() if b["run"] in ours]


def tell(folder: Path, home: Path) -> Story:
    """Hold six backfills, meddle with four, watch for more than two ticks, and let go."""
    with still_provider(BATCH_SECONDS) as simulator:
        simulator.faults(*map(_fault, FLAKY_TICKETS))
        env = {"ANSWERS_FOLDER": str(folder), **provider_env(simulator)}
        with DagsterDev(target=["-w", str(_workspace(folder))], env=env, home=home) as dev:
            return _tell(dev, simulator, folder, home)


def is_hold(run: RunInfo) -> bool:
    """Whether a Dagster run is a hold."""
    return run.tags.get(TAG_KIND) == "hold"


def hold_of(backfill: Backfill) -> RunInfo:
    """The only hold of a backfill."""
    (hold,) = [run for run in backfill.runs if is_hold(run)]
    return hold


def _workspace(folder: Path) -> Path:
    path = folder / "workspace.yaml"
    names = ("answers_project", "suspended_project")
    entries = [
        {"python_file": {"relative_path": str(PROJECTS / f"{name}.py"), "location_name": name}}
        for name in names
    ]
    path.write_text(json.dumps({"load_from": entries}))  # JSON is YAML
    return path


def _fault(ticket: str) -> dict[str, Any]:
    """A ticket's first answer is an error of the provider's."""
    day, number = ticket.split("/")
    match = {"prompt": f"{day} ticket {number} "}
    return {"kind": "line_error", "status": 503, "rounds": 1, "match": match}


def _tell(dev: DagsterDev, simulator: Simulator, folder: Path, home: Path) -> Story:
    stopped = dev.launch_backfill(ASSETS, STOPPED)
    terminated = dev.launch_backfill(ASSETS, TERMINATED)
    suspended = dev.launch_backfill(["notes"], SUSPENDED)
    orphaned = dev.launch_backfill(ASSETS, ORPHANED)
    flaky = dev.launch_backfill(ASSETS, FLAKY)
    straight = dev.launch_backfill(ASSETS, STRAIGHT)

    _wait_until_held(dev, stopped)
    dev.cancel_backfill(stopped)
    hold = _wait_until_held(dev, terminated)
    (refusal,) = dev.terminate_runs([hold.run_id]).values()
    _wait_until_held(dev, suspended)
    dev.cancel_backfill(suspended)
    _wait_until_held(dev, orphaned)
    _wait_until_held(dev, flaky)
    _wait_until_held(dev, straight)
    looks = _watch(dev, simulator, folder, straight, on_look=_delete_hold_after_tick(dev, orphaned))

    def end_of(backfill_id: str) -> BackfillWait:
        def provider_works(backfill: Backfill) -> None:
            simulator.advance_time(BATCH_SECONDS)

        return dev.wait_backfill(backfill_id, timeout_s=150, on_tick=provider_works)

    return Story(
        folder=folder,
        home=home,
        looks=looks,
        straight=end_of(straight),
        flaky=end_of(flaky),
        stopped=end_of(stopped),
        terminated=end_of(terminated),
        orphaned=end_of(orphaned),
        suspended=end_of(suspended),
        refusal=refusal,
        materializations={asset: dev.materializations(asset) for asset in (*ASSETS, "notes")},
        observations=dev.observations("answers"),
        ledger=simulator.state.ledger_report(entries=True),
        log=dev.log(),
    )


def _wait_until_held(dev: DagsterDev, backfill_id: str) -> RunInfo:
    """Return the hold once all requests have come to their end."""
    deadline = time.monotonic() + 300
    while not _is_held(backfill := dev.backfill(backfill_id)):
        assert backfill.is_open, backfill
        assert time.monotonic() < deadline, backfill
        time.sleep(0.5)
    return hold_of(backfill)


def _is_held(backfill: Backfill) -> bool:
    requests = [run for run in backfill.runs if not is_hold(run)]
    targeted = max((counts.targeted for counts in backfill.assets.values()), default=0)
    return (
        0 < len(requests) == targeted
        and all(run.status == "SUCCESS" for run in requests)
        and hold_of(backfill).status in {"QUEUED", "SUSPENDED"}
    )


def _delete_hold_after_tick(dev: DagsterDev, backfill_id: str) -> Callable[[], None]:
    """Return what deletes a backfill's hold just after the daemon looked at it.

    The sensor then has 30 s to open another. Whoever deletes one just before a tick loses the
    race, and the backfill.
    """
    line = f"Asset backfill {backfill_id} completed iteration"
    before, done = dev.log().count(line), list[str]()

    def delete() -> None:
        if not done and dev.log().count(line) > before:
            done.append(hold_of(dev.backfill(backfill_id)).run_id)
            dev.delete_run(done[0])

    return delete


def _watch(
    dev: DagsterDev,
    simulator: Simulator,
    folder: Path,
    straight: str,
    on_look: Callable[[], None],
) -> list[Look]:
    """Look every second while all batches of the straight backfill are working."""
    started, looks, is_calm = time.monotonic(), list[Look](), False
    while (seconds := time.monotonic() - started) < LONGER_THAN_TWO_TICKS_S:
        backfill = dev.backfill(straight)
        active = [r for r in dev.runs() if r.status in {"STARTING", "STARTED", "CANCELING"}]
        batches = simulator.state.ledger_report()["batches"].values()
        looks.append(
            Look(
                seconds=seconds,
                status=backfill.status,
                hold=hold_of(backfill).status,
                runs=[run.status for run in backfill.runs if not is_hold(run)],
                materializing=dev.materializing_partitions("answers"),
                batches=[batch["status"] for batch in batches].count("in_progress"),
                active=active,
                is_calm=is_calm,
            )
        )
        is_calm = is_calm or (not active and _all_cancelled(folder))
        on_look()
        time.sleep(1)
    return looks


def _all_cancelled(folder: Path) -> bool:
    with SQLiteStorage(folder / "state.sqlite3") as store:
        ended = store.list_runs(states=[RunState.CANCELLED])
    return len(ended) == len([*STOPPED, *TERMINATED, *SUSPENDED])
