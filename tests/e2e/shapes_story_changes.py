"""Changes on the way in one real ``dagster dev``: declarations, assets, partitions, sensors.

The provider's clock stands still until everything waits: then what is asked for is changed, and the
code location is reloaded; only then does the provider work.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchor_core import SQLiteStorage
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.simulator import Simulator
from batchor_dagster.constants import (
    TAG_KIND,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
)
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.e2e.dagster_dev import AssetEvent, Backfill, DagsterDev, RunInfo
from tests.e2e.still_provider import provider_env, still_provider

PROJECT = Path(__file__).parent / "projects" / "shapes_changing_project.py"
BATCH_SECONDS = 10.0
OLD = {"model": "gpt-4.1-mini", "system_prompt": "Be kind.", "words": {}, "has_removed": True}
NEW = {
    "model": "gpt-4.1-nano",
    "system_prompt": "Be stern.",
    "words": {"d1": "second"},
    "has_removed": False,
}
FILES = ["f0", "f1", "f2"]
LOOSE_FILES = ["f3", "f4", "f5"]
"""Asked for by one Dagster run without a backfill."""

GONE = ["f1", "f4"]
BACKFILLS: dict[str, tuple[str, list[str]]] = {
    "changing": ("changing", ["d0", "d1"]),
    "range": ("changing_range", ["d0", "d1", "d2", "d3"]),
    "removed": ("removed", ["d0"]),
    "files": ("files", FILES),
    "configured": ("configured", ["d3", "d4", "d5"]),
}
"""By name: the asset and its partitions."""

LATER: dict[str, tuple[str, list[str]]] = {
    "changed": ("changing", ["d0"]),
    "changed in range": ("changing_range", ["d1"]),
}
"""Launched after the change, while what they change is in flight."""

DRY, TRIED, WITHOUT_SENSORS = "d0", "d6", "d8"
"""Partitions of ``configured``: of a dry run, of a preview, and of one without sensors."""

REFRESHED = {"d3": "failed", "d4": "all", "d5": "changed", TRIED: "changed"}


@dataclass(kw_only=True)
class Story:
    """What was seen.

    Attributes:
        backfills: How each ended, by its name.
        dry_run: The Dagster run of the dry run.
        log_without_sensors: Of the request that was launched while the sensors were off.
        materialized_without_sensors: Whether its partition was materialized while they were.
        materializations: By asset.
        observations: Of ``configured``.
        ledger: What the provider says that it did.
        refreshes: The Dagster run that asked again, by partition.
    """

    folder: Path
    backfills: dict[str, Backfill] = field(default_factory=dict)
    dry_run: RunInfo | None = None
    log_without_sensors: Sequence[str] = ()
    materialized_without_sensors: bool = True
    refreshes: dict[str, str] = field(default_factory=dict)
    materializations: Mapping[str, Sequence[AssetEvent]] = field(default_factory=dict)
    observations: Sequence[AssetEvent] = ()
    ledger: Mapping[str, Any] = field(default_factory=dict)
    failed_ticks: Sequence[str] = ()
    dagster_runs: Sequence[RunInfo] = ()
    waiters: Sequence[Waiter] = ()
    runs: Sequence[RunRecord] = ()

    def times_materialized(self, asset: str) -> Counter[str | None]:
        """How often each partition of an asset was materialized."""
        return Counter(event.partition for event in self.materializations[asset])

    def waiters_of(self, asset: str, partition: str) -> list[Waiter]:
        """Who waited for a partition, oldest first."""
        return [w for w in self.waiters if w.asset == asset and partition in w.partitions]

    def paid_by(self, dagster_run: str) -> int:
        """How many requests were executed for what a Dagster run asked for."""
        ours = {w.run_id for w in self.waiters if w.payload["dagster_run"] == dagster_run}
        return sum(e["billed"] for e in self.ledger["entries"] if e["run"] in ours)

    def batches_of(self, run_id: str) -> list[str]:
        """Status of the provider batches of a batch run."""
        return [b["status"] for b in self.ledger["batches"].values() if b["run"] == run_id]


def tell(folder: Path) -> Story:
    """Tell it all; takes a few minutes."""
    with still_provider(BATCH_SECONDS) as simulator:
        env = {"SHAPES_FOLDER": str(folder), **provider_env(simulator)}
        _declare(folder, OLD)
        with DagsterDev(target=["-f", str(PROJECT)], env=env, home=folder / "home") as dev:
            return _Teller(dev, simulator, Story(folder=folder)).tell()


def _declare(folder: Path, settings: Mapping[str, Any]) -> None:
    (folder / "settings.json").write_text(json.dumps(settings))


class _Teller:
    def __init__(self, dev: DagsterDev, simulator: Simulator, story: Story) -> None:
        self.dev = dev
        self.simulator = simulator
        self.story = story
        self.ids: dict[str, str] = {}

    def tell(self) -> Story:
        fault = {"kind": "line_error", "status": 400, "times": 1}
        self.simulator.faults({**fault, "match": {"prompt": "configured of d3 row 2;"}})
        self._dry_run()
        self._ask()
        self._change()
        self._ask_for_what_changed()
        self._ask_without_sensors()
        self._let_provider_work(self._all_ended, "all backfills have ended")
        self._let_provider_work(self._is_settled, "nothing is left to do")
        self._ask_again()
        self._let_provider_work(self._is_settled, "nothing is left to do")
        self._note_what_is_there()
        return self.story

    def _dry_run(self) -> None:
        run_id = self._configured(DRY, dry_run=True)
        self.story.dry_run = self.dev.wait_run(run_id, 120)
        assert self.simulator.state.ledger_report()["batches"] == {}

    def _ask(self) -> None:
        self.dev.add_partitions("files", [*FILES, *LOOSE_FILES])
        self._launch(BACKFILLS)
        self._configured(TRIED, preview_rows=1)
        ends = {TAG_PARTITION_RANGE_START: "f3", TAG_PARTITION_RANGE_END: "f5"}
        self.dev.launch_asset_run(["files"], tags=ends)
        self.dev.launch_asset_run(["source"], "d0")
        (self.story.folder / "wanted").write_text("d7")
        asked = [("automated", "d0"), ("asked", "d7"), ("files", "f3")]
        self._wait_for_waiters([*asked, *_partitions(BACKFILLS)], 1)

    def _change(self) -> None:
        _declare(self.story.folder, NEW)
        self.dev.delete_partitions("files", GONE)
        self.dev.reload()

    def _ask_for_what_changed(self) -> None:
        self._launch(LATER)
        self._wait_for_waiters(_partitions(LATER), 2)

    def _ask_without_sensors(self) -> None:
        """Switch the sensors off and on again; the provider works in between."""
        for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
            self.dev.set_sensor(sensor, running=False)
        run_id = self._configured(WITHOUT_SENSORS)
        assert self.dev.wait_run(run_id, 180).status == "SUCCESS"
        self.story.log_without_sensors = self.dev.run_log(run_id)
        self.simulator.advance_time(BATCH_SECONDS)
        materialized = {event.partition for event in self.dev.materializations("configured")}
        self.story.materialized_without_sensors = WITHOUT_SENSORS in materialized
        for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
            self.dev.set_sensor(sensor, running=True)

    def _ask_again(self) -> None:
        for partition, refresh in REFRESHED.items():
            self.story.refreshes[partition] = self._configured(partition, refresh=refresh)
        for run_id in self.story.refreshes.values():
            assert self.dev.wait_run(run_id, 180).status == "SUCCESS"

    def _configured(self, partition: str, **config: Any) -> str:
        run_config = {"ops": {"configured": {"config": config}}}
        return self.dev.launch_asset_run(["configured"], partition, run_config=run_config)

    def _launch(self, backfills: Mapping[str, tuple[str, list[str]]]) -> None:
        for name, (asset, partitions) in backfills.items():
            self.ids[name] = self.dev.launch_backfill([asset], partitions)

    def _wait_for_waiters(self, which: Sequence[tuple[str, str]], count: int) -> None:
        """Wait until so many requests for each of these partitions have come to their end."""

        def all_wait() -> bool:
            statuses = {run.run_id: run.status for run in self.dev.runs()}
            done = Counter(
                (waiter.asset, partition)
                for waiter in self._waiters()
                if statuses.get(waiter.payload["dagster_run"]) == "SUCCESS"
                for partition in waiter.partitions
            )
            return all(done[one] >= count for one in which)

        self.dev.wait_until(all_wait, f"{which} wait", timeout_s=600)

    def _let_provider_work(self, condition: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.simulator.advance_time(BATCH_SECONDS)
            return condition()

        self.dev.wait_until(look, what, timeout_s=600)

    def _all_ended(self) -> bool:
        return all(not self.dev.backfill(one).is_open for one in self.ids.values())

    def _is_settled(self) -> bool:
        with SQLiteStorage(self.story.folder / "state.sqlite3") as store:
            going = [run for run in store.list_runs() if not run.state.is_terminal]
        waiting = [waiter for waiter in self._waiters() if waiter.state.value == "open"]
        unfinished = [run for run in self.dev.runs() if not run.is_finished]
        return not going and not waiting and not unfinished and self._watchers_are_done()

    def _watchers_are_done(self) -> bool:
        """Whether what is automated downstream has run: nothing else tells that it will."""
        assets = ("follower", "watcher")
        return all(self.dev.materializations(asset) for asset in assets)

    def _waiters(self) -> list[Waiter]:
        with SQLiteStorage(self.story.folder / "state.sqlite3") as store:
            return store.list_waiters()

    def _note_what_is_there(self) -> None:
        story, dev = self.story, self.dev
        story.backfills = {name: dev.backfill(one) for name, one in self.ids.items()}
        assets = ("changing", "changing_range", "files", "configured", "automated", "asked")
        story.materializations = {
            asset: dev.materializations(asset) for asset in (*assets, "follower", "watcher")
        }
        story.observations = dev.observations("configured")
        story.ledger = self.simulator.state.ledger_report(entries=True)
        story.failed_ticks = dev.failed_ticks()
        story.dagster_runs = dev.runs()
        story.waiters = self._waiters()
        with SQLiteStorage(story.folder / "state.sqlite3") as store:
            story.runs = store.list_runs()


def _partitions(backfills: Mapping[str, tuple[str, list[str]]]) -> list[tuple[str, str]]:
    return [(asset, key) for asset, keys in backfills.values() for key in keys]


def is_request(run: RunInfo) -> bool:
    """Whether nobody of us launched a Dagster run."""
    return TAG_KIND not in run.tags
