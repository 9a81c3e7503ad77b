"""Submissions: from the intent to the committed outcomes."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, Select, func, insert, select, update

from batchor_core.errors import RowConservationError, StaleTransitionError, StoreError
from batchor_core.model.records import (
    ChunkRecord,
    Collected,
    Lease,
    NewChunk,
    NewSubmission,
    ScopeLimits,
    SubmissionRecord,
    Usage,
)
from batchor_core.model.states import ChunkState, SubmissionState
from batchor_core.model.transitions import SUBMISSION_TRANSITIONS
from batchor_core.store.protocol import OverBudget, ScopeFull
from batchor_core.store.sql import tables
from batchor_core.store.sql.budgets import over_budget
from batchor_core.store.sql.chunks import abandon_in, add_chunks, check_same_items, move_chunk
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.scopes import lock_scope, refusal
from batchor_core.store.sql.tables import submissions
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    change_state,
    record_columns,
    stale,
)

_USAGE_COLUMNS = record_columns(submissions, Usage)
_NEW_COLUMNS = record_columns(submissions, NewSubmission)
_COLUMNS = record_columns(submissions, SubmissionRecord) + _USAGE_COLUMNS
_NOTHING_COUNTED = dict.fromkeys(
    (
        "missing_polls",
        "ok_count",
        "failed_count",
        "retry_count",
        "reused_count",
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "quarantined",
    ),
    0,
)


class Submissions(Aggregate):
    """The submissions' part of the store; polling is in ``polls``."""

    def intend(
        self,
        lease: Lease,
        submission: NewSubmission,
        limits: ScopeLimits,
    ) -> SubmissionRecord | ScopeFull | OverBudget:
        """See ``Store.intend``."""
        with self._fenced(lease) as tx:
            refused = over_budget(tx, submission) or refusal(tx, submission, limits)
            if refused is not None:
                return refused
            _intend(tx, lease, submission)
            return load_submission(tx, submission.submission_id)

    def adopt(
        self,
        lease: Lease,
        submission: NewSubmission,
        *,
        upload_ref: str | None,
        created_at: datetime | None,
        provider_batch_id: str,
        provider_status: str,
        next_poll_at: datetime,
    ) -> SubmissionRecord:
        """See ``Store.adopt``; one transaction, since an intent without its batch is sent again."""
        with self._fenced(lease) as tx:
            _intend(tx, lease, submission)
            _change_intended(
                tx,
                lease,
                submission.submission_id,
                upload_ref=upload_ref,
                create_server_time=created_at,
            )
            return _activate(
                tx,
                lease,
                submission.submission_id,
                provider_batch_id=provider_batch_id,
                provider_status=provider_status,
                next_poll_at=next_poll_at,
                adopted=True,
                is_provisional=False,
            )

    def allow_create(
        self,
        lease: Lease,
        submission_id: str,
        upload_ref: str | None,
        *,
        server_time: datetime | None,
        alone_since: datetime | None = None,
    ) -> bool:
        """See ``Store.allow_create``."""
        leases = tables.leases
        lease_end = select(leases.c.expires_at).where(leases.c.run_id == lease.run_id)
        with self._fenced(lease) as tx:
            if alone_since is not None:
                account = load_submission(tx, submission_id).account
                lock_scope(tx, f"creates of {account}")  # the account's, over all its models
                if _create_in_doubt(tx, account, alone_since, but=submission_id):
                    return False
            _change_intended(
                tx,
                lease,
                submission_id,
                upload_ref=upload_ref,
                create_allowed_until=lease_end.scalar_subquery(),
                create_server_time=server_time,
            )
            append_event(tx, lease.run_id, "submission.create_allowed", submission_id=submission_id)
            return True

    def has_create_in_doubt(self, account: str, since: datetime) -> bool:
        """See ``Store.has_create_in_doubt``."""
        with self._read() as tx:
            return _create_in_doubt(tx, account, since)

    def batches_sent_under(self, account: str, credential: str, limit: int) -> list[str]:
        """See ``Store.batches_sent_under``."""
        statement = (
            select(submissions.c.provider_batch_id)
            .where(
                submissions.c.account == account,
                submissions.c.credential == credential,
                submissions.c.provider_batch_id.is_not(None),
                submissions.c.is_provisional.is_(False),
            )
            .order_by(submissions.c.ordinal.desc())
            .limit(limit)
        )
        with self._read() as tx:
            return list(tx.execute(statement).scalars())

    def known_batches(self, account: str, batch_ids: Iterable[str]) -> dict[str, bool]:
        """See ``Store.known_batches``."""
        columns = (submissions.c.provider_batch_id, submissions.c.is_provisional)
        statement = select(*columns).where(
            submissions.c.account == account,
            submissions.c.provider_batch_id.in_(list(batch_ids)),
        )
        with self._read() as tx:
            return {row.provider_batch_id: row.is_provisional for row in tx.execute(statement)}

    def activate(
        self,
        lease: Lease,
        submission_id: str,
        *,
        provider_batch_id: str,
        provider_status: str,
        next_poll_at: datetime,
        adopted: bool,
        is_provisional: bool = False,
    ) -> SubmissionRecord:
        """See ``Store.activate``."""
        with self._fenced(lease) as tx:
            return _activate(
                tx,
                lease,
                submission_id,
                provider_batch_id=provider_batch_id,
                provider_status=provider_status,
                next_poll_at=next_poll_at,
                adopted=adopted,
                is_provisional=is_provisional,
            )

    def disprove(self, lease: Lease, submission_id: str, *, reason: str) -> SubmissionRecord:
        """See ``Store.disprove``."""
        with self._fenced(lease) as tx:
            before = load_submission(tx, submission_id)
            disproved = _move(
                tx,
                lease,
                submission_id,
                SubmissionState.INTENDED,
                provider_batch_id=None,
                provider_status=None,
                provider_counts=None,
                provider_result=None,
                next_poll_at=None,
                missing_polls=0,
                next_cancel_at=None,
                activated_at=None,
                ended_at=None,
                is_provisional=False,
            )
            append_event(
                tx,
                lease.run_id,
                "submission.disproved",
                submission_id=submission_id,
                provider_batch_id=before.provider_batch_id,
                reason=reason,
            )
            return disproved

    def create_unknown(
        self, lease: Lease, submission_id: str, *, server_time: datetime | None, message: str
    ) -> None:
        """See ``Store.create_unknown``."""
        with self._fenced(lease) as tx:
            known = {} if server_time is None else {"create_server_time": server_time}
            _change_intended(tx, lease, submission_id, create_ended_at=tx.now, **known)
            append_event(
                tx,
                lease.run_id,
                "submission.create_unknown",
                submission_id=submission_id,
                message=message,
            )

    def void(
        self,
        lease: Lease,
        submission_id: str,
        *,
        reason: str,
        not_before: datetime | None,
        sweep_at: datetime | None = None,
        abandon: tuple[str, str] | None = None,
    ) -> ChunkRecord:
        """See ``Store.void``."""
        with self._fenced(lease) as tx:
            submission = _move(
                tx,
                lease,
                submission_id,
                SubmissionState.VOID,
                void_reason=reason,
                voided_at=tx.now,
                sweep_at=sweep_at,
            )
            chunk = move_chunk(
                tx,
                lease.run_id,
                submission.chunk_seq,
                ChunkState.READY,
                refusals=tables.chunks.c.refusals + 1,
                not_before=not_before,
            )
            append_event(
                tx,
                lease.run_id,
                "submission.voided",
                submission_id=submission_id,
                chunk_seq=chunk.seq,
                item_count=chunk.item_count,
                refusals=chunk.refusals,
                reason=reason,
            )
            if abandon is not None:
                abandon_in(tx, lease.run_id, [chunk.seq], *abandon)
            return chunk

    def put_off_collect(
        self, lease: Lease, submission_id: str, *, until: datetime, missing: bool, reason: str
    ) -> None:
        """See ``Store.put_off_collect``; the journal gets a line for the first time only."""
        key = {"run_id": lease.run_id, "submission_id": submission_id}
        with self._fenced(lease) as tx:
            before = load_submission(tx, submission_id)
            ended = update(submissions).where(
                *(submissions.c[column] == value for column, value in key.items()),
                submissions.c.state == SubmissionState.ENDED,
            )
            missing_polls = submissions.c.missing_polls + 1 if missing else 0
            put_off = ended.values(next_poll_at=until, missing_polls=missing_polls)
            if tx.execute(put_off).rowcount != 1:
                raise stale(submissions, key, wanted=SubmissionState.ENDED, found=before.state)
            if before.next_poll_at is None:
                append_event(
                    tx,
                    lease.run_id,
                    "submission.put_off",
                    submission_id=submission_id,
                    reason=reason,
                )

    def collect(self, lease: Lease, submission_id: str, collected: Collected) -> SubmissionRecord:
        """See ``Store.collect``; counts that do not add up to the chunk's are refused."""
        counted = _counted(collected)
        with self._fenced(lease) as tx:
            submission = _move(
                tx,
                lease,
                submission_id,
                SubmissionState.COLLECTED,
                collected_at=tx.now,
                outcomes=collected.outcomes,
                raw=collected.raw,
                retry_at=collected.retry_at,
                **counted,
            )
            chunk = move_chunk(tx, lease.run_id, submission.chunk_seq, ChunkState.DONE)
            judged = collected.ok_count + collected.failed_count + collected.retry_count
            if judged != chunk.item_count:
                raise RowConservationError(
                    f"run {lease.run_id!r}, submission {submission_id!r}: {judged} outcomes for "
                    f"{chunk.item_count} items; nothing was changed"
                )
            append_event(
                tx,
                lease.run_id,
                "submission.collected",
                submission_id=submission_id,
                chunk_seq=chunk.seq,
                **counted,
            )
            return submission

    def reuse_answers(
        self,
        lease: Lease,
        seq: int,
        *,
        answered: NewChunk,
        rest: NewChunk | None,
        submission: NewSubmission,
        collected: Collected,
    ) -> None:
        """See ``Store.reuse_answers``."""
        parts = [answered] if rest is None else [answered, rest]
        with self._fenced(lease) as tx:
            parent = move_chunk(tx, lease.run_id, seq, ChunkState.SPLIT)
            check_same_items(
                f"run {lease.run_id!r}, reuse in chunk {seq}", parent.item_count, parts
            )
            append_event(
                tx, lease.run_id, "chunk.split", chunk_seq=seq, item_count=parent.item_count
            )
            added = add_chunks(tx, lease.run_id, [replace(p, parent_seq=seq) for p in parts])
            done = move_chunk(tx, lease.run_id, added[0].seq, ChunkState.DONE)
            counted = _counted(collected)
            values = {column.name: getattr(submission, column.name) for column in _NEW_COLUMNS}
            tx.execute(
                insert(submissions).values(
                    values
                    | _NOTHING_COUNTED
                    | counted
                    | {
                        "chunk_seq": done.seq,
                        "state": SubmissionState.COLLECTED,
                        "fencing_token": lease.token,
                        "intended_at": tx.now,
                        "collected_at": tx.now,
                        "outcomes": collected.outcomes,
                        "retries_packed": False,
                        "is_provisional": False,
                    }
                )
            )
            append_event(
                tx,
                lease.run_id,
                "answers.reused",
                submission_id=submission.submission_id,
                chunk_seq=done.seq,
                item_count=done.item_count,
                **counted,
            )

    def pack_retries(
        self,
        lease: Lease,
        submission_ids: Sequence[str],
        chunks: Sequence[NewChunk],
        *,
        unwanted: Sequence[NewChunk] = (),
    ) -> list[ChunkRecord]:
        """See ``Store.pack_retries``; all of them or none."""
        packed = sorted(set(submission_ids))
        with self._fenced(lease) as tx:
            item_count = _mark_packed(tx, lease, packed)
            what = f"run {lease.run_id!r}, retries of {packed}"
            check_same_items(what, item_count, [*chunks, *unwanted])
            append_event(
                tx,
                lease.run_id,
                "retries.packed",
                submission_ids=packed,
                item_count=item_count,
            )
            return [
                *add_chunks(tx, lease.run_id, chunks),
                *add_chunks(tx, lease.run_id, unwanted, are_unwanted=True),
            ]

    def list_submissions(
        self, run_id: str, *, states: Iterable[SubmissionState] | None = None
    ) -> list[SubmissionRecord]:
        """See ``Store.list_submissions``."""
        statement = select_submissions().where(submissions.c.run_id == run_id)
        if states is not None:
            statement = statement.where(submissions.c.state.in_(list(states)))
        with self._read() as tx:
            found = tx.execute(statement.order_by(submissions.c.ordinal)).mappings()
            return [as_submission(row) for row in found]


