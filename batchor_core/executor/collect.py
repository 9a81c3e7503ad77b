"""From an ended provider batch to one outcome file: download, decode, judge, commit."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import zstandard

from batchor_core.errors import ArtifactError, ProviderError
from batchor_core.executor.accounts import pause_for_account, sees_account_of
from batchor_core.executor.answers import AnswerSheet
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.poll import is_lost, result_of
from batchor_core.executor.remote_files import remove_remote_files
from batchor_core.executor.submit import refuse
from batchor_core.executor.vector_answers import VectorSheet
from batchor_core.model.faults import Fault, FaultKind, FaultOwner, ItemErrorCode, ItemFault
from batchor_core.model.records import ArtifactRef, ChunkRecord, Collected, SubmissionRecord
from batchor_core.model.states import SubmissionState
from batchor_core.planning.retries import backoff_s
from batchor_core.providers.protocol import BatchPhase, RawPart

logger = logging.getLogger(__name__)

_COPY_BYTES = 1 << 20


def collect(cycle: Cycle) -> bool:
    """Collect every ended submission, oldest first, while the cycle has time.

    A crash leaves the results at the provider, and perhaps files that nothing points at: the next
    cycle downloads again. Results are never asked for twice once they are committed.

    Returns:
        Whether a submission was collected or settled.

    Raises:
        ArtifactError: A file of ours is lost, or none can be written.
    """
    did = False
    failed: ArtifactError | None = None
    states = [SubmissionState.ENDED]
    for submission in cycle.store.list_submissions(cycle.run.run_id, states=states):
        if cycle.is_over:
            break
        if submission.next_poll_at is not None and submission.next_poll_at > cycle.clock.now():
            continue
        try:
            did |= _collect_one(cycle, submission)
        except ArtifactError as exc:
            failed = exc  # the others' results expire: they are collected first
        cycle.keeper.keep()
    if failed is not None:
        raise failed
    return did


def _collect_one(cycle: Cycle, submission: SubmissionRecord) -> bool:
    chunk = cycle.store.get_chunk(cycle.run.run_id, submission.chunk_seq)
    result = submission.provider_result or {}
    if submission.is_provisional and result.get("lost"):
        _disprove(cycle, submission, "is not known any more, and was never proven to be ours")
        return True
    rejected = result.get("rejected")
    if rejected is not None and rejected["kind"] in _NOTHING_WRONG_WITH_IT:
        fault = Fault(**{**rejected, "kind": FaultKind(rejected["kind"])})
        refuse(cycle, chunk, submission, fault, upload_ref=submission.upload_ref)
        return True
    try:
        result = _asked_again(cycle, submission, result)
        collected = _judge_what_is_left(cycle, chunk, submission, result)
    except ProviderError as exc:
        return _download_failed(cycle, submission, exc)
    except _AnothersBatchError:
        _disprove(cycle, submission, "answers other requests")
        return True
    cycle.probe("collect.written")
    cycle.store.collect(cycle.lease, submission.submission_id, collected)
    cycle.probe("collect.committed")
    remove_remote_files(cycle, upload_ref=submission.upload_ref, files=result.get("files"))
    return True


class _AnothersBatchError(Exception):
    """The results of a batch that was adopted on suspicion are those of another chunk."""


def _disprove(cycle: Cycle, submission: SubmissionRecord, why: str) -> None:
    """Go on looking for the batch; the one that was taken for it is dropped by the next look."""
    reason = f"batch {submission.provider_batch_id} {why}"
    logger.warning("run %s: %s: looking on", cycle.run.run_id, reason)
    cycle.store.disprove(cycle.lease, submission.submission_id, reason=reason)


def _asked_again(
    cycle: Cycle, submission: SubmissionRecord, result: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Ask again about a batch of which something was missing: files may be named late.

    Raises:
        ProviderError: The provider cannot be asked.
    """
    if submission.next_poll_at is None or "files" not in result:
        return result
    try:
        seen = cycle.plan.provider.get(submission.provider_batch_id or "")
    except ProviderError as exc:
        if exc.fault.kind is not FaultKind.MISSING:
            raise
        return result
    if seen.phase is not BatchPhase.ENDED:
        return result
    named = {name: file for name, file in (seen.result or {}).items() if file}
    return {**result_of(seen), "files": {**result["files"], **named}}


