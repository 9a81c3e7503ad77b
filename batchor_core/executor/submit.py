"""Sending chunks: intent, upload, create, acknowledgement, with a commit between each.

See ``docs/decisions/0002-submission-protocol.md`` for what a crash at each point leaves behind.
"""

import logging
from datetime import datetime
from pathlib import Path

from batchor_core.errors import ProviderError
from batchor_core.executor.budget import stop_over_budget
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.recut import items_of, next_seq, recut
from batchor_core.executor.remote_files import remove_remote_files
from batchor_core.executor.reuse import reuse, settle_duplicates
from batchor_core.executor.seal import Position
from batchor_core.ids import SubmissionKey, new_submission_id
from batchor_core.model.faults import Fault, FaultKind, ItemErrorCode
from batchor_core.model.records import (
    ChunkRecord,
    NewChunk,
    NewSubmission,
    ScopeLimits,
    SubmissionRecord,
)
from batchor_core.model.states import ChunkState, RunControlState
from batchor_core.planning.retries import backoff_s
from batchor_core.providers.protocol import Upload
from batchor_core.store.protocol import OverBudget, ScopeFull

logger = logging.getLogger(__name__)

_MOST_MISSING = 4
"""After so many refusals "no such file" of files that were just uploaded, a person has to look."""

MOST_REFUSALS = 6
"""So often a single request that seems larger than the whole queue is tried, alone, before it
fails: our count of its tokens is an estimate."""

RUN_TAG = "batchor_run"
"""Metadata of every provider batch, where the provider keeps any: the run's id."""


def submit(cycle: Cycle) -> bool:
    """Send ready chunks, oldest first, while the scope has room and the cycle has time.

    Returns:
        Whether anything was sent or changed.
    """
    if is_blocked(cycle) or _must_not_create(cycle):
        return False
    did = reuse(cycle)
    now = cycle.clock.now()
    did |= settle_duplicates(cycle)
    for chunk in cycle.store.list_chunks(cycle.run.run_id, states=[ChunkState.READY]):
        if chunk.is_duplicate or chunk.is_unwanted:
            continue
        if chunk.not_before is not None and chunk.not_before > now:
            continue
        if cycle.is_over or cycle.refresh().control is not RunControlState.RUN:
            break
        intent = cycle.store.intend(cycle.lease, _intent(cycle, chunk), cycle.plan.scope_limits)
        if isinstance(intent, SubmissionRecord):
            cycle.probe("submit.intended")
            _send(cycle, chunk, intent)
            did = True
        elif isinstance(intent, OverBudget):
            stop_over_budget(cycle, intent)
            break
        elif intent.never_fits:
            _split_or_abandon(cycle, chunk, intent.reason)
            did = True
        else:
            _wait_for_room(cycle, intent)
            break
    return did


def is_blocked(cycle: Cycle) -> bool:
    """Whether the run that this one supersedes still works: what it returns is paid once."""
    predecessor = cycle.run.predecessor
    return predecessor is not None and not cycle.store.get_run(predecessor).state.is_terminal


def _must_not_create(cycle: Cycle) -> bool:
    """Whether a batch of a provider that keeps no key could be taken for another one now."""
    since = _alone_since(cycle)
    if since is None or not cycle.store.has_create_in_doubt(cycle.run.account, since):
        return False
    logger.info("run %s: nothing is sent while a create call is in doubt", cycle.run.run_id)
    return True


def _alone_since(cycle: Cycle) -> datetime | None:
    """Return since when no create of the account may be in doubt; None where keys tell batches."""
    if not cycle.plan.provider.is_keyless:
        return None
    return cycle.in_seconds(-cycle.plan.job.timing.settle_s)


