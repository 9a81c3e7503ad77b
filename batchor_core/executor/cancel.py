"""Ending a run early: cancel what works, keep what was paid, give up the rest."""

import logging

from batchor_core.errors import ProviderError
from batchor_core.executor.cycle import Cycle
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.states import ChunkState, SubmissionState

logger = logging.getLogger(__name__)

CANCELLING = "cancelling"
"""Our note on a batch that we asked to cancel; the next poll overwrites it."""


def cancel(cycle: Cycle) -> bool:
    """Ask the provider to cancel what is active, and give ready chunks up.

    Runs in each cycle of a run that is being cancelled: a batch adopted later is cancelled later.
    A crash leaves some batches uncancelled; the next cycle asks again, which is harmless.

    Returns:
        Whether anything was asked or given up.
    """
    run_id = cycle.run.run_id
    ready = cycle.store.list_chunks(run_id, states=[ChunkState.READY])
    if ready:
        reason = cycle.run.control_reason or "the run was cancelled"
        seqs = [chunk.seq for chunk in ready]
        cycle.store.abandon_chunks(cycle.lease, seqs, ItemErrorCode.RUN_CANCELLED, reason)
    did = bool(ready)
    for submission in cycle.store.list_submissions(run_id, states=[SubmissionState.ACTIVE]):
        if submission.is_provisional:  # it may be another's: only its results tell
            continue
        status = submission.provider_status or ""
        if status.startswith("cancel") or not submission.provider_batch_id:
            continue
        try:
            cycle.plan.provider.cancel(submission.provider_batch_id)
        except ProviderError as exc:
            logger.warning("batch %s is not cancelled yet: %s", submission.provider_batch_id, exc)
            continue
        cycle.store.note_poll(
            submission.submission_id,
            provider_status=CANCELLING,
            provider_counts=submission.provider_counts,
            next_poll_at=cycle.clock.now(),
        )
        cycle.probe("cancel.asked")
        did = True
    return did
