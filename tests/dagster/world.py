"""A Dagster instance and a simulated provider in one process, without a daemon.

What the daemon would do is done by hand: a tick of a sensor, and the Dagster runs that it asks for.
"""

import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from dagster import DagsterInstance, ExecuteInProcessResult
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run_iterator
from pydantic import BaseModel

from batchor_core import RetryPolicy, SQLiteStorage
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.model.states import WaiterState
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from batchor_dagster import (
    BatchorResource,
    BatchParquetIOManager,
    OpenAIBatchResource,
    batch_asset,
    batchor_definitions,
)
from batchor_dagster.constants import ASSET_JOB, TAG_SERVED_IN_PROCESS
from batchor_dagster.testing import InProcessDaemon
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR

MODEL = "gpt-4.1-mini"
KEY = "sk-test-5d1e8a4c7b"
BATCH_SECONDS = 100.0
DAYS = dg.StaticPartitionsDefinition([f"d{n}" for n in range(60)])
ROWS = 3


class Verdict(BaseModel):
    """A small structured answer."""

    label: str
    score: int


def rows_of(day: str, count: int = ROWS) -> pl.DataFrame:
    """Return prompts that say which day they belong to."""
    return pl.DataFrame(
        {"prompt": [f"Judge {day} row {n};" for n in range(count)]}, schema={"prompt": pl.String}
    )


def answers_asset(**options: Any) -> dg.AssetsDefinition:
    """Return a batch asset ``answers`` with a partition a day."""

    @batch_asset(
        **{
            "model": MODEL,
            "output": Verdict,
            "partitions_def": DAYS,
            "retries": RetryPolicy(delay_s=0),
            **options,
        }
    )
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    return answers


