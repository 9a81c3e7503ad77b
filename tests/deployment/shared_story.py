"""One backfill per code location, in a deployment that shares everything between machines.

Dagster's own storage and the state of the batch runs are two databases of one PostgreSQL server,
artifacts and outputs lie on S3. Two code locations give each step a process; the steps of the
third, where Redis is installed, are done by two Celery workers.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from dagster import DagsterEventType, DagsterInstance

from batchor_core import PostgresStorage
from batchor_core.model.records import RunRecord
from batchor_core.simulator import Simulator
from batchor_dagster.constants import TAG_KIND
from tests.artifacts.servers import ObjectStore, moto
from tests.core.postgres import postgres_databases
from tests.deployment.backfilling import (
    BATCH_SECONDS,
    DAYS,
    finish,
    hold_over_two_looks,
    workspace,
)
from tests.deployment.services import celery_worker, missing_for_celery, redis
from tests.e2e.dagster_dev import Backfill, BackfillWait, DagsterDev
from tests.e2e.still_provider import provider_env, still_provider

PLACES = ("east", "west")
QUEUE = "queue"
_STORAGE = """
storage:
  postgres:
    postgres_url: {url}
"""


@dataclass(frozen=True, kw_only=True)
class SharedStory:
    """What was seen of the deployment.

    Attributes:
        held: Each location's backfill after the daemon had looked at it twice, the provider
            working.
        ends: How each backfill ended.
        tables: What was stored, by ``<asset>/<partition>``.
        batch_runs: All that the store knows.
        workers: Names of the Celery workers that did the steps, by what the Dagster run was for.
        warnings: What the Dagster runs warned of.
        ledger: What the provider says that it did.
        paid_twice: Requests that the provider answered more than once.
    """

    held: Mapping[str, Backfill]
    ends: Mapping[str, BackfillWait]
    tables: Mapping[str, pl.DataFrame]
    batch_runs: Sequence[RunRecord]
    workers: Mapping[str, set[str]]
    warnings: Sequence[str]
    ledger: Mapping[str, Any]
    paid_twice: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class _Deployment:
    """The services that the code locations share, by the variables that they are found by."""

    folder: Path
    env: Mapping[str, str]
    dagster_url: str
    files: ObjectStore
    locations: Sequence[tuple[str, str]]


def tell(folder: Path) -> SharedStory:
    """Hold one backfill per code location while the daemon looks twice, and let go."""
    with still_provider(BATCH_SECONDS) as running, _deployment(folder, running) as deployed:
        dev = DagsterDev(
            target=workspace(folder, deployed.locations),
            env=deployed.env,
            home=folder / "home",
            extra_yaml=_STORAGE.format(url=deployed.dagster_url),
        )
        with dev:
            return _tell(dev, running, deployed)


@contextmanager
def _deployment(folder: Path, running: Simulator) -> Iterator[_Deployment]:
    with ExitStack() as stack:
        new_database = stack.enter_context(postgres_databases())
        files = stack.enter_context(moto())
        env = {
            **provider_env(running),
            "BATCHOR_STATE": new_database(),
            "BATCHOR_ARTIFACTS": files.new_root(),
            "BATCHOR_OUT": files.new_root(),
            "AWS_ENDPOINT_URL": files.endpoint,
            "AWS_ACCESS_KEY_ID": files.options["key"],
            "AWS_SECRET_ACCESS_KEY": files.options["secret"],
        }
        locations = [(place, "shared_project") for place in PLACES]
        if missing_for_celery() is None:
            env["CELERY_BROKER"] = broker = stack.enter_context(redis(folder))
            for name, queue in (("first", "requests"), ("second", "dagster")):
                stack.enter_context(celery_worker(name, queue, broker, folder, env))
            locations.append((QUEUE, "celery_project"))
        # SQLAlchemy 2.1 takes `postgresql://` for psycopg 3, which dagster-postgres cannot use.
        dagster_url = new_database().replace("postgresql://", "postgresql+psycopg2://")
        yield _Deployment(
            folder=folder, env=env, dagster_url=dagster_url, files=files, locations=locations
        )


def _tell(dev: DagsterDev, running: Simulator, deployed: _Deployment) -> SharedStory:
    places = [place for place, _ in deployed.locations]
    backfills = {
        place: dev.launch_backfill([f"{place}_answers", f"{place}_report"], DAYS)
        for place in places
    }
    held = hold_over_two_looks(dev, list(backfills.values()))
    ends = {place: finish(dev, running, backfills[place]) for place in places}
    with (
        PostgresStorage(deployed.env["BATCHOR_STATE"]) as store,
        DagsterInstance.from_config(str(dev.home)) as instance,
    ):
        return SharedStory(
            held=dict(zip(places, held, strict=True)),
            ends=ends,
            tables=_tables(deployed),
            batch_runs=store.list_runs(),
            workers=_workers(instance),
            warnings=_warnings(instance),
            ledger=running.state.ledger_report(entries=True),
            paid_twice=running.ledger().paid_twice(),
        )


def _tables(deployed: _Deployment) -> dict[str, pl.DataFrame]:
    bucket = deployed.env["BATCHOR_OUT"].removeprefix("s3://")
    files, tables = deployed.files.filesystem(), {}
    for path in files.find(bucket):
        with files.open(path, "rb") as file:
            tables[path.removeprefix(f"{bucket}/").removesuffix(".parquet")] = pl.read_parquet(file)
    return tables


def _workers(instance: DagsterInstance) -> dict[str, set[str]]:
    """Which Celery workers did steps of requests, of ``batchor_advance`` and of the others."""
    workers: dict[str, set[str]] = {}
    for run in instance.get_runs():
        for entry in instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT):
            metadata = entry.get_dagster_event().engine_event_data.metadata
            if (worker := metadata.get("Celery worker")) is not None:
                kind = run.tags.get(TAG_KIND, "request")
                workers.setdefault(kind, set()).add(str(worker.value).partition("@")[0])
    return workers


def _warnings(instance: DagsterInstance) -> list[str]:
    return [
        entry.user_message
        for run in instance.get_runs()
        for entry in instance.all_logs(run.run_id)
        if entry.level >= logging.WARNING and entry.dagster_event is None
    ]
