"""Polling: what needs no lease, because it only ever moves ``active`` to ``ended``."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select, update

from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import TERMINAL_RUN_STATES, RunState, SubmissionState
from batchor_core.store.protocol import Poll
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.submissions import (
    as_submission,
    load_submission,
    select_submissions,
)
from batchor_core.store.sql.tables import runs, submissions
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    batched,
    lock_run,
    lock_runs,
)


class Polls(Aggregate):
    """The polls' part of the store."""

    def note_poll(
        self,
        submission_id: str,
        *,
        provider_status: str | None,
        provider_counts: Mapping[str, Any] | None,
        next_poll_at: datetime,
        missing: bool = False,
    ) -> None:
        """See ``Store.note_poll``. None leaves status or counts as they are.

        The journal gets a line only where the status changed: most polls see nothing new.
        """
        values: dict[str, Any] = {
            "next_poll_at": next_poll_at,
            "missing_polls": submissions.c.missing_polls + 1 if missing else 0,
        }
        if provider_status is not None:
            values["provider_status"] = provider_status
        if provider_counts is not None:
            values["provider_counts"] = provider_counts
        with self._write() as tx:
            before = load_submission(tx, submission_id)
            news = provider_status not in {None, before.provider_status}
            if news:
                lock_run(tx, before.run_id)
            noted = tx.execute(update(submissions).where(*_active(submission_id)).values(values))
            if news and noted.rowcount:
                _append_polled(tx, before, provider_status)

    def note_cancel(self, submission_id: str, *, next_cancel_at: datetime) -> None:
        """See ``Store.note_cancel``."""
        with self._write() as tx:
            before = load_submission(tx, submission_id)
            values: dict[str, Any] = {"next_cancel_at": next_cancel_at}
            is_first = before.next_cancel_at is None
            if is_first:
                lock_run(tx, before.run_id)
                values["next_poll_at"] = tx.now
            noted = tx.execute(update(submissions).where(*_active(submission_id)).values(values))
            if is_first and noted.rowcount:
                append_event(
                    tx, before.run_id, "submission.cancel_asked", submission_id=submission_id
                )

    def mark_ended(
        self, submission_id: str, *, provider_status: str, provider_result: Mapping[str, Any]
    ) -> bool:
        """See ``Store.mark_ended``."""
        with self._write() as tx:
            run_id = load_submission(tx, submission_id).run_id
            lock_run(tx, run_id)
            return _end(tx, run_id, submission_id, provider_status, provider_result)

    def note_polls(self, polls: Sequence[Poll], next_poll_at: datetime) -> int:
        """See ``Store.note_polls``."""
        with self._write() as tx:
            lock_runs(tx, (poll.submission.run_id for poll in polls if _is_news(poll)))
            active = _lock_active(tx, [p.submission.submission_id for p in polls])
            known = [p for p in polls if p.submission.submission_id in active]
            working = [poll for poll in known if poll.result is None]
            _put_off(tx, [p.submission.submission_id for p in working], next_poll_at)
            _note_changes(tx, [poll for poll in working if _is_changed(poll)])
            for poll in working:
                if _is_news(poll):
                    _append_polled(tx, poll.submission, poll.status)
            return sum(
                _end(tx, p.submission.run_id, p.submission.submission_id, p.status, p.result)
                for p in known
                if p.result is not None
            )

    def due_polls(self, account: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """See ``Store.due_polls``."""
        with self._read() as tx:
            return _next_first(tx, account, submissions.c.next_poll_at <= now, limit)

    def other_polls(self, account: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """See ``Store.other_polls``."""
        with self._read() as tx:
            return _next_first(tx, account, submissions.c.next_poll_at > now, limit)

    def count_polls(self, account: str) -> int:
        """See ``Store.count_polls``."""
        statement = select(func.count()).where(
            submissions.c.account == account, submissions.c.state == SubmissionState.ACTIVE
        )
        with self._read() as tx:
            return int(tx.execute(statement).scalar_one())

    def accounts_to_poll(self, namespace: str, now: datetime) -> dict[str, str]:
        """See ``Store.accounts_to_poll``."""
        statement = (
            select(submissions.c.account, func.min(submissions.c.run_id).label("run_id"))
            .join(runs, runs.c.run_id == submissions.c.run_id)
            .where(
                runs.c.namespace == namespace,
                runs.c.state.in_(sorted(set(RunState) - TERMINAL_RUN_STATES)),
                submissions.c.state == SubmissionState.ACTIVE,
                submissions.c.next_poll_at <= now,
            )
            .group_by(submissions.c.account)
            .order_by(func.min(submissions.c.next_poll_at))
        )
        with self._read() as tx:
            return {row.account: row.run_id for row in tx.execute(statement)}


def _next_first(
    tx: Transaction, account: str, which: ColumnElement[bool], limit: int
) -> list[SubmissionRecord]:
    statement: Select[Any] = (
        select_submissions()
        .where(
            submissions.c.account == account,
            submissions.c.state == SubmissionState.ACTIVE,
            which,
        )
        .order_by(submissions.c.next_poll_at, submissions.c.ordinal)
        .limit(limit)
    )
    return [as_submission(row) for row in tx.execute(statement).mappings()]


def _is_news(poll: Poll) -> bool:
    """Whether the journal gets a line."""
    return poll.result is not None or poll.status not in {None, poll.submission.provider_status}


def _is_changed(poll: Poll) -> bool:
    """Whether more than the time of the next poll is to be stored."""
    before = poll.submission
    status, counts = poll.status or before.provider_status, poll.counts or before.provider_counts
    return (status, counts) != (before.provider_status, before.provider_counts)


def _lock_active(tx: Transaction, submission_ids: Iterable[str]) -> set[str]:
    """Lock those of the submissions that are active, in one order for everybody."""
    statement = select(submissions.c.submission_id).where(
        submissions.c.state == SubmissionState.ACTIVE
    )
    statement = statement.order_by(submissions.c.ordinal).with_for_update()
    return {
        submission_id
        for group in batched(sorted(submission_ids))
        for submission_id in tx.execute(
            statement.where(submissions.c.submission_id.in_(group))
        ).scalars()
    }


def _put_off(tx: Transaction, submission_ids: Iterable[str], until: datetime) -> None:
    for group in batched(submission_ids):
        tx.execute(
            update(submissions)
            .where(submissions.c.submission_id.in_(group))
            .values(next_poll_at=until, missing_polls=0)
        )


def _note_changes(tx: Transaction, polls: Sequence[Poll]) -> None:
    if not polls:
        return
    statement = (
        update(submissions)
        .where(submissions.c.submission_id == bindparam("named"))
        .values(provider_status=bindparam("status"), provider_counts=bindparam("counts"))
    )
    changes = [
        {
            "named": poll.submission.submission_id,
            "status": poll.status or poll.submission.provider_status,
            "counts": poll.counts or poll.submission.provider_counts,
        }
        for poll in polls
    ]
    tx.connection.execute(statement, changes)


def _append_polled(tx: Transaction, submission: SubmissionRecord, status: str | None) -> None:
    append_event(
        tx,
        submission.run_id,
        "submission.polled",
        submission_id=submission.submission_id,
        provider_status=status,
    )


def _end(
    tx: Transaction,
    run_id: str,
    submission_id: str,
    provider_status: str | None,
    provider_result: Mapping[str, Any] | None,
) -> bool:
    """Move an active submission to ``ended``; its run's row is locked by now."""
    ended = tx.execute(
        update(submissions)
        .where(*_active(submission_id))
        .values(
            state=SubmissionState.ENDED,
            provider_status=provider_status,
            provider_result=provider_result,
            ended_at=tx.now,
            next_poll_at=None,
            missing_polls=0,
        )
    )
    if not ended.rowcount:
        return False
    append_event(
        tx,
        run_id,
        "submission.ended",
        submission_id=submission_id,
        provider_status=provider_status,
    )
    return True


def _active(submission_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        submissions.c.submission_id == submission_id,
        submissions.c.state == SubmissionState.ACTIVE,
    )
