"""Asking providers for the status of what is in flight: no lease, no file, no row."""

import dataclasses
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from batchor_core.clock import Clock
from batchor_core.errors import ProviderError
from batchor_core.executor.accounts import pause_for_account, sees_account_of
from batchor_core.model.faults import FaultKind
from batchor_core.model.records import SubmissionRecord
from batchor_core.providers.protocol import BatchPhase, BatchProvider, ProviderBatch
from batchor_core.store.protocol import Poll, Store

logger = logging.getLogger(__name__)

LOST_AFTER_MISSING = 10
"""Consecutive "no such batch" (or file) answers before it counts as lost: one is no proof (a
provider has answered 404 between two 200s)."""

LOST_AFTER = timedelta(minutes=10)
"""And this long after the batch was acknowledged, or has ended, at the earliest."""


class AccountFaultError(ProviderError):
    """The account cannot be polled at all (key, permission): its runs have to be paused."""


def poll(
    store: Store,
    provider: BatchProvider,
    clock: Clock,
    submissions: Sequence[SubmissionRecord],
    *,
    poll_s: float,
    deadline: float | None = None,
) -> bool:
    """Look at active submissions of one account and record what is seen.

    Args:
        store: The control plane.
        provider: The account.
        clock: Now, and the deadline's clock.
        submissions: Active ones that are due, of any runs.
        poll_s: Seconds until those that work on are due again.
        deadline: Monotonic instant after which nothing further is asked.

    Returns:
        Whether a batch has ended.

    Raises:
        AccountFaultError: The provider refuses the account.
    """
    try:
        return _poll(store, provider, clock, submissions, poll_s=poll_s, deadline=deadline)
    except AccountFaultError:
        polls = [Poll(submission=submission) for submission in submissions]
        store.note_polls(polls, clock.now() + timedelta(seconds=poll_s))
        raise


def _poll(
    store: Store,
    provider: BatchProvider,
    clock: Clock,
    submissions: Sequence[SubmissionRecord],
    *,
    poll_s: float,
    deadline: float | None,
) -> bool:
    ids = [s.provider_batch_id for s in submissions if s.provider_batch_id]
    try:
        seen = dict(provider.get_many(ids))
    except ProviderError as exc:
        refuse_account(exc)
        seen = {}
    ended = False
    for submission in submissions:
        if deadline is not None and clock.monotonic() >= deadline:
            break
        batch = seen.get(submission.provider_batch_id or "") or ask(provider, submission)
        ended |= record(store, provider, clock, submission, batch, poll_s=poll_s)
    return ended


def ask(provider: BatchProvider, submission: SubmissionRecord) -> ProviderBatch | ProviderError:
    """Return what the provider says of a submission's batch, or why it says nothing.

    Raises:
        AccountFaultError: The provider refuses the account.
    """
    try:
        return provider.get(submission.provider_batch_id or "")
    except ProviderError as exc:
        refuse_account(exc)
        return exc


def refuse_account(error: ProviderError) -> None:
    """Raise ``AccountFaultError`` if that is what the error says."""
    if error.fault.kind is FaultKind.ACCOUNT:
        raise AccountFaultError(str(error), error.fault) from error


def record(
    store: Store,
    provider: BatchProvider,
    clock: Clock,
    submission: SubmissionRecord,
    seen: ProviderBatch | ProviderError,
    *,
    poll_s: float,
) -> bool:
    """Record what was seen of a submission's batch; whether it has ended."""
    if isinstance(seen, ProviderError):
        return _record_failure(store, provider, clock, submission, seen, poll_s=poll_s)
    if seen.phase is BatchPhase.WORKING:
        store.note_poll(
            submission.submission_id,
            provider_status=seen.status,
            provider_counts=seen.counts,
            next_poll_at=clock.now() + timedelta(seconds=poll_s),
        )
        return False
    return store.mark_ended(
        submission.submission_id,
        provider_status=seen.status,
        provider_result=result_of(seen),
    )


def _record_failure(
    store: Store,
    provider: BatchProvider,
    clock: Clock,
    submission: SubmissionRecord,
    error: ProviderError,
    *,
    poll_s: float,
) -> bool:
    missing = error.fault.kind is FaultKind.MISSING
    if missing and not sees_account_of(store, provider, submission):
        pause_for_account(store, submission)
        missing = False
    if missing and is_lost(clock, submission, since=submission.activated_at):
        return store.mark_ended(
            submission.submission_id, provider_status="lost", provider_result={"lost": True}
        )
    wait_s = max(poll_s, error.fault.retry_after_s or 0.0)
    logger.warning("batch %s cannot be polled: %s", submission.provider_batch_id, error)
    store.note_poll(
        submission.submission_id,
        provider_status=None,
        provider_counts=None,
        next_poll_at=clock.now() + timedelta(seconds=wait_s),
        missing=missing,
    )
    return False


def is_lost(clock: Clock, submission: SubmissionRecord, *, since: datetime | None) -> bool:
    """Whether one more "it does not exist" is proof: it came often enough, over long enough.

    Args:
        clock: Now.
        submission: As it was before this answer.
        since: When the provider last showed that it exists.
    """
    return (
        submission.missing_polls + 1 >= LOST_AFTER_MISSING
        and since is not None
        and clock.now() - since >= LOST_AFTER
    )


def result_of(batch: ProviderBatch) -> dict[str, Any]:
    """Return what is stored of an ended batch: where its results are, or why there are none."""
    result: dict[str, Any] = {
        "files": dict(batch.result or {}),
        "partial": batch.is_partial,
        "executed": batch.executed,
    }
    if batch.fault is not None:
        result["rejected"] = dataclasses.asdict(batch.fault)
        result["lines"] = {
            str(line): dataclasses.asdict(fault)
            for line, fault in (batch.line_faults or {}).items()
        }
    return result
