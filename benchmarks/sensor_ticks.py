"""What a tick of either sensor costs while many partitions wait.

    python benchmarks/sensor_ticks.py [--waiting 100 1000 10000] [--batch-runs 100] [--dsn URL]

One partition is requested for real; its records are then copied until so many partitions wait,
each with a provider batch at a simulator in another process. Without ``--batch-runs`` each
partition has a batch run of its own, which is the worst case. Prints for each kind of tick its
seconds (and those of CPU, which another load on the machine does not change), SQL statements on our
store and on Dagster's, calls to the provider, and Dagster runs asked for. Dagster is not running:
what a tick asks for is not launched.
"""

import argparse
import dataclasses
import http.client
import json
import logging
import tempfile
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import httpx2
import polars as pl
from dagster._core.execution.backfill import (  # noqa: TID251 - as its web server does
    BulkActionStatus,
    PartitionBackfill,
)
from simulator_process import simulator_process
from sqlalchemy import Connection, Engine, event, func, insert, select, update

from batchor_core import PostgresStorage, SQLiteStorage
from batchor_core.store.sql import tables
from batchor_core.store.sql.store import SqlStore
from batchor_dagster import (
    BatchorResource,
    BatchParquetIOManager,
    OpenAIBatchResource,
    batch_asset,
    batchor_definitions,
)
from batchor_dagster.constants import (
    TAG_BACKFILL,
    TAG_KIND,
    TAG_PARTITION,
    TAG_SERVED_IN_PROCESS,
    TAG_WAITING_FOR,
)
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR

KEY = "sk-benchmark"
WORKS_ALL_DAY = {"batch_seconds": 86_000, "validating_seconds": 0, "finalizing_seconds": 0}
BIG, SMALL = "big", "small"
"""Two backfills: the second one is cancelled."""
COPIED = (tables.runs, tables.leases, tables.members, tables.chunks, tables.submissions)


