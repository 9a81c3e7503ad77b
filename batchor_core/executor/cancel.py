"""Ending a run, or a part of it, early: cancel what works, keep what was paid, give up the rest."""

import logging

from batchor_core.errors import ProviderError
from batchor_core.executor.cycle import Cycle
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import ChunkRecord
from batchor_core.model.states import ChunkState, RunControlState, SubmissionState

logger = logging.getLogger(__name__)

_UNWANTED = "nobody waits for its partition any more"

CANCELLING = "cancelling"
"""Our note on a batch that we asked to cancel; the next poll overwrites it."""


def cancel(cycle: Cycle) -> bool:
    """Ask the provider to cancel what nobody wants, and give up what is ready of it.

    Of a run that is being cancelled that is everything, in each of its cycles: a batch adopted
    later is cancelled later. Of others it is what belongs to members that nobody wants any more. A
    crash leaves some batches uncancelled; the next cycle asks again, which is harmless.

    Returns:
        Whether anything was asked or given up.
    """
    chunks = _unwanted(cycle)
    ready = [chunk.seq for chunk in chunks if chunk.state is ChunkState.READY]
    if ready:
        is_whole = cycle.run.control is RunControlState.CANCEL
        reason = (cycle.run.control_reason or "the run was cancelled") if is_whole else _UNWANTED
        cycle.store.abandon_chunks(cycle.lease, ready, ItemErrorCode.RUN_CANCELLED, reason)
    did = bool(ready)
    submitted = {chunk.seq for chunk in chunks if chunk.state is ChunkState.SUBMITTED}
    if not submitted:
        return did
    run_id = cycle.run.run_id
    for submission in cycle.store.list_submissions(run_id, states=[SubmissionState.ACTIVE]):
        if submission.chunk_seq not in submitted:
            continue
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


def _unwanted(cycle: Cycle) -> list[ChunkRecord]:
    """Return the open chunks that nobody wants."""
    states = (ChunkState.READY, ChunkState.SUBMITTED)
    chunks = cycle.store.list_chunks(cycle.run.run_id, states=states)
    is_whole = cycle.run.control is RunControlState.CANCEL
    return [chunk for chunk in chunks if is_whole or chunk.is_unwanted]
