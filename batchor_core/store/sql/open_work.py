"""What is not settled yet, of one run, or of those runs of a namespace that need something now.

What is due is decided by ``executor.due``; what is asked of the database here never leaves out a
run that has something due, so that runs which only wait cost nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, Table, and_, exists, func, not_, or_, select

from batchor_core.errors import RunNotFoundError
from batchor_core.model.records import ChunkRecord, Event, RunRecord, SubmissionRecord
from batchor_core.model.states import (
    QUEUED_SUBMISSION_STATES,
    TERMINAL_RUN_STATES,
    UNCOLLECTED_SUBMISSION_STATES,
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
)
from batchor_core.store.protocol import OpenWork
from batchor_core.store.sql.submissions import as_submission, select_submissions
from batchor_core.store.sql.tables import (
    chunks,
    events,
    leases,
    members,
    runs,
    scopes,
    submissions,
)
from batchor_core.store.sql.transaction import Aggregate, Transaction, batched, record_columns

_RUN_COLUMNS = record_columns(runs, RunRecord)
_CHUNK_COLUMNS = record_columns(chunks, ChunkRecord)
_OPEN_RUNS = sorted(set(RunState) - TERMINAL_RUN_STATES)  # named: the index goes by state
_OPEN_CHUNKS = (ChunkState.READY, ChunkState.SUBMITTED)
_MOVES = (
    "answers.reused",
    "retries.packed",
    "run.budgeted",
    "run.controlled",
    "run.created",
    "run.ingested",
    "submission.activated",
    "submission.collected",
    "submission.ended",
)
"""What brings a run nearer to its end; tries that lead to nothing are journalled as well."""


class OpenWorkQueries(Aggregate):
    """The open work's part of the store."""

    def open_work(self, run_id: str) -> OpenWork:
        """See ``Store.open_work``."""
        with self._read() as tx:
            found = _open_work(tx, runs.c.run_id == run_id)
        if not found:
            raise RunNotFoundError(f"no run {run_id!r} in {self._database.location}")
        return found[0]

    def due_work(
        self,
        namespace: str,
        now: datetime,
        limit: int,
        *,
        scope: str | None = None,
        but: Collection[str] = (),
        but_paused: str | None = None,
    ) -> list[OpenWork]:
        """See ``OrchestratorStore.due_work``."""
        which = [*_claimed(namespace), _is_free(now), _by(runs.c.rests_until, now)]
        if but:
            which.append(runs.c.run_id.not_in(list(but)))
        if scope is None:
            which.append(_is_due(now))
        else:
            which += [runs.c.scope == scope, _may_submit(now)]
        if but_paused is not None:
            told = func.coalesce(runs.c.control_reason, "").startswith(but_paused, autoescape=True)
            which.append(not_(and_(runs.c.control == RunControlState.PAUSE, told)))
        turn = func.row_number().over(
            partition_by=runs.c.declaration_digest, order_by=runs.c.ordinal
        )
        order = (runs.c.setbacks, turn, runs.c.ordinal)
        statement = select(runs.c.run_id).where(*which).order_by(*order).limit(limit)
        with self._read() as tx:
            due = tx.execute(statement).scalars().all()
            found = {
                work.run.run_id: work
                for group in batched(due)
                for work in _open_work(tx, runs.c.run_id.in_(group))
            }
        return [found[run_id] for run_id in due]

    def count_open_runs(self, namespace: str) -> dict[tuple[str, RunControlState], int]:
        """See ``OrchestratorStore.count_open_runs``."""
        kinds = (runs.c.scope, runs.c.control)
        statement = select(*kinds, func.count().label("count")).where(*_claimed(namespace))
        with self._read() as tx:
            found = tx.execute(statement.group_by(*kinds)).all()
        return {(row.scope, row.control): row._mapping["count"] for row in found}  # noqa: SLF001

    def pauses_since(self, namespace: str, after_sequence: int, limit: int) -> list[Event]:
        """See ``OrchestratorStore.pauses_since``."""
        newest = func.max(events.c.sequence).label("sequence")
        sequences = (
            select(newest)
            .join(runs, runs.c.run_id == events.c.run_id)
            .where(
                *_claimed(namespace),
                runs.c.control == RunControlState.PAUSE,
                events.c.kind == "run.controlled",
                events.c.sequence > after_sequence,
            )
            .group_by(runs.c.run_id)
            .order_by(newest)
            .limit(limit)
        )
        statement = select(events).where(events.c.sequence.in_(sequences.scalar_subquery()))
        with self._read() as tx:
            found = tx.execute(statement.order_by(events.c.sequence)).mappings()
            return [Event(**row) for row in found]

    def unmoved_runs(self, namespace: str, before: datetime, limit: int) -> dict[str, datetime]:
        """See ``OrchestratorStore.unmoved_runs``."""
        moved_at = func.max(events.c.at).label("moved_at")
        statement = (
            select(runs.c.run_id, moved_at)
            .join(events, events.c.run_id == runs.c.run_id)
            .where(
                *_claimed(namespace),
                runs.c.created_at < before,  # few are that old, so that few journals are read
                events.c.kind.in_(_MOVES),
            )
            .group_by(runs.c.run_id)
            .having(moved_at < before)
            .order_by(moved_at, runs.c.run_id)
            .limit(limit)
        )
        with self._read() as tx:
            return {row.run_id: row.moved_at for row in tx.execute(statement)}

    def live_batches(self, scopes: Iterable[str]) -> dict[str, int]:
        """See ``OrchestratorStore.live_batches``."""
        statement = (
            select(submissions.c.scope, func.count().label("live"))
            .where(submissions.c.state.in_(sorted(QUEUED_SUBMISSION_STATES)))
            .group_by(submissions.c.scope)
        )
        with self._read() as tx:
            return {
                row.scope: row.live
                for group in batched(scopes)
                for row in tx.execute(statement.where(submissions.c.scope.in_(group)))
            }