def select_submissions() -> Select[Any]:
    """Return the statement whose rows ``as_submission`` reads."""
    return select(*_COLUMNS)


def as_submission(row: RowMapping) -> SubmissionRecord:
    """Read one row; its usage columns become one value."""
    values = dict(row)
    usage = Usage(**{column.name: values.pop(column.name) for column in _USAGE_COLUMNS})
    return SubmissionRecord(**values, usage=usage)


def load_submission(tx: Transaction, submission_id: str) -> SubmissionRecord:
    """Return the submission, or raise ``StoreError``."""
    statement = select_submissions().where(submissions.c.submission_id == submission_id)
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        raise StoreError(f"no submission {submission_id!r} in {tx.database.location}")
    return as_submission(row)


def _move(
    tx: Transaction, lease: Lease, submission_id: str, target: SubmissionState, **values: Any
) -> SubmissionRecord:
    key = {"run_id": lease.run_id, "submission_id": submission_id}
    change_state(tx, submissions, key, SUBMISSION_TRANSITIONS, target, **values)
    return load_submission(tx, submission_id)


def _intend(tx: Transaction, lease: Lease, submission: NewSubmission) -> None:
    if submission.run_id != lease.run_id:
        raise StoreError(
            f"submission {submission.submission_id!r} is of run {submission.run_id!r}, "
            f"the lease is of run {lease.run_id!r}"
        )
    chunk = move_chunk(tx, lease.run_id, submission.chunk_seq, ChunkState.SUBMITTED)
    tx.execute(
        insert(submissions).values(
            {column.name: getattr(submission, column.name) for column in _NEW_COLUMNS}
            | _NOTHING_COUNTED
            | {
                "state": SubmissionState.INTENDED,
                "fencing_token": lease.token,
                "intended_at": tx.now,
                "retries_packed": False,
                "is_provisional": False,
            }
        )
    )
    append_event(
        tx,
        lease.run_id,
        "submission.intended",
        submission_id=submission.submission_id,
        chunk_seq=chunk.seq,
        item_count=chunk.item_count,
        reserved_tokens=submission.reserved_tokens,
        reserved_cost_usd=submission.reserved_cost_usd,
    )


