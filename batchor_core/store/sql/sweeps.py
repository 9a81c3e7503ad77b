"""Looking for late twins of submissions that were given up, whatever became of their runs."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import update

from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import SubmissionState
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.submissions import as_submission, load_submission, select_submissions
from batchor_core.store.sql.tables import runs, submissions
from batchor_core.store.sql.transaction import Aggregate, lock_run


class Sweeps(Aggregate):
    """The sweeps' part of the store."""

    def due_sweeps(self, namespace: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """See ``Store.due_sweeps``."""
        statement = (
            select_submissions()
            .join(runs, runs.c.run_id == submissions.c.run_id)
            .where(
                runs.c.namespace == namespace,
                submissions.c.sweep_at <= now,
                submissions.c.state == SubmissionState.VOID,
            )
            .order_by(submissions.c.sweep_at, submissions.c.ordinal)
            .limit(limit)
        )
        with self._read() as tx:
            return [as_submission(row) for row in tx.execute(statement).mappings()]

    def note_sweep(
        self, submission_id: str, *, next_at: datetime | None, twins: Sequence[str] = ()
    ) -> None:
        """See ``Store.note_sweep``."""
        with self._write() as tx:
            run_id = load_submission(tx, submission_id).run_id
            lock_run(tx, run_id)
            tx.execute(
                update(submissions)
                .where(submissions.c.submission_id == submission_id)
                .values(sweep_at=next_at)
            )
            if twins or next_at is None:
                append_event(
                    tx,
                    run_id,
                    "submission.swept",
                    submission_id=submission_id,
                    twins=list(twins),
                    is_last=next_at is None,
                )