def _judge_what_is_left(
    cycle: Cycle, chunk: ChunkRecord, submission: SubmissionRecord, result: Mapping[str, Any]
) -> Collected:
    """Judge all results; once files are proven to be lost, those that are there."""
    try:
        return _judge_results(cycle, chunk, submission, result)
    except ProviderError as exc:
        missing = exc.fault.kind is FaultKind.MISSING
        if not (missing and _is_lost(cycle, submission)):
            raise
        logger.warning("run %s: results are lost: %s", cycle.run.run_id, exc)
    return _judge_results(cycle, chunk, submission, {**result, "files_lost": True})


def _judge_results(
    cycle: Cycle, chunk: ChunkRecord, submission: SubmissionRecord, result: Mapping[str, Any]
) -> Collected:
    raw: tuple[ArtifactRef, ...] = ()
    is_paid_unseen = bool(result.get("lost"))
    with cycle.artifacts.spool() as folder, cycle.artifacts.local(chunk.items) as items:
        path = cycle.layout.outcomes(submission.submission_id, cycle.lease.token)
        with _sheet(cycle, chunk, items, path) as sheet:
            if "rejected" in result:
                _judge_rejected(sheet, result)
            elif result.get("lost"):
                sheet.close_rest(_lost(cycle, "the provider does not know this batch any more"))
            else:
                raw, is_paid_unseen = _judge_files(cycle, submission, sheet, result, folder)
            totals = sheet.commit()
    file = totals.file
    return Collected(
        outcomes=file.outcomes,
        ok_count=file.ok_count,
        failed_count=file.failed_count,
        retry_count=file.retry_count,
        retry_at=_retry_at(cycle, chunk) if file.retry_count else None,
        usage=replace(file.usage, cost_usd=None) if is_paid_unseen else file.usage,
        quarantined=totals.quarantined,
        raw=raw,
    )


def _sheet(cycle: Cycle, chunk: ChunkRecord, items: Path, path: str) -> AnswerSheet:
    dimensions = cycle.plan.dimensions
    if dimensions is None:
        return AnswerSheet(cycle, chunk, items, path)
    return VectorSheet(cycle, chunk, items, path, dimensions=dimensions)


def _judge_files(
    cycle: Cycle,
    submission: SubmissionRecord,
    sheet: AnswerSheet,
    result: Mapping[str, Any],
    folder: Path,
) -> tuple[tuple[ArtifactRef, ...], bool]:
    """Download and judge the result files.

    Returns:
        The copies that are kept of them, and whether something was paid that nobody can count.

    Raises:
        ProviderError: Items have no line, and it is too early to believe that.
    """
    parts = _download(cycle, result, folder)
    sheet.read(parts)
    if submission.is_provisional and sheet.is_anothers:
        raise _AnothersBatchError
    lost = _executed_unseen(sheet, result)
    is_first_look = submission.next_poll_at is None
    if not result.get("files_lost") and (
        (lost and not _is_lost(cycle, submission)) or (sheet.open_count and parts and is_first_look)
    ):
        raise _still_missing("incomplete_results", f"{sheet.open_count} item(s) have no line")
    sheet.close_faulted()
    if lost or result.get("files_lost"):
        sheet.close_rest(_lost(cycle, "the results are not at the provider any more"))
    else:
        sheet.close_rest(_NOT_EXECUTED if result.get("partial") else _MISSING)
    if cycle.plan.job.artifact_policy.raw_results == "drop":
        parts = []
    numbers: Counter[str] = Counter()
    kept: list[ArtifactRef] = []
    for part in parts:
        kept.append(_keep_raw(cycle, submission, part, numbers[part.kind]))
        numbers[part.kind] += 1
    return tuple(kept), bool(result.get("files_lost")) or lost > sheet.stranger_count


def _executed_unseen(sheet: AnswerSheet, result: Mapping[str, Any]) -> int:
    """Return how many requests the provider has executed, as it says, that have no line.

    A batch that has ended as completed has executed all, unless its counts say otherwise. Requests
    that were executed are waited for, and are lost in the end; only others are sent again.
    """
    executed = result.get("executed")
    if executed is None and result.get("partial"):
        return 0
    return sheet.missing_of(executed)


