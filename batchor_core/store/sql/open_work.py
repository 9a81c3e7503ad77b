"""What is not settled yet, of one run or of all runs of a namespace, in four queries."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select

from batchor_core.errors import RunNotFoundError
from batchor_core.model.records import ChunkRecord, RunRecord, SubmissionRecord
from batchor_core.model.states import TERMINAL_RUN_STATES, ChunkState, SubmissionState
from batchor_core.store.protocol import OpenWork
from batchor_core.store.sql.submissions import as_submission, select_submissions
from batchor_core.store.sql.tables import chunks, members, runs, scopes, submissions
from batchor_core.store.sql.transaction import Aggregate, Transaction, record_columns

_RUN_COLUMNS = record_columns(runs, RunRecord)
_CHUNK_COLUMNS = record_columns(chunks, ChunkRecord)
_OPEN_CHUNKS = (ChunkState.READY, ChunkState.SUBMITTED)
_OPEN_SUBMISSIONS = (SubmissionState.INTENDED, SubmissionState.ACTIVE, SubmissionState.ENDED)


class OpenWorkQueries(Aggregate):
    """The open work's part of the store."""

    def open_work(self, run_id: str) -> OpenWork:
        """See ``Store.open_work``."""
        with self._read() as tx:
            found = _open_work(tx, runs.c.run_id == run_id)
        if not found:
            raise RunNotFoundError(f"no run {run_id!r} in {self._database.location}")
        return found[0]

    def all_open_work(self, namespace: str) -> list[OpenWork]:
        """See ``Store.all_open_work``."""
        claimed = select(members.c.run_id).distinct()  # a spooled run has no members yet
        with self._read() as tx:
            return _open_work(
                tx,
                and_(
                    runs.c.namespace == namespace,
                    runs.c.state.not_in(list(TERMINAL_RUN_STATES)),
                    runs.c.run_id.in_(claimed),
                ),
            )


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
    waits = and_(
        submissions.c.state == SubmissionState.COLLECTED,
        submissions.c.retry_count > 0,
        submissions.c.retries_packed.is_(False),
    )
    return or_(submissions.c.state.in_(list(_OPEN_SUBMISSIONS)), waits)


def _unfinished(tx: Transaction, run_ids: Iterable[str]) -> set[str]:
    statement = select(runs.c.run_id).where(
        runs.c.run_id.in_(list(run_ids)), runs.c.state.not_in(list(TERMINAL_RUN_STATES))
    )
    return {row.run_id for row in tx.execute(statement)}


def _backoffs(tx: Transaction, names: Iterable[str]) -> dict[str, datetime | None]:
    columns = (scopes.c.scope, scopes.c.backoff_until)
    statement = select(*columns).where(scopes.c.scope.in_(list(names)))
    return {row.scope: row.backoff_until for row in tx.execute(statement)}
