"""Polling: what needs no lease, because it only ever moves ``active`` to ``ended``."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, update

from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import SubmissionState
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.submissions import (
    as_submission,
    load_submission,
    select_submissions,
)
from batchor_core.store.sql.tables import submissions
from batchor_core.store.sql.transaction import Aggregate, touch_run


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
                touch_run(tx, before.run_id)
            noted = tx.execute(update(submissions).where(*_active(submission_id)).values(values))
            if news and noted.rowcount:
                append_event(
                    tx,
                    before.run_id,
                    "submission.polled",
                    submission_id=submission_id,
                    provider_status=provider_status,
                )

    def mark_ended(
        self, submission_id: str, *, provider_status: str, provider_result: Mapping[str, Any]
    ) -> bool:
        """See ``Store.mark_ended``."""
        with self._write() as tx:
            run_id = load_submission(tx, submission_id).run_id
            touch_run(tx, run_id)
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

    def due_polls(self, account: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """See ``Store.due_polls``."""
        statement = (
            select_submissions()
            .where(
                submissions.c.account == account,
                submissions.c.state == SubmissionState.ACTIVE,
                submissions.c.next_poll_at <= now,
            )
            .order_by(submissions.c.next_poll_at, submissions.c.ordinal)
            .limit(limit)
        )
        with self._read() as tx:
            return [as_submission(row) for row in tx.execute(statement).mappings()]


def _active(submission_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        submissions.c.submission_id == submission_id,
        submissions.c.state == SubmissionState.ACTIVE,
    )