def _activate(
    tx: Transaction, lease: Lease, submission_id: str, *, adopted: bool, **values: Any
) -> SubmissionRecord:
    activated = _move(
        tx, lease, submission_id, SubmissionState.ACTIVE, activated_at=tx.now, **values
    )
    append_event(
        tx,
        lease.run_id,
        "submission.activated",
        submission_id=submission_id,
        provider_batch_id=activated.provider_batch_id,
        adopted=adopted,
    )
    return activated


def _create_in_doubt(
    tx: Transaction, account: str, since: datetime, *, but: str | None = None
) -> bool:
    """Whether a create of the account, but for one submission's, may have had an unseen effect."""
    ended = func.coalesce(submissions.c.create_ended_at, submissions.c.create_allowed_until)
    statement = select(submissions.c.submission_id).where(
        submissions.c.account == account,
        submissions.c.state == SubmissionState.INTENDED,
        submissions.c.create_allowed_until.is_not(None),
        ended > since,
    )
    if but is not None:
        statement = statement.where(submissions.c.submission_id != but)
    return tx.execute(statement.limit(1)).first() is not None


def _change_intended(tx: Transaction, lease: Lease, submission_id: str, **values: Any) -> None:
    """Set columns of a submission that is, and stays, ``intended``."""
    key = {"run_id": lease.run_id, "submission_id": submission_id}
    named = [submissions.c[column] == value for column, value in key.items()]
    statement = update(submissions).where(*named, submissions.c.state == SubmissionState.INTENDED)
    if tx.execute(statement.values(values)).rowcount != 1:
        found = tx.execute(select(submissions.c.state).where(*named)).scalar_one_or_none()
        raise stale(submissions, key, wanted=SubmissionState.INTENDED, found=found)


def _mark_packed(tx: Transaction, lease: Lease, submission_ids: Sequence[str]) -> int:
    """Mark the submissions' retries as packed and return how many items that are."""
    unpacked = (
        submissions.c.run_id == lease.run_id,
        submissions.c.submission_id.in_(submission_ids),
        submissions.c.state == SubmissionState.COLLECTED,
        submissions.c.retries_packed.is_(False),
    )
    rows = tx.execute(
        select(submissions.c.submission_id, submissions.c.retry_count).where(*unpacked)
    ).all()
    missing = set(submission_ids) - {row.submission_id for row in rows}
    if missing:
        raise StaleTransitionError(
            f"run {lease.run_id!r}: the retries of {sorted(missing)} are packed already, or the "
            "submissions are not collected"
        )
    tx.execute(update(submissions).where(*unpacked).values(retries_packed=True))
    return sum(row.retry_count for row in rows)


def _counted(collected: Collected) -> dict[str, Any]:
    return {
        "ok_count": collected.ok_count,
        "failed_count": collected.failed_count,
        "retry_count": collected.retry_count,
        "reused_count": collected.reused_count,
        "quarantined": collected.quarantined,
        **asdict(collected.usage),
    }