def _intent(cycle: Cycle, chunk: ChunkRecord) -> NewSubmission:
    key = SubmissionKey(
        run_id=cycle.run.run_id,
        chunk_seq=chunk.seq,
        chunk_token=chunk.token,
        submission_id=new_submission_id(),
        store_id=cycle.store.store_id,
    )
    return NewSubmission(
        submission_id=key.submission_id,
        run_id=key.run_id,
        chunk_seq=key.chunk_seq,
        key=str(key),
        account=cycle.run.account,
        credential=cycle.plan.provider.credential,
        scope=cycle.run.scope,
        reserved_requests=chunk.item_count,
        reserved_tokens=chunk.input_tokens,
        reserved_cost_usd=chunk.cost_usd,
    )


def _send(cycle: Cycle, chunk: ChunkRecord, submission: SubmissionRecord) -> None:
    provider, timeout_s = cycle.plan.provider, cycle.plan.job.timing.effective_create_timeout_s
    with cycle.artifacts.local(chunk.requests) as path:
        upload = _upload(cycle, chunk, submission, path)
        if upload is None:
            return
        if not _allow_create(cycle, submission, upload, timeout_s):
            cycle.store.void(
                cycle.lease,
                submission.submission_id,
                reason="another create call of the account is in doubt",
                not_before=cycle.in_seconds(cycle.plan.job.timing.poll_s),
            )
            return
        cycle.probe("submit.create_allowed")
        try:
            batch = provider.create(
                upload_ref=upload.ref,
                path=path,
                key=submission.key,
                tags={RUN_TAG: cycle.run.run_id},
                timeout_s=timeout_s,
            )
        except ProviderError as exc:
            _create_failed(cycle, chunk, submission, exc.fault, upload.ref)
            return
    cycle.probe("submit.created")
    cycle.store.activate(
        cycle.lease,
        submission.submission_id,
        provider_batch_id=batch.batch_id,
        provider_status=batch.status,
        next_poll_at=cycle.in_seconds(cycle.plan.job.timing.poll_s),
        adopted=False,
    )
    cycle.probe("submit.activated")


def _allow_create(
    cycle: Cycle, submission: SubmissionRecord, upload: Upload, timeout_s: float
) -> bool:
    """Commit that a create may be under way until the lease's end; whether it may begin now.

    The lease is not extended after that: the call would outlast the end that is stored, and by
    which others conclude that nothing comes any more.
    """
    while True:
        cycle.keeper.renew()
        may_create = cycle.store.allow_create(
            cycle.lease,
            submission.submission_id,
            upload.ref,
            server_time=upload.server_time,
            alone_since=_alone_since(cycle),
        )
        if not may_create or cycle.keeper.remaining_s > timeout_s:
            return may_create


def _upload(
    cycle: Cycle, chunk: ChunkRecord, submission: SubmissionRecord, path: Path
) -> Upload | None:
    """Upload the request file; None where it failed, and then nothing was created."""
    try:
        upload = cycle.plan.provider.upload(path, key=submission.key, progress=cycle.keeper.keep)
    except ProviderError as exc:
        refuse(cycle, chunk, submission, exc.fault, upload_ref=None)
        return None
    cycle.probe("submit.uploaded")
    return upload


def _create_failed(
    cycle: Cycle,
    chunk: ChunkRecord,
    submission: SubmissionRecord,
    fault: Fault,
    upload_ref: str | None,
) -> None:
    if fault.kind is FaultKind.UNKNOWN_OUTCOME:
        cycle.store.create_unknown(
            cycle.lease, submission.submission_id, server_time=None, message=fault.message
        )
        logger.warning(
            "run %s: the create call for chunk %d came back without a verdict (%s); looking for "
            "the batch before anything is sent again",
            cycle.run.run_id,
            chunk.seq,
            fault.message,
        )
        cycle.probe("submit.create_unknown")
        return
    refuse(cycle, chunk, submission, fault, upload_ref=upload_ref)