def _claimed(namespace: str) -> list[ColumnElement[bool]]:
    """Return what holds for runs that go on and that somebody has claimed.

    A spooled run has no members yet.
    """
    return [
        runs.c.namespace == namespace,
        runs.c.state.in_(_OPEN_RUNS),
        exists().where(members.c.run_id == runs.c.run_id),
    ]


def _is_free(now: datetime) -> ColumnElement[bool]:
    """Whether nobody is advancing the run."""
    return ~exists().where(
        leases.c.run_id == runs.c.run_id, leases.c.owner.is_not(None), leases.c.expires_at > now
    )


def _is_due(now: datetime) -> ColumnElement[bool]:
    """Whether ``executor.due`` may find something that is due, but for sending what is ready."""
    runs_on = runs.c.control == RunControlState.RUN
    is_cancelled = runs.c.control == RunControlState.CANCEL
    create_ended = func.coalesce(submissions.c.create_ended_at, submissions.c.create_allowed_until)
    is_ingesting = runs.c.state == RunState.INGESTING
    return or_(
        _has(submissions, SubmissionState.ENDED, _by(submissions.c.next_poll_at, now)),
        _has(submissions, SubmissionState.INTENDED, _by(create_ended, now)),
        and_(is_cancelled, _has(submissions, SubmissionState.ACTIVE, *_may_be_cancelled(now))),
        and_(is_cancelled, _has(chunks, ChunkState.READY)),
        _has(chunks, ChunkState.READY, chunks.c.is_unwanted),
        _has(submissions, SubmissionState.ACTIVE, *_may_be_cancelled(now), _is_unwanted()),
        and_(runs_on, _has_retries(_by(submissions.c.retry_at, now))),
        and_(runs_on, is_ingesting),
        and_(
            runs.c.control != RunControlState.PAUSE,
            ~_has(chunks, *_OPEN_CHUNKS),
            ~_has(submissions, *UNCOLLECTED_SUBMISSION_STATES),
            or_(is_cancelled, and_(~is_ingesting, ~_has_retries())),
            ~_is_blocked(),
        ),
    )


def _may_submit(now: datetime) -> ColumnElement[bool]:
    """Whether the run may send a chunk now, for all that the store knows."""
    backs_off = exists().where(scopes.c.scope == runs.c.scope, scopes.c.backoff_until > now)
    return and_(
        runs.c.control == RunControlState.RUN,
        runs.c.state == RunState.RUNNING,
        _has(chunks, ChunkState.READY, _by(chunks.c.not_before, now)),
        ~backs_off,
        ~_is_blocked(),
    )


