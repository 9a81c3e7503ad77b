"""Backfills of many shapes side by side in one real ``dagster dev`` that is restarted on the way.

The provider's clock stands still until all of them wait: then overlapping ones are launched, the
code location is reloaded, ``dagster dev`` is restarted, and the provider begins to work.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from batchor_core import SQLiteStorage
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.simulator import Simulator
from batchor_dagster.constants import TAG_KIND, TAG_PARTITION, TAG_PARTITION_RANGE_START
from tests.e2e.dagster_dev import AssetEvent, Backfill, DagsterDev, RunInfo
from tests.e2e.still_provider import provider_env, still_provider

PROJECT = Path(__file__).parent / "projects" / "shapes_project.py"
BATCH_SECONDS = 10.0
_RUN_RETRIES = """\
run_retries:
  enabled: true
  max_retries: 2
"""
SLOW_SECONDS = 20_000.0
"""How much longer the other endpoint takes."""


class Launch(NamedTuple):
    """A backfill, and how many Dagster runs ask for its partitions."""

    assets: list[str]
    partitions: list[str]
    requests: int


def days(group: str, first: int, last: int) -> list[str]:
    """The partitions of a group from one number to another."""
    return [f"{group}-{n}" for n in range(first, last + 1)]


DATES = [f"2026-01-0{n}" for n in range(1, 7)]
ODD_KEYS = ["a/b", "two words", "größe→東京", '"it\'s"', "x|y", "..", "long-" + "ä" * 295]
ODD_ALONE = 'alone / at 100% | "ünï\'code"'
GRID_RANGE = ["2026-01-01|east", "2026-01-01|north west"]
GRID_ALONE = "2026-01-02|north west"
MANY = [f"item-{n:03}" for n in range(200)]
BAD = "range-2"
BACKFILLS: dict[str, Launch] = {
    "range": Launch(["tickets", "ranged", "report", "total"], days("range", 0, 5), 1),
    "daily": Launch(["daily", "daily_note"], DATES, 2),
    "both": Launch(["plain"], days("both", 0, 1), 2),
    "lap": Launch(["lap"], days("lap", 0, 3), 1),
    "again": Launch(["plain", "slow"], days("again", 0, 0), 1),
    "retry": Launch(["stored"], days("retry", 0, 0), 1),
    "halt": Launch(["lap"], days("halt", 0, 1), 1),
    "odd": Launch(["odd"], ODD_KEYS, 1),
    "grid": Launch(["grid"], GRID_RANGE, 1),
    "chain": Launch(["first", "second", "last"], days("chain", 0, 0), 1),
    "many": Launch(["many"], MANY, 1),
}
"""By name."""

LATER: dict[str, Launch] = {
    "both again": Launch(["plain"], days("both", 0, 1), 2),
    "lap further": Launch(["lap"], days("lap", 2, 5), 1),
}
"""Launched while what they overlap is in flight."""


@dataclass(kw_only=True)
class Story:
    """What was seen.

    Attributes:
        backfills: How each ended, by its name.
        stuck: Status of the Dagster runs that were terminated while they were sending, by what they
            were doing.
        failed_once: The backfill whose partition failed its verdict, while it was open.
        turned_green: The same backfill after the partition was executed again, still open.
        materializations: By asset.
        ledger: What the provider says that it did.
        failed_ticks: Errors of sensors.
    """

    folder: Path
    backfills: dict[str, Backfill] = field(default_factory=dict)
    stuck: dict[str, str] = field(default_factory=dict)
    failed_once: Backfill | None = None
    turned_green: Backfill | None = None
    materializations: Mapping[str, Sequence[AssetEvent]] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    failed_ticks: Sequence[str] = ()
    open_holds: Sequence[RunInfo] = ()
    waiters: Sequence[Waiter] = ()
    runs: Sequence[RunRecord] = ()

    def times_materialized(self, asset: str) -> Counter[str | None]:
        """How often each partition of an asset was materialized."""
        return Counter(event.partition for event in self.materializations[asset])

    def runs_of(self, backfill: str, kind: str | None) -> list[RunInfo]:
        """The Dagster runs of a backfill that are of a kind; None is a request, or any other."""
        return [r for r in self.backfills[backfill].runs if r.tags.get(TAG_KIND) == kind]

    def batches_of(self, asset: str, partitions: Sequence[str]) -> list[str]:
        """Status of the provider batches of the batch runs that these partitions waited for."""
        wanted = set(partitions)
        ours = {w.run_id for w in self.waiters if w.asset == asset and wanted & set(w.partitions)}
        return [b["status"] for b in self.ledger["batches"].values() if b["run"] in ours]


def tell(folder: Path) -> Story:
    """Tell it all; takes a few minutes."""
    with still_provider(BATCH_SECONDS) as simulator:
        env = {"SHAPES_FOLDER": str(folder), **provider_env(simulator)}
        home = folder / "home"
        dagster = DagsterDev(
            target=["-f", str(PROJECT)], env=env, home=home, extra_yaml=_RUN_RETRIES
        )
        with dagster as dev:
            return _Teller(dev, simulator, Story(folder=folder)).tell()


class _Teller:
    def __init__(self, dev: DagsterDev, simulator: Simulator, story: Story) -> None:
        self.dev = dev
        self.simulator = simulator
        self.story = story
        self.ids: dict[str, str] = {}

    def tell(self) -> Story:
        self.dev.add_partitions("odd_keys", [*ODD_KEYS, ODD_ALONE])
        self._set_faults()
        self._terminate_stuck("upload", route="files.create", after_commit=False)
        self._terminate_stuck("create", route="batches.create", after_commit=True)
        self._launch(BACKFILLS)
        self._materialize_alone()
        self._wait_until_held(BACKFILLS)
        self._launch(LATER)
        self._terminate_hold("halt")
        self.dev.reload()
        self._wait_until_held(LATER)
        self.dev.stop()
        self.dev.start()
        self._let_provider_work()
        self._settle()
        self._note_what_is_there()
        return self.story

    def _set_faults(self) -> None:
        bad = [f"ranged of {BAD} row {n};" for n in range(2)]
        again = [f"plain of again-0 row {n};" for n in range(2)]
        rules = [
            *({"kind": "line_error", "status": 400, "match": {"prompt": p}} for p in bad),
            *(
                {"kind": "line_error", "status": 400, "times": 1, "match": {"prompt": p}}
                for p in again
            ),
            {
                "kind": "finalizing_hold",
                "seconds": SLOW_SECONDS,
                "match": {"endpoint": "/v1/chat/completions"},
            },
        ]
        self.simulator.faults(*rules)

    def _terminate_stuck(self, name: str, *, route: str, after_commit: bool) -> None:
        """Terminate a request whose call does not come back."""
        hang = {"kind": "hang", "seconds": 60.0, "times": 1, "after_commit": after_commit}
        self.simulator.faults({**hang, "match": {"route": route}})
        run_id = self.dev.launch_asset_run(["plain"], f"{name}-0")
        self.dev.wait_until(
            lambda: any(
                rule["kind"] == "hang" and rule["match"] == {"route": route} and rule["struck"]
                for rule in self.simulator.state.faults.describe()
            ),
            f"the request hangs in {route}",
        )
        self.dev.terminate_runs([run_id])
        self.story.stuck[name] = self.dev.wait_run(run_id, 60).status

    def _launch(self, backfills: Mapping[str, Launch]) -> None:
        for name, launch in backfills.items():
            self.ids[name] = self.dev.launch_backfill(launch.assets, launch.partitions)

    def _materialize_alone(self) -> None:
        date, shop = GRID_ALONE.split("|")
        dimensions = {f"{TAG_PARTITION}/date": date, f"{TAG_PARTITION}/shop": shop}
        self.dev.launch_asset_run(["grid"], GRID_ALONE, tags=dimensions)
        self.dev.launch_asset_run(["odd"], ODD_ALONE)

    def _wait_until_held(self, backfills: Mapping[str, Launch]) -> None:
        for name, launch in backfills.items():

            def is_held(name: str = name, count: int = launch.requests) -> bool:
                backfill = self.dev.backfill(self.ids[name])
                assert backfill.is_open, backfill
                requests = [r for r in backfill.runs if not _is_hold(r)]
                assert not any(r.status == "FAILURE" for r in requests), backfill
                return len(requests) == count and all(r.status == "SUCCESS" for r in requests)

            self.dev.wait_until(is_held, f"backfill {name!r} waits", timeout_s=600)

    def _terminate_hold(self, name: str) -> None:
        (hold,) = [run for run in self.dev.backfill(self.ids[name]).runs if _is_hold(run)]
        refusals = self.dev.terminate_runs([hold.run_id])
        assert refusals == {hold.run_id: None}

    def _let_provider_work(self) -> None:
        """Let time pass until all backfills have ended; meddle with one of them."""

        def all_ended() -> bool:
            self.simulator.advance_time(BATCH_SECONDS)
            self._execute_again()
            return all(not self.dev.backfill(one).is_open for one in self.ids.values())

        self.dev.wait_until(all_ended, "all backfills have ended", timeout_s=600)

    def _execute_again(self) -> None:
        """Execute the run again that failed with its verdict; then let the slow batch end."""
        story, backfill = self.story, self.dev.backfill(self.ids["again"])
        counts = backfill.assets.get("plain")
        if counts is None or not backfill.is_open:
            return
        if story.failed_once is None and counts.failed:
            story.failed_once = backfill
            (failed,) = [run for run in backfill.runs if run.status == "FAILURE"]
            self.dev.reexecute(failed.run_id)
        elif story.failed_once is not None and story.turned_green is None and counts.materialized:
            story.turned_green = backfill
            self.simulator.advance_time(SLOW_SECONDS)

    def _settle(self) -> None:
        """Wait until everything that was cancelled has come to its end."""

        def is_settled() -> bool:
            self.simulator.advance_time(BATCH_SECONDS)
            with SQLiteStorage(self.story.folder / "state.sqlite3") as store:
                runs = [run for run in store.list_runs() if not run.state.is_terminal]
                waiting = [w for w in store.list_waiters() if w.state.value == "open"]
            return not runs and not waiting and not self._open_holds()

        self.dev.wait_until(is_settled, "nothing is left to do", timeout_s=600)

    def _open_holds(self) -> list[RunInfo]:
        return [run for run in self.dev.runs({TAG_KIND: "hold"}) if not run.is_finished]

    def _note_what_is_there(self) -> None:
        story, dev = self.story, self.dev
        story.backfills = {name: dev.backfill(one) for name, one in self.ids.items()}
        assets = {asset for launch in BACKFILLS.values() for asset in launch.assets}
        story.materializations = {asset: dev.materializations(asset) for asset in sorted(assets)}
        story.ledger = self.simulator.state.ledger_report(entries=True)
        story.failed_ticks = dev.failed_ticks()
        story.open_holds = self._open_holds()
        with SQLiteStorage(story.folder / "state.sqlite3") as store:
            story.waiters, story.runs = store.list_waiters(), store.list_runs()


def _is_hold(run: RunInfo) -> bool:
    return run.tags.get(TAG_KIND) == "hold"


def is_range(run: RunInfo) -> bool:
    """Whether a Dagster run is for several partitions."""
    return TAG_PARTITION_RANGE_START in run.tags