class World:
    """One Dagster instance, one provider, one store, over any number of code locations."""

    def __init__(self, folder: Path, simulator: Simulator, instance: DagsterInstance) -> None:
        self.folder = folder
        self.sim = simulator
        self.instance = instance
        self.resources: dict[str, Any] = {
            "batchor": BatchorResource(
                state=str(folder / "state.sqlite3"), poll_s=0.001, gone_after_s=0
            ),
            "openai": OpenAIBatchResource(api_key=KEY, base_url=simulator.openai_base_url),
            "io_manager": BatchParquetIOManager(base_path=str(folder / "out")),
        }
        self.store = SQLiteStorage(folder / "state.sqlite3")
        self.cursors: dict[str, str | None] = {}
        self.has_sensors = True
        self.pass_time: Callable[[float], None] = simulator.advance_time

    @property
    def cursor(self) -> str | None:
        """Of the advance sensor."""
        return self.cursors.get(ADVANCE_SENSOR)

    @cursor.setter
    def cursor(self, cursor: str | None) -> None:
        self.cursors[ADVANCE_SENSOR] = cursor

    def request(
        self,
        *assets: Any,
        partition: str | None = "d0",
        tags: Mapping[str, str] | None = None,
        **options: Any,
    ) -> ExecuteInProcessResult:
        """Materialize assets as a user does."""
        if self.has_sensors:  # else each request warns of them
            for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
                self.store.note_heartbeat("default", sensor, 30)
        return dg.materialize(
            list(assets),
            partition_key=partition,
            tags={TAG_SERVED_IN_PROCESS: "true", **(tags or {})},
            instance=self.instance,
            resources=self.resources,
            raise_on_error=False,
            **options,
        )

    def provider_works(self) -> None:
        """Let every working batch come to its end."""
        self.sim.advance_time(BATCH_SECONDS)

    def definitions(self, *assets: Any, **others: Any) -> dg.Definitions:
        """A code location of some assets, and of what else ``Definitions`` takes."""
        return dg.Definitions.merge(
            batchor_definitions(assets, resources=self.resources), dg.Definitions(**others)
        )

    def launch_job(
        self, definitions: dg.Definitions, name: str = ASSET_JOB, **options: Any
    ) -> ExecuteInProcessResult:
        """Launch a job of a code location, as the UI does."""
        job = definitions.get_repository_def().get_job(name)
        tags = {TAG_SERVED_IN_PROCESS: "true", **options.pop("tags", {})}
        return job.execute_in_process(
            instance=self.instance,
            raise_on_error=False,
            tags=tags,
            **{"partition_key": "d0", **options},
        )

    def daemon(self, assets: Sequence[Any]) -> InProcessDaemon:
        """Do the daemon's work for assets, or a code location; cursors are kept between calls."""
        (given, *_) = assets
        return InProcessDaemon(
            given if isinstance(given, dg.Definitions) else self.definitions(*assets),
            self.instance,
            store=self.store,
            namespace="default",
            pass_time=self.pass_time,
            waits_s=(BATCH_SECONDS,),
            cursors=self.cursors,
        )

    def tick(self, sensor: str, assets: Sequence[Any]) -> Any:
        """Evaluate one of the sensors, and return what it asks for."""
        return self.daemon(assets).tick(sensor)

    def advance_tick(self, *assets: Any) -> list[dg.RunRequest]:
        """Evaluate the advance sensor."""
        return list(self.tick(ADVANCE_SENSOR, assets).run_requests or ())

    def materialize_tick(self, *assets: Any) -> list[dg.RunRequest]:
        """Evaluate the materialize sensor."""
        return list(self.tick(MATERIALIZE_SENSOR, assets).run_requests or ())

    def launch(self, request: dg.RunRequest, *assets: Any) -> ExecuteInProcessResult:
        """Execute what a sensor asked for."""
        return self.daemon(assets).launch(request)

    def execute_again(self, result: ExecuteInProcessResult, *assets: Any) -> ExecuteInProcessResult:
        """Execute all steps of a Dagster run again, as the button in the UI does."""
        run = result.dagster_run
        job = dg.Definitions(
            assets=assets, resources=self.resources, executor=dg.in_process_executor
        ).resolve_implicit_global_asset_job_def()
        subset = job.get_subset(asset_selection=run.asset_selection)
        root = run.root_run_id or run.run_id
        again = self.instance.create_run_for_job(
            subset,
            run_config=run.run_config,
            tags={**run.tags, "dagster/parent_run_id": run.run_id, "dagster/root_run_id": root},
            parent_run_id=run.run_id,
            root_run_id=root,
            asset_selection=run.asset_selection,
        )
        events = list(execute_run_iterator(InMemoryJob(subset), again, self.instance))
        done = self.instance.get_run_by_id(again.run_id)
        assert done is not None
        return ExecuteInProcessResult(
            job_def=subset, event_list=events, dagster_run=done, output_capture={}
        )

    def drive(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Advance until nothing heavy is due, the provider working whenever it is waited for."""
        return self.daemon(assets).drive()

    def serve(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Materialize whatever is ready, until a tick asks for nothing and ends nothing."""
        return self.daemon(assets).serve()

    def finish(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Do all that the daemon would do until nothing is left."""
        return self.daemon(assets).finish()

    @property
    def runs(self) -> list[RunRecord]:
        """The batch runs that were sent or wait to be, oldest first."""
        runs = self.store.list_runs()
        return [run for run in reversed(runs) if self.store.list_members(run.run_id)]

    @property
    def run(self) -> RunRecord:
        """The only batch run."""
        (run,) = self.runs
        return run

    @property
    def waiters(self) -> list[Waiter]:
        """All waiters, oldest first."""
        return self.store.list_waiters()

    @property
    def open_waiters(self) -> int:
        """How many still wait."""
        return sum(waiter.state is WaiterState.OPEN for waiter in self.waiters)

    @property
    def batches(self) -> list[str]:
        """Status of all provider batches, oldest first."""
        report = self.sim.state.ledger_report()
        return [batch["status"] for batch in report["batches"].values()]

    def table(self, asset: str = "answers", partition: str | None = "d0") -> pl.DataFrame:
        """The stored table of an asset or of one of its partitions."""
        name = f"{asset}/{partition}.parquet" if partition else f"{asset}.parquet"
        return pl.read_parquet(self.folder / "out" / name)

    def materialized(self, asset: str = "answers") -> list[str | None]:
        """The partitions that were materialized, oldest first."""
        return self.materialized_of(dg.AssetKey(asset))

    def materialized_of(self, key: dg.AssetKey) -> list[str | None]:
        """The partitions of an asset that were materialized, oldest first."""
        records = self.instance.fetch_materializations(key, limit=1000).records
        return [record.partition_key for record in reversed(records)]

    def observations(self, asset: str = "answers") -> list[Mapping[str, Any]]:
        """Metadata of the observations, oldest first."""
        records = self.instance.fetch_observations(dg.AssetKey(asset), limit=1000).records
        found = [r.event_log_entry.asset_observation for r in reversed(records)]
        return [{k: v.value for k, v in o.metadata.items()} for o in found if o is not None]


def events(result: ExecuteInProcessResult, asset: str = "answers") -> list[str]:
    """The kinds of a run's events about one asset."""
    kinds = ("ASSET_OBSERVATION", "ASSET_MATERIALIZATION")
    return [
        event.event_type_value
        for event in result.all_events
        if event.event_type_value in kinds and event.asset_key == dg.AssetKey(asset)
    ]


def failure(result: ExecuteInProcessResult) -> str:
    """What a user reads of a failed run: the description of its failure."""
    (event,) = [e for e in result.all_events if e.is_step_failure]
    data = event.step_failure_data
    texts = [data.user_failure_data.description if data.user_failure_data else None]
    error = data.error
    while error is not None:
        texts.append(error.message)
        error = error.cause
    return "\n".join(text for text in texts if text)


def _open_instance(home: Path) -> DagsterInstance:
    """Open an instance with one file of events for all runs, and none for what steps print.

    To make such files for each run would take a third of the tests' time.
    """
    overrides = {
        "telemetry": {"enabled": False},
        "event_log_storage": {
            "module": "dagster._core.storage.event_log",
            "class": "ConsolidatedSqliteEventLogStorage",
            "config": {"base_dir": str(home / "history")},
        },
        "compute_logs": {
            "module": "dagster._core.storage.noop_compute_log_manager",
            "class": "NoOpComputeLogManager",
        },
    }
    return DagsterInstance.local_temp(str(home), overrides=overrides)


@cache
def _empty_home() -> Path:
    """Return the folder of an instance that nobody has used: to make its tables takes long."""
    folder = tempfile.mkdtemp(prefix="batchor-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = Path(folder) / "home"
    home.mkdir()
    with _open_instance(home):
        return home


@contextmanager
def open_world(folder: Path, **options: Any) -> Iterator[World]:
    """A world whose provider's time stands still until it is moved."""
    settings = {
        "batch_seconds": BATCH_SECONDS,
        "validating_seconds": 0,
        "finalizing_seconds": 0,
        "api_key": KEY,
        **options,
    }
    home = folder / "home"
    shutil.copytree(_empty_home(), home)
    clock = SimulatorClock(monotonic=lambda: 0.0)
    with (
        Simulator(SimulatorOptions(**settings), clock=clock) as simulator,
        _open_instance(home) as instance,
    ):
        world = World(folder, simulator, instance)
        try:
            yield world
        finally:
            world.store.close()


@contextmanager
def while_waiting(world: World, act: Callable[[], object], *, batches: int = 1) -> Iterator[None]:
    """Do something in another thread once the provider works on so many batches."""

    def watch() -> None:
        deadline = time.monotonic() + 30
        while world.batches.count("in_progress") < batches and time.monotonic() < deadline:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