def _download(cycle: Cycle, result: Mapping[str, Any], folder: Path) -> list[RawPart]:
    try:
        return cycle.plan.provider.download_results(
            result["files"],
            folder,
            cycle.keeper.keep,
            leave_out_missing=result.get("files_lost", False),
        )
    except OSError as exc:
        raise ArtifactError(f"results cannot be stored in {str(folder)!r}: {exc}") from exc


def _judge_rejected(sheet: AnswerSheet, result: Mapping[str, Any]) -> None:
    """A rejected batch ran nothing: the lines it names fail, the rest is free to go again."""
    rejected = result["rejected"]
    for line, fault in result.get("lines", {}).items():
        sheet.close_line(int(line), ItemFault(**fault))
    sheet.close_rest(
        ItemFault(
            code=ItemErrorCode.REJECTED_BATCH,
            message=f"{rejected['code']}: {rejected['message']}",
            retryable=True,
            consumes_attempt=False,
        )
    )


def _retry_at(cycle: Cycle, chunk: ChunkRecord) -> datetime:
    return cycle.in_seconds(backoff_s(chunk.round, policy=cycle.plan.job.retry_policy))


def _is_lost(cycle: Cycle, submission: SubmissionRecord) -> bool:
    """Whether one more "no such file" is proof, and not the answer to a key of another account."""
    seen = is_lost(cycle.clock, submission, since=submission.ended_at)
    return seen and sees_account_of(cycle.store, cycle.plan.provider, submission)


def _download_failed(cycle: Cycle, submission: SubmissionRecord, error: ProviderError) -> bool:
    fault = error.fault
    if fault.kind is FaultKind.ACCOUNT:
        cycle.pause(f"{fault.code}: {fault.message}")
    missing = fault.kind is FaultKind.MISSING
    if missing and not sees_account_of(cycle.store, cycle.plan.provider, submission):
        pause_for_account(cycle.store, submission)
        missing = False
    wait_s = max(cycle.plan.job.timing.poll_s, fault.retry_after_s or 0.0)
    cycle.store.put_off_collect(
        cycle.lease,
        submission.submission_id,
        until=cycle.in_seconds(wait_s),
        missing=missing,
        reason=f"{fault.code}: {fault.message}",
    )
    logger.warning("run %s: results cannot be fetched yet: %s", cycle.run.run_id, error)
    return False


def _keep_raw(
    cycle: Cycle, submission: SubmissionRecord, part: RawPart, number: int
) -> ArtifactRef:
    """Keep the answers byte for byte; nothing but an export reads them."""
    path = cycle.layout.raw(submission.submission_id, cycle.lease.token, part.kind, number)
    compressor = zstandard.ZstdCompressor(level=3)
    with part.path.open("rb") as source, cycle.artifacts.writer(path) as file:
        compressor.copy_stream(source, file, read_size=_COPY_BYTES)  # type: ignore[arg-type]  # has write
        kept = file.commit()
    cycle.probe("collect.raw_kept")
    cycle.keeper.keep()
    return kept


def _item_fault(code: str, message: str, *, again: bool) -> ItemFault:
    return ItemFault(code=code, message=message, retryable=again, consumes_attempt=True)


_NOTHING_WRONG_WITH_IT = frozenset({FaultKind.CAPACITY, FaultKind.ACCOUNT, FaultKind.SIZE})
"""Why a whole batch is rejected without a fault of its rows: its chunk waits, or is split."""

_NOT_EXECUTED = ItemFault(
    code=ItemErrorCode.BATCH_EXPIRED,
    message="the batch ended before this request was executed",
    retryable=True,
    consumes_attempt=False,
)
_MISSING = _item_fault(
    ItemErrorCode.MISSING_RESULT, "the provider's results have no line for this item", again=True
)


def _still_missing(code: str, message: str) -> ProviderError:
    kind, owner = FaultKind.MISSING, FaultOwner.PROVIDER
    fault = Fault(kind=kind, owner=owner, code=code, message=message)
    return ProviderError(f"{code}: {message}", fault)


def _lost(cycle: Cycle, message: str) -> ItemFault:
    again = cycle.plan.job.on_lost == "resend"
    return _item_fault(ItemErrorCode.RESULTS_LOST, message, again=again)
