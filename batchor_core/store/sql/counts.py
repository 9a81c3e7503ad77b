"""Where a run's items are and what they cost: sums over its chunks and submissions."""

from dataclasses import replace

from sqlalchemy import ColumnElement, case, func, select

from batchor_core.errors import RunNotFoundError
from batchor_core.model.records import InFlight, RunCounts, Usage
from batchor_core.model.states import ChunkState, RunState, SubmissionState
from batchor_core.store.sql.tables import chunks, runs, submissions
from batchor_core.store.sql.transaction import Aggregate, Transaction


class Counts(Aggregate):
    """The sums' part of the store."""

    def counts(self, run_id: str) -> RunCounts:
        """See ``Store.counts``."""
        run = select(runs.c.state, runs.c.total_items).where(runs.c.run_id == run_id)
        with self._read() as tx:
            row = tx.execute(run).one_or_none()
            if row is None:
                raise RunNotFoundError(f"no run {run_id!r} in {self._database.location}")
            return count_items(tx, run_id, row.state, row.total_items)

    def usage(self, run_id: str) -> Usage:
        """See ``Store.usage``."""
        with self._read() as tx:
            return sum_usage(tx, run_id)

    def in_flight(self, namespace: str | None = None) -> InFlight:
        """See ``Store.in_flight``."""
        statement = select(
            func.count().label("batches"), _sum(chunks.c.item_count).label("items")
        ).where(chunks.c.state == ChunkState.SUBMITTED)
        if namespace is not None:
            joined = statement.join(runs, runs.c.run_id == chunks.c.run_id)
            statement = joined.where(runs.c.namespace == namespace)
        with self._read() as tx:
            sums = tx.execute(statement).mappings().one()
        return InFlight(batches=sums["batches"], items=int(sums["items"]))


def count_items(tx: Transaction, run_id: str, state: RunState, total: int) -> RunCounts:
    """Count the run's items.

    An item is counted once: with its chunk while that is ready, submitted or abandoned; with the
    submission that gave it a final outcome; or with the one whose retries are not packed yet. A
    split chunk counts nothing, its children do. In a terminal run all that is unanswered failed.
    """
    in_chunks = _items_by_chunk_state(tx, run_id)
    counts = RunCounts(
        total=total,
        ready=in_chunks.get(ChunkState.READY, 0),
        in_flight=in_chunks.get(ChunkState.SUBMITTED, 0),
        **_outcomes(tx, run_id),
    )
    failed = counts.failed + in_chunks.get(ChunkState.ABANDONED, 0)
    if not state.is_terminal:
        return replace(counts, failed=failed)
    unanswered = counts.retrying + counts.ready + counts.in_flight
    return replace(counts, failed=failed + unanswered, retrying=0, ready=0, in_flight=0)


def sum_usage(tx: Transaction, run_id: str) -> Usage:
    """Add up the collected submissions; one without a price makes the cost unknown."""
    parts = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
    statement = select(
        func.count().label("collected"),
        func.count(submissions.c.cost_usd).label("priced"),
        func.sum(submissions.c.cost_usd).label("cost_usd"),
        *(_sum(submissions.c[part]).label(part) for part in parts),
    ).where(*_collected(run_id))
    sums = tx.execute(statement).mappings().one()
    return Usage(
        **{part: int(sums[part]) for part in parts},
        cost_usd=(sums["cost_usd"] or 0.0) if sums["priced"] == sums["collected"] else None,
    )


def _items_by_chunk_state(tx: Transaction, run_id: str) -> dict[ChunkState, int]:
    statement = (
        select(chunks.c.state, func.sum(chunks.c.item_count).label("item_count"))
        .where(chunks.c.run_id == run_id)
        .group_by(chunks.c.state)
    )
    # PostgreSQL sums BIGINT into NUMERIC, hence int().
    return {row.state: int(row.item_count) for row in tx.execute(statement)}


def _outcomes(tx: Transaction, run_id: str) -> dict[str, int]:
    unpacked = case((submissions.c.retries_packed, 0), else_=submissions.c.retry_count)
    statement = select(
        _sum(submissions.c.ok_count).label("ok"),
        _sum(submissions.c.failed_count).label("failed"),
        _sum(submissions.c.reused_count).label("reused"),
        _sum(unpacked).label("retrying"),
    ).where(*_collected(run_id))
    sums = tx.execute(statement).mappings().one()
    return {name: int(items) for name, items in sums.items()}


def _sum(part: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(part), 0)


def _collected(run_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        submissions.c.run_id == run_id,
        submissions.c.state == SubmissionState.COLLECTED,
    )