def refuse(
    cycle: Cycle,
    chunk: ChunkRecord,
    submission: SubmissionRecord,
    fault: Fault,
    *,
    upload_ref: str | None,
) -> None:
    """Settle a submission of which certainly no batch came, by what its fault asks for."""
    delay_s = backoff_s(
        chunk.refusals, policy=cycle.plan.job.retry_policy, asked_s=fault.retry_after_s
    )
    waits = fault.kind not in (FaultKind.SIZE, FaultKind.ACCOUNT)
    chunk = cycle.store.void(
        cycle.lease,
        submission.submission_id,
        reason=f"{fault.code}: {fault.message}",
        not_before=cycle.in_seconds(delay_s) if waits else None,
    )
    cycle.probe("submit.voided")
    remove_remote_files(cycle, upload_ref=upload_ref)
    logger.warning("run %s: chunk %d was not sent: %s", cycle.run.run_id, chunk.seq, fault.message)
    if fault.kind is FaultKind.ACCOUNT or _stays_missing(chunk, fault, upload_ref):
        cycle.pause(f"{fault.code}: {fault.message}")
    elif fault.kind is FaultKind.SIZE:
        _split_or_abandon(cycle, chunk, fault.message)
    elif fault.kind is FaultKind.REJECTED:
        cycle.store.abandon_chunks(cycle.lease, [chunk.seq], fault.code, fault.message)
    elif fault.kind is FaultKind.CAPACITY:
        _remember(cycle, fault, delay_s)
        if chunk.refusals >= MOST_REFUSALS and _exceeds_alone(chunk, fault):
            _split_or_abandon(cycle, chunk, fault.message)


def _stays_missing(chunk: ChunkRecord, fault: Fault, upload_ref: str | None) -> bool:
    """Whether a 404 is no lag: one, soon after an upload that was answered, may be (facts 0.9)."""
    if fault.kind is not FaultKind.MISSING:
        return False
    return upload_ref is None or chunk.refusals >= _MOST_MISSING


def _exceeds_alone(chunk: ChunkRecord, fault: Fault) -> bool:
    """Whether a single request is larger than the limit that the provider names."""
    named = fault.limit if fault.limit_unit == "tokens" else None
    return chunk.item_count == 1 and named is not None and chunk.input_tokens > named


def _remember(cycle: Cycle, fault: Fault, delay_s: float) -> None:
    limits = ScopeLimits(
        max_tokens=fault.limit if fault.limit_unit == "tokens" else None,
        max_requests=fault.limit if fault.limit_unit == "requests" else None,
    )
    cycle.store.remember_limits(cycle.run.scope, limits, cycle.in_seconds(delay_s))


def _wait_for_room(cycle: Cycle, full: ScopeFull) -> None:
    """Let the scope rest for a poll, so that its runs do not all knock at a full queue."""
    logger.info("run %s: nothing more is sent for now: %s", cycle.run.run_id, full.reason)
    if full.retry_at is None:
        rest = cycle.in_seconds(cycle.plan.job.timing.poll_s)
        cycle.store.remember_limits(cycle.run.scope, ScopeLimits(), rest)


def _split_or_abandon(cycle: Cycle, chunk: ChunkRecord, reason: str) -> None:
    """Replace a ready chunk by two halves; a chunk of one item fails as too large.

    A crash leaves the chunk ready, and files that nothing points at.
    """
    if chunk.item_count == 1:
        code = ItemErrorCode.REQUEST_TOO_LARGE
        cycle.store.abandon_chunks(cycle.lease, [chunk.seq], code, reason)
        return
    items, middle = items_of(cycle, chunk), chunk.item_count // 2
    halves: list[NewChunk] = []
    for half in (items.slice(0, middle), items.slice(middle)):
        seq = next_seq(cycle) + len(halves)
        position = Position(seq=seq, round=chunk.round, parent_seq=chunk.seq)
        halves += recut(cycle, [(chunk, half)], position)
    cycle.probe("split.sealed")
    cycle.store.split_chunk(cycle.lease, chunk.seq, halves)
