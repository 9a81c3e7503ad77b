"""Many waiting partitions in a world: copies of one request, without a Dagster run for each."""

import dataclasses
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
from sqlalchemy import Connection, Engine, event

from batchor_core.ids import new_waiter_id
from batchor_core.model.records import Identity, Lease, NewRun, RunRecord
from batchor_core.model.states import RunState, SubmissionState
from batchor_core.store.orchestration import MemberClaim, WaiterRequest
from batchor_core.testing.records import new_chunk, new_submission
from batchor_dagster import batch_asset
from batchor_dagster.constants import TAG_RUN_KEY
from tests.dagster.world import MODEL, World, answers_asset, rows_of

MANY = dg.StaticPartitionsDefinition([f"p{n:03}" for n in range(400)])
POLLED_LATER = timedelta(hours=1)


def crowded_asset() -> dg.AssetsDefinition:
    """Return a batch asset ``answers`` with hundreds of partitions."""
    return answers_asset(partitions_def=MANY)


def small_asset() -> dg.AssetsDefinition:
    """Return another one, ``small``."""

    @batch_asset(model=MODEL, partitions_def=MANY)
    def small(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    return small


class Crowd:
    """Adds waiting partitions to a world.

    Args:
        world: Where.
        asset: One of its batch assets; a partition of it is requested for real.
    """

    def __init__(self, world: World, asset: dg.AssetsDefinition) -> None:
        self.world = world
        self.store = world.store
        assert world.request(asset, partition="p399").success
        self.seed: RunRecord = world.run
        (self.submission,) = self.store.list_submissions(self.seed.run_id)
        (self.waiter,) = world.waiters

    def add(
        self, *partitions: str, asset: str = "answers", is_sent: bool = True, **payload: Any
    ) -> list[str]:
        """Let each partition wait in a batch run of its own; returns their ids."""
        return [self._add(key, asset, payload, is_sent=is_sent) for key in partitions]

    def _add(self, key: str, asset: str, payload: dict[str, Any], *, is_sent: bool) -> str:
        run_id = f"run-{asset}-{key}"
        fields = {field.name for field in dataclasses.fields(NewRun)}
        values = {name: getattr(self.seed, name) for name in fields}
        self.store.create_run(NewRun(**values | {"run_id": run_id, "predecessor": None}))
        lease = self._lease(run_id)
        chunk = self.store.seal_chunk(lease, new_chunk(1), {})
        self.store.finish_ingestion(lease, "f")
        identity = Identity(namespace=self.waiter.namespace, asset=asset, partition=key)
        request = f"request-{key}"
        own = {"dagster_run": request, "root_run": request, "selection": {asset: []}}
        self.store.claim(
            run_id,
            [MemberClaim(identity=identity, fingerprint="f", item_count=1)],
            WaiterRequest(
                waiter_id=new_waiter_id(),
                namespace=self.waiter.namespace,
                asset=asset,
                partitions=(key,),
                payload={**self.waiter.payload, **own, **payload},
            ),
        )
        if is_sent:
            self._send(lease, chunk)
        self.store.release_lease(lease)
        return run_id

    def _send(self, lease: Lease, chunk: Any) -> None:
        new = new_submission(
            lease.run_id, chunk, account=self.submission.account, scope=self.submission.scope
        )
        self.store.intend(lease, new, self.store.scope_limits(new.scope))
        batch = self.world.sim.state.openai.create_batch(
            {
                "input_file_id": self.submission.upload_ref,
                "endpoint": "/v1/responses",
                "completion_window": "24h",
            }
        )
        self.store.activate(
            lease,
            new.submission_id,
            provider_batch_id=batch["id"],
            provider_status="in_progress",
            next_poll_at=datetime.now(UTC) + POLLED_LATER,
            adopted=False,
        )

    def _lease(self, run_id: str) -> Lease:
        lease = self.store.acquire_lease(run_id, "crowd", 60)
        assert lease is not None
        return lease

    def close(self, *run_ids: str) -> None:
        """Let batch runs come to a good end."""
        for run_id in run_ids:
            lease = self._lease(run_id)
            self.store.close_run(lease, RunState.SUCCEEDED)
            self.store.release_lease(lease)

    def make_due(self) -> None:
        """Let every poll be due now."""
        for run in self.store.list_runs():
            for one in self.store.list_submissions(run.run_id, states=[SubmissionState.ACTIVE]):
                self.store.note_poll(
                    one.submission_id,
                    provider_status="in_progress",
                    provider_counts=None,
                    next_poll_at=datetime.now(UTC),
                )

    def record(self, requests: Sequence[dg.RunRequest], status: dg.DagsterRunStatus) -> None:
        """Leave records of the Dagster runs that a sensor asked for, without executing them."""
        for request in requests:
            tags = {**request.tags, TAG_RUN_KEY: str(request.run_key)}
            self.world.instance.add_run(
                dg.DagsterRun(job_name="j", run_id=str(uuid.uuid4()), status=status, tags=tags)
            )


@contextmanager
def counted_statements() -> Iterator[Counter[str]]:
    """Count the SQL statements on our store and on Dagster's within the block."""
    counts: Counter[str] = Counter()

    def note(connection: Connection, *_: object) -> None:
        is_ours = str(connection.engine.url).endswith("state.sqlite3")
        counts["store" if is_ours else "dagster"] += 1

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", note)
