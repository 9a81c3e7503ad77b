"""Ending a run, or a part of it, early: cancel what works, keep what was paid, give up the rest."""

import logging
from collections.abc import Sequence

from batchor_core.errors import ProviderError
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.due import may_be_cancelled
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import ChunkState, RunControlState, SubmissionState

logger = logging.getLogger(__name__)

_OPEN = (ChunkState.READY, ChunkState.SUBMITTED)
_UNWANTED = "nobody waits for its partition any more"


def cancel(cycle: Cycle) -> bool:
    """Ask the provider to cancel what nobody wants, and give up what is ready of it.

    Of a run that is being cancelled that is everything, in each of its cycles: a batch adopted
    later is cancelled later. Of others it is what belongs to members that nobody wants any more. A
    crash leaves some batches uncancelled, or one that was asked for and not noted; the next cycle
    asks (again), which is harmless.

    Returns:
        Whether anything was asked or given up.
    """
    is_whole = cycle.run.control is RunControlState.CANCEL
    open_chunks = cycle.store.list_chunks(cycle.run.run_id, states=_OPEN)
    unwanted = [chunk for chunk in open_chunks if is_whole or chunk.is_unwanted]
    did = _give_up(cycle, [c.seq for c in unwanted if c.state is ChunkState.READY])
    submitted = {chunk.seq for chunk in unwanted if chunk.state is ChunkState.SUBMITTED}
    if not submitted:
        return did
    active = cycle.store.list_submissions(cycle.run.run_id, states=[SubmissionState.ACTIVE])
    for submission in active:
        if submission.chunk_seq in submitted:
            did |= _cancel_batch(cycle, submission)
    return did


def _give_up(cycle: Cycle, seqs: Sequence[int]) -> bool:
    if not seqs:
        return False
    reason = _UNWANTED
    if cycle.run.control is RunControlState.CANCEL:
        reason = cycle.run.control_reason or "the run was cancelled"
    cycle.store.abandon_chunks(cycle.lease, seqs, ItemErrorCode.RUN_CANCELLED, reason)
    return True


def _cancel_batch(cycle: Cycle, submission: SubmissionRecord) -> bool:
    """Ask for the end of a batch, once a poll interval at most; whether it was asked.

    A batch that is nearly done may keep its status whatever the provider answers, and a call that
    failed may have had its effect: both are asked for again, and neither without a pause.
    """
    if not may_be_cancelled(submission) or not submission.provider_batch_id:
        return False
    if submission.next_cancel_at is not None and submission.next_cancel_at > cycle.clock.now():
        return False
    wait_s = cycle.plan.job.timing.poll_s
    try:
        cycle.plan.provider.cancel(submission.provider_batch_id)
    except ProviderError as exc:
        logger.warning("batch %s is not cancelled yet: %s", submission.provider_batch_id, exc)
        wait_s = max(wait_s, exc.fault.retry_after_s or 0.0)
    cycle.probe("cancel.called")
    cycle.store.note_cancel(submission.submission_id, next_cancel_at=cycle.in_seconds(wait_s))
    cycle.probe("cancel.asked")
    return True
