"""A Dagster instance and a simulated provider in one process, without a daemon.

What the daemon would do is done by hand: a tick of a sensor, and the Dagster runs that it asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from dagster import DagsterInstance, ExecuteInProcessResult
from dagster._core.definitions.partitions.context import partition_loading_context
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
from batchor_dagster.constants import ADVANCE_JOB, TAG_RUN_KEY
from batchor_dagster.sensor_state import ADVANCE_SENSOR, MATERIALISE_SENSOR

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
            "batchor": BatchorResource(state=str(folder / "state.sqlite3"), poll_s=0.001),
            "openai": OpenAIBatchResource(api_key=KEY, base_url=simulator.openai_base_url),
            "io_manager": BatchParquetIOManager(base_path=str(folder / "out")),
        }
        self.store = SQLiteStorage(folder / "state.sqlite3")
        self.cursor: str | None = None

    def request(
        self,
        *assets: Any,
        partition: str | None = "d0",
        tags: Mapping[str, str] | None = None,
        **options: Any,
    ) -> ExecuteInProcessResult:
        """Materialise assets as a user does."""
        return dg.materialize(
            list(assets),
            partition_key=partition,
            tags=dict(tags or {}),
            instance=self.instance,
            resources=self.resources,
            raise_on_error=False,
            **options,
        )

    def provider_works(self) -> None:
        """Let every working batch come to its end."""
        self.sim.advance_time(BATCH_SECONDS)

    def tick(self, sensor: str, assets: Sequence[Any]) -> Any:
        """Evaluate one of the sensors, and return what it asks for."""
        definitions = batchor_definitions(assets, resources=self.resources)
        repository = definitions.get_repository_def()
        cursor = self.cursor if sensor == ADVANCE_SENSOR else None
        with (
            # As Dagster's code server does it, for dynamic partitions.
            partition_loading_context(dynamic_partitions_store=self.instance),
            dg.build_sensor_context(
                instance=self.instance,
                cursor=cursor,
                repository_def=repository,
                resources=self.resources,
            ) as context,
        ):
            data = repository.get_sensor_def(sensor).evaluate_tick(context)
        if sensor == ADVANCE_SENSOR:
            self.cursor = data.cursor
        return data

    def advance_tick(self, *assets: Any) -> list[dg.RunRequest]:
        """Evaluate the advance sensor."""
        return list(self.tick(ADVANCE_SENSOR, assets).run_requests or ())

    def materialise_tick(self, *assets: Any) -> list[dg.RunRequest]:
        """Evaluate the materialise sensor."""
        return list(self.tick(MATERIALISE_SENSOR, assets).run_requests or ())

    def launch(self, request: dg.RunRequest, *assets: Any) -> ExecuteInProcessResult:
        """Execute what a sensor asked for."""
        definitions = batchor_definitions(assets, resources=self.resources)
        tags = {**request.tags, TAG_RUN_KEY: str(request.run_key)}
        if request.asset_selection is None:
            return definitions.resolve_job_def(ADVANCE_JOB).execute_in_process(
                run_config=request.run_config,
                tags=tags,
                instance=self.instance,
                raise_on_error=False,
            )
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=list(request.asset_selection),
            partition_key=request.partition_key,
            tags=tags,
            instance=self.instance,
            raise_on_error=False,
        )

    def drive(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Advance until nothing heavy is due, the provider working whenever it is waited for."""
        results: list[ExecuteInProcessResult] = []
        for _ in range(20):
            requests = self.advance_tick(*assets)
            if not requests:
                self.provider_works()
                requests = self.advance_tick(*assets)
            if not requests:
                return results
            results += [self.launch(request, *assets) for request in requests]
        raise AssertionError("the batch runs do not come to an end")

    def serve(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Materialise whatever is ready, until a tick asks for nothing and ends nothing."""
        results: list[ExecuteInProcessResult] = []
        while True:
            before = self.open_waiters
            requests = self.materialise_tick(*assets)
            if not requests and self.open_waiters == before:
                return results
            results += [self.launch(request, *assets) for request in requests]

    def finish(self, *assets: Any) -> list[ExecuteInProcessResult]:
        """Do all that the daemon would do until nothing is left."""
        self.serve(*assets)  # ends what nobody wants any more
        self.drive(*assets)
        return self.serve(*assets)

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

    def materialised(self, asset: str = "answers") -> list[str | None]:
        """The partitions that were materialised, oldest first."""
        records = self.instance.fetch_materializations(dg.AssetKey(asset), limit=1000).records
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
    home.mkdir()
    clock = SimulatorClock(monotonic=lambda: 0.0)
    with (
        Simulator(SimulatorOptions(**settings), clock=clock) as simulator,
        DagsterInstance.local_temp(
            str(home), overrides={"telemetry": {"enabled": False}}
        ) as instance,
    ):
        world = World(folder, simulator, instance)
        try:
            yield world
        finally:
            world.store.close()