class Meter:
    """Counts what a tick does to databases and provider."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        event.listen(Engine, "before_cursor_execute", self._note_statement)
        send = httpx2.Client.send

        def counting(client: Any, request: Any, **options: Any) -> Any:
            self.counts["calls"] += 1
            return send(client, request, **options)

        httpx2.Client.send = counting  # type: ignore[method-assign]  # the SDK's own client

    def _note_statement(self, connection: Connection, *_: Any) -> None:
        where = str(connection.engine.url)
        self.counts["store" if "batchor_state" in where else "dagster"] += 1


class Crowd:
    """A code location with many waiting partitions.

    Args:
        folder: Where everything lies.
        base_url: The simulator.
        dsn: PostgreSQL for our store; None for SQLite.
        waiting: How many partitions.
        batch_runs: Over how many batch runs they are spread.
    """

    def __init__(
        self, folder: Path, base_url: str, dsn: str | None, waiting: int, batch_runs: int
    ) -> None:
        self.waiting, self.batch_runs = waiting, min(batch_runs, waiting)
        self.base_url = base_url
        self.cursors: dict[str, str | None] = {}
        days = dg.StaticPartitionsDefinition([f"p{n:05}" for n in range(waiting)])

        @batch_asset(model="gpt-4.1-mini", partitions_def=days)
        def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
            return pl.DataFrame({"prompt": [f"Judge {context.partition_key}"]})

        self.asset = answers
        state = dsn or str(folder / "batchor_state.sqlite3")
        self.resources: dict[str, Any] = {
            "batchor": BatchorResource(state=state, artifacts=str(folder / "artifacts")),
            "openai": OpenAIBatchResource(api_key=KEY, base_url=f"{base_url}/v1"),
            "io_manager": BatchParquetIOManager(base_path=str(folder / "out")),
        }
        definitions = batchor_definitions([answers], resources=self.resources)
        self.repository = definitions.get_repository_def()
        self.store: SqlStore = PostgresStorage(dsn) if dsn else SQLiteStorage(state)
        (folder / "home").mkdir()
        self.instance_of = dg.DagsterInstance.local_temp(
            str(folder / "home"), overrides={"telemetry": {"enabled": False}}
        )

    def fill(self, instance: dg.DagsterInstance) -> None:
        """Request one partition, and copy it until all wait."""
        self.instance = instance
        for backfill in (BIG, SMALL):
            _add_backfill(instance, backfill)
        result = dg.materialize(
            [self.asset],
            partition_key="p00000",
            tags={TAG_BACKFILL: BIG, TAG_SERVED_IN_PROCESS: "true"},
            instance=instance,
            resources=self.resources,
        )
        seed = instance.get_run_by_id(result.run_id)
        assert seed is not None
        with self.store._database.read() as connection:  # noqa: SLF001 - a benchmark looks inside
            rows = {
                table: [dict(row) for row in connection.execute(select(table)).mappings()]
                for table in (*COPIED, tables.waiters)
            }
        submission = rows[tables.submissions][0]
        file_id = submission["upload_ref"]
        batches = _create_batches(self.base_url, file_id, self.batch_runs - 1)
        size = self.waiting // self.batch_runs
        with self.store._database.write() as connection:  # noqa: SLF001
            partitions = [f"p{n:05}" for n in range(size)]
            connection.execute(update(tables.waiters).values(partitions=partitions))
            for table in COPIED:
                copies = [
                    copy
                    for number, batch in enumerate(batches, start=1)
                    for row in rows[table]
                    for copy in _copies(table, row, number, batch, size)
                ]
                for start in range(0, len(copies), 500):
                    connection.execute(insert(table), copies[start : start + 500])
            waiters = [
                self._waiter(rows[tables.waiters][0], number, size)
                for number in range(1, self.batch_runs)
            ]
            for start in range(0, len(waiters), 500):
                connection.execute(insert(tables.waiters), waiters[start : start + 500])
        self._add_request_runs(seed)
        self._add_hold(seed, BIG)
        self._add_hold(seed, SMALL)

    def _waiter(self, row: dict[str, Any], number: int, size: int) -> dict[str, Any]:
        # The cancelled backfill is that of the newer half, at most a thousand.
        is_small = number >= self.batch_runs - min(1000, self.batch_runs // 2)
        backfill = SMALL if is_small else BIG
        request = f"request-{number:05}"
        payload = {
            **row["payload"],
            "dagster_run": request,
            "root_run": request,
            "backfill": backfill,
            "hold": f"hold-{backfill}",
        }
        copied = {k: v for k, v in row.items() if k != "ordinal"}
        partitions = [f"p{n:05}" for n in range(number * size, (number + 1) * size)]
        return copied | {
            "waiter_id": f"waiter-{number:05}",
            "run_id": f"run-{number:05}",
            "partitions": partitions,
            "payload": payload,
        }

    def _add_request_runs(self, seed: dg.DagsterRun) -> None:
        for number in range(1, self.batch_runs):
            tags = {**seed.tags, TAG_PARTITION: f"p{number:05}"}
            run = seed._replace(run_id=f"request-{number:05}", tags=tags)
            self.instance.run_storage.add_run(run)

    def _add_hold(self, seed: dg.DagsterRun, backfill: str) -> None:
        tags = {**seed.tags, TAG_KIND: "hold", TAG_WAITING_FOR: backfill, TAG_BACKFILL: backfill}
        # Not queued, as a hold is: Dagster wants to know where a queued run comes from.
        started = dg.DagsterRunStatus.STARTED
        hold = seed._replace(run_id=f"hold-{backfill}", tags=tags, status=started)
        self.instance.run_storage.add_run(hold)

    def tick(self, sensor: str) -> Any:
        """Evaluate a sensor, with the cursor that it left."""
        with (
            dg.partition_loading_context(dynamic_partitions_store=self.instance),
            dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursors.get(sensor),
                repository_def=self.repository,
                resources=self.resources,
            ) as context,
        ):
            data = self.repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursors[sensor] = data.cursor
        return data

    def set_polls(self, due: bool) -> None:
        """Make all polls due now, or none."""
        at = datetime.now(UTC) + timedelta(seconds=-1 if due else 3600)
        self._update(update(tables.submissions).values(next_poll_at=at))

    def end_batches(self, count: int) -> None:
        """Let some batches end at the provider."""
        newest = select(tables.submissions.c.provider_batch_id)
        newest = newest.order_by(tables.submissions.c.ordinal.desc()).limit(count)
        with self.store._database.read() as connection:  # noqa: SLF001
            ids = connection.execute(newest).scalars().all()
        _post_each(self.base_url, [f"/v1/batches/{batch_id}/cancel" for batch_id in ids], {})

    def finish_runs(self, count: int) -> None:
        """Close the oldest batch runs as succeeded."""
        oldest = select(tables.runs.c.run_id).order_by(tables.runs.c.ordinal).limit(count)
        self._update(
            update(tables.runs)
            .where(tables.runs.c.run_id.in_(oldest.scalar_subquery()))
            .values(state="succeeded", finished_at=datetime.now(UTC))
        )

    def cancel_small_backfill(self) -> None:
        """Cancel one of the backfills."""
        backfill = self.instance.get_backfill(SMALL)
        assert backfill is not None
        self.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELING))

    def open_waiters(self) -> int:
        """Return how many still wait."""
        statement = select(func.count()).where(tables.waiters.c.state == "open")
        with self.store._database.read() as connection:  # noqa: SLF001
            return int(connection.execute(statement).scalar_one())

    def _update(self, statement: Any) -> None:
        with self.store._database.write() as connection:  # noqa: SLF001
            connection.execute(statement)


def _copies(
    table: Any, row: dict[str, Any], number: int, batch: str, size: int
) -> Iterator[dict[str, Any]]:
    copied = {name: value for name, value in row.items() if name != "ordinal"}
    copied["run_id"] = f"run-{number:05}"
    if table is tables.submissions:
        copied |= {"submission_id": f"sub-{number:05}", "key": f"key-{number:05}"}
        copied["provider_batch_id"] = batch
    if table is not tables.members:
        yield copied
        return
    for seq in range(size):
        yield copied | {"seq": seq, "partition": f"p{number * size + seq:05}"}


def _add_backfill(instance: dg.DagsterInstance, backfill_id: str) -> None:
    instance.add_backfill(
        PartitionBackfill(
            backfill_id=backfill_id,
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=1.0,
            asset_selection=[dg.AssetKey("answers")],
            partition_names=["p00000"],
        )
    )


def _create_batches(base_url: str, file_id: str, count: int) -> list[str]:
    body = {"input_file_id": file_id, "endpoint": "/v1/responses", "completion_window": "24h"}
    return [answer["id"] for answer in _post_each(base_url, ["/v1/batches"] * count, body)]


def _post_each(base_url: str, paths: list[str], body: dict[str, Any]) -> list[dict[str, Any]]:
    parts = urlsplit(base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    answers = []
    for path in paths:
        connection.request("POST", path, json.dumps(body), headers)
        answers.append(json.loads(connection.getresponse().read()))
    connection.close()
    return answers


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One kind of tick: what is done before it, and which sensor is asked."""

    name: str
    sensor: str
    prepare: Any