def _has(
    table: Table, *states_or_more: ChunkState | SubmissionState | ColumnElement[bool]
) -> ColumnElement[bool]:
    """Whether the run has a row in one of these states for which all conditions hold."""
    states = [each for each in states_or_more if isinstance(each, StrEnum)]
    more = [each for each in states_or_more if not isinstance(each, StrEnum)]
    return exists().where(table.c.run_id == runs.c.run_id, table.c.state.in_(states), *more)


def _has_retries(*more: ColumnElement[bool]) -> ColumnElement[bool]:
    return _has(submissions, SubmissionState.COLLECTED, _awaits_packing(), *more)


def _by(instant: ColumnElement[datetime | None], now: datetime) -> ColumnElement[bool]:
    """Whether an instant has come; one that is unknown has."""
    return or_(instant.is_(None), instant <= now)


def _may_be_cancelled(now: datetime) -> tuple[ColumnElement[bool], ...]:
    status = func.coalesce(submissions.c.provider_status, "")
    return (
        ~status.startswith("cancel"),
        submissions.c.is_provisional.is_(False),
        _by(submissions.c.next_cancel_at, now),
    )


def _is_unwanted() -> ColumnElement[bool]:
    return exists().where(
        chunks.c.run_id == submissions.c.run_id,
        chunks.c.seq == submissions.c.chunk_seq,
        chunks.c.is_unwanted,
    )


def _is_blocked() -> ColumnElement[bool]:
    before = runs.alias()
    return exists().where(before.c.run_id == runs.c.predecessor, before.c.state.in_(_OPEN_RUNS))


def _awaits_packing() -> ColumnElement[bool]:
    return and_(submissions.c.retry_count > 0, submissions.c.retries_packed.is_(False))


def _open_work(tx: Transaction, which: ColumnElement[bool]) -> list[OpenWork]:
    statement = select(*_RUN_COLUMNS).where(which).order_by(runs.c.ordinal)
    found = [RunRecord(**row) for row in tx.execute(statement).mappings()]
    ids = select(runs.c.run_id).where(which)
    chunks_of: dict[str, list[ChunkRecord]] = defaultdict(list)
    open_chunks = select(*_CHUNK_COLUMNS).where(
        chunks.c.run_id.in_(ids), chunks.c.state.in_(list(_OPEN_CHUNKS))
    )
    for row in tx.execute(open_chunks.order_by(chunks.c.run_id, chunks.c.seq)).mappings():
        chunks_of[row["run_id"]].append(ChunkRecord(**row))
    submissions_of: dict[str, list[SubmissionRecord]] = defaultdict(list)
    open_submissions = select_submissions().where(submissions.c.run_id.in_(ids), _is_open())
    for row in tx.execute(open_submissions).mappings():
        submissions_of[row["run_id"]].append(as_submission(row))
    free_at = _backoffs(tx, {run.scope for run in found})
    unfinished = _unfinished(tx, {run.predecessor for run in found if run.predecessor})
    return [
        OpenWork(
            run=run,
            chunks=chunks_of[run.run_id],
            submissions=submissions_of[run.run_id],
            scope_free_at=free_at.get(run.scope),
            is_blocked=run.predecessor in unfinished,
        )
        for run in found
    ]


def _is_open() -> ColumnElement[bool]:
    waits = and_(submissions.c.state == SubmissionState.COLLECTED, _awaits_packing())
    return or_(submissions.c.state.in_(sorted(UNCOLLECTED_SUBMISSION_STATES)), waits)


def _unfinished(tx: Transaction, run_ids: Iterable[str]) -> set[str]:
    statement = select(runs.c.run_id).where(
        runs.c.run_id.in_(list(run_ids)), runs.c.state.in_(_OPEN_RUNS)
    )
    return {row.run_id for row in tx.execute(statement)}


def _backoffs(tx: Transaction, names: Iterable[str]) -> dict[str, datetime | None]:
    columns = (scopes.c.scope, scopes.c.backoff_until)
    statement = select(*columns).where(scopes.c.scope.in_(list(names)))
    return {row.scope: row.backoff_until for row in tx.execute(statement)}
