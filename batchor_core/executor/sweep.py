"""Looking for late twins: batches that a provider shows only after we gave them up.

A submission whose create call may have taken effect is given up after the settling time, and its
chunk is sent again. Should the first batch turn up later after all, it is a twin that nobody
would collect: it is cancelled as soon as it is seen. The looks go on, also after the run closed,
until one at least a day after the giving-up has succeeded.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from batchor_core.clock import Clock
from batchor_core.errors import ProviderError
from batchor_core.model.records import SubmissionRecord
from batchor_core.providers.protocol import BatchProvider, Wanted
from batchor_core.store.protocol import Store

logger = logging.getLogger(__name__)

LOOKS_AFTER = (
    timedelta(minutes=10),
    timedelta(hours=1),
    timedelta(hours=6),
    timedelta(hours=24),
)
"""When a given-up submission is looked for, counted from when it was given up."""

_AGAIN_AFTER_FAILURE = timedelta(minutes=10)


def first_sweep(voided_at: datetime) -> datetime:
    """Return when a submission given up at this instant is looked for first."""
    return voided_at + LOOKS_AFTER[0]


def sweep(
    store: Store, provider: BatchProvider, clock: Clock, submissions: Sequence[SubmissionRecord]
) -> int:
    """Look once for the late twins of some submissions of one account.

    A crash leaves the look undone, or a twin cancelled twice, which is harmless.

    Returns:
        The number of twins that were found and cancelled.
    """
    return sum(_look(store, provider, clock, submission) for submission in submissions)


def _look(store: Store, provider: BatchProvider, clock: Clock, submission: SubmissionRecord) -> int:
    now = clock.now()
    try:
        sighting = provider.find(Wanted.of(submission))
        twins = [batch.batch_id for batch in sighting.matches]
        for twin in twins:
            logger.warning(
                "run %s: batch %s turned up after it was given up: cancelling it",
                submission.run_id,
                twin,
            )
            provider.cancel(twin)
    except ProviderError as exc:
        logger.warning("cannot look for twins of %s yet: %s", submission.submission_id, exc)
        store.note_sweep(submission.submission_id, next_at=now + _AGAIN_AFTER_FAILURE)
        return 0
    store.note_sweep(submission.submission_id, next_at=_next_look(submission, now), twins=twins)
    return len(twins)


def _next_look(submission: SubmissionRecord, now: datetime) -> datetime | None:
    since = submission.voided_at or submission.intended_at
    return next((since + after for after in LOOKS_AFTER if since + after > now), None)