def scenarios(crowd: Crowd) -> list[Scenario]:
    """Return the ticks to measure; those that change much come last."""
    return [
        Scenario("nothing due", ADVANCE_SENSOR, lambda: crowd.set_polls(due=False)),
        Scenario("first poll of all", ADVANCE_SENSOR, lambda: crowd.set_polls(due=True)),
        Scenario("polls due, no change", ADVANCE_SENSOR, lambda: crowd.set_polls(due=True)),
        Scenario(
            "polls due, 50 ended",
            ADVANCE_SENSOR,
            lambda: (crowd.end_batches(50), crowd.set_polls(due=True)),
        ),
        Scenario("first tick", MATERIALIZE_SENSOR, lambda: None),
        Scenario("nothing ready", MATERIALIZE_SENSOR, lambda: None),
        Scenario("50 ready", MATERIALIZE_SENSOR, lambda: crowd.finish_runs(50)),
        Scenario("backfill cancelled", MATERIALIZE_SENSOR, crowd.cancel_small_backfill),
        Scenario("all ready", MATERIALIZE_SENSOR, lambda: crowd.finish_runs(crowd.batch_runs)),
    ]


def measure(crowd: Crowd, meter: Meter, only: str | None) -> None:
    """Print what each kind of tick costs."""
    for scenario in scenarios(crowd):
        if only and only not in scenario.name:
            continue
        scenario.prepare()
        meter.counts.clear()
        started, cpu = time.perf_counter(), time.process_time()
        data = crowd.tick(scenario.sensor)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        asked, before = len(data.run_requests or ()), crowd.open_waiters()
        print(
            f"{crowd.waiting:>7,} {crowd.batch_runs:>7,}  "
            f"{scenario.sensor.split('_')[1]:<11} {scenario.name:<22} "
            f"{seconds:>7.2f} s {cpu:>6.2f} s "
            f"{meter.counts['store']:>8,} {meter.counts['dagster']:>8,} "
            f"{meter.counts['calls']:>6,} {asked:>5} {before:>7,}",
            flush=True,
        )


@contextmanager
def _database(dsn: str | None) -> Iterator[str | None]:
    """Give an empty database of the server, named so that its statements can be told apart."""
    if dsn is None:
        yield None
        return
    from sqlalchemy import create_engine, make_url, text  # noqa: PLC0415 - only for PostgreSQL

    url = make_url(dsn).set(drivername="postgresql+psycopg")
    name = f"batchor_state_{uuid.uuid4().hex[:8]}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield url.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--waiting", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--batch-runs", type=int, help="default: one for each partition")
    parser.add_argument("--dsn", help="a PostgreSQL server, on which a database is created")
    parser.add_argument("--only", help="ticks whose name contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    meter = Meter()
    print(
        "waiting batch runs  sensor    tick                       time      CPU    store  "
        "dagster  calls asked   left"
    )
    for waiting in options.waiting:
        with (
            tempfile.TemporaryDirectory() as folder,
            simulator_process(**WORKS_ALL_DAY) as base_url,
            _database(options.dsn) as dsn,
        ):
            crowd = Crowd(Path(folder), base_url, dsn, waiting, options.batch_runs or waiting)
            with crowd.instance_of as instance:
                crowd.fill(instance)
                measure(crowd, meter, options.only)
            crowd.store.close()


if __name__ == "__main__":
    main()
