"""Google's batches as they come over the wire, read without trust in their shape."""

from collections.abc import Mapping
from typing import Any

from batchor_core.providers.gemini.faults import batch_fault
from batchor_core.providers.gemini.wire import field, instant_of, mapping_of
from batchor_core.providers.protocol import BatchPhase, ProviderBatch
from batchor_core.providers.wire import UnusableAnswerError, count_of, id_of, text_of

_STATUS_CHARS = 64
_PREFIXES = ("BATCH_STATE_", "JOB_STATE_")
_PARTIAL = frozenset({"cancelled", "expired"})
_ENDED = _PARTIAL | {"succeeded", "partially_succeeded"}


def operations_of(page: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the entries of a list page; Google leaves an empty list out.

    Raises:
        UnusableAnswerError: It is no list: nothing may be concluded from what it does not show.
    """
    entries = field(page, name)
    said = {key for key, value in page.items() if value}
    if entries is None and said <= {"nextPageToken", "next_page_token"}:
        return []
    if not isinstance(entries, list):
        raise UnusableAnswerError(f"a list of batches without {name!r}")
    return [entry for entry in entries if isinstance(entry, Mapping) and id_of(entry, "name")]


def developer_batch(operation: Mapping[str, Any]) -> ProviderBatch:
    """Return an operation of the Developer API in our words.

    Raises:
        UnusableAnswerError: It has no name.
    """
    batch_id = _name_of(operation)
    batch = mapping_of(field(operation, "metadata")) or operation
    output = mapping_of(field(batch, "output")) or mapping_of(field(operation, "response"))
    status = _status_of(batch)
    responses = field(output, "responsesFile")
    result: dict[str, Any] = {}
    if isinstance(responses, str) and responses:
        result = {"responses_file": responses}
    elif _inlined_in(output):
        result = {"inlined_in": batch_id}
    error = field(operation, "error") or field(batch, "error")
    counts = _counts(field(batch, "batchStats"), _DEVELOPER_COUNTS)
    phase = _phase(status, has_results=bool(result))
    if phase is BatchPhase.WORKING and field(operation, "done") is True:
        phase = BatchPhase.REJECTED if error else BatchPhase.ENDED
    return ProviderBatch(
        batch_id=batch_id,
        phase=phase,
        status=status,
        key=_text_or_none(field(batch, "displayName")),
        upload_ref=_text_or_none(field(batch, "inputConfig", "fileName")),
        created_at=instant_of(field(batch, "createTime")),
        counts=counts,
        # Google keeps no answers of what expired or was cancelled: nothing to wait for (facts 1.3).
        executed=None if status in _PARTIAL else _executed(counts),
        result=result,
        fault=batch_fault(error) if phase is BatchPhase.REJECTED else None,
        is_partial=status in _PARTIAL or (phase is BatchPhase.ENDED and _is_rest(status, result)),
    )


def vertex_batch(job: Mapping[str, Any]) -> ProviderBatch:
    """Return a batch prediction job of Vertex AI in our words.

    Raises:
        UnusableAnswerError: It has no name.
    """
    status = _status_of(job)
    stats = _counts(field(job, "completionStats"), _VERTEX_COUNTS)
    executed = _executed(stats)
    phase = _phase(status, has_results=bool(stats and stats.get("completed")))
    is_partial = phase is BatchPhase.ENDED and status != "succeeded"
    uris = field(job, "inputConfig", "gcsSource", "uris")
    result = {
        "output_folder": _text_or_none(field(job, "outputInfo", "gcsOutputDirectory")),
        "output_prefix": _text_or_none(
            field(job, "outputConfig", "gcsDestination", "outputUriPrefix")
        ),
        # All else says that there are answers: files that are merely late are waited for.
        "may_be_empty": status in _PARTIAL and not executed,
    }
    rejected = phase is BatchPhase.REJECTED
    return ProviderBatch(
        batch_id=_name_of(job),
        phase=phase,
        status=status,
        key=_text_or_none(field(job, "displayName")),
        upload_ref=_text_or_none(uris[0]) if isinstance(uris, list) and uris else None,
        created_at=instant_of(field(job, "createTime")),
        counts=stats,
        executed=executed,
        result=result,
        fault=batch_fault(field(job, "error")) if rejected else None,
        is_partial=is_partial,
    )


_DEVELOPER_COUNTS = {
    "requestCount": "total",
    "successfulRequestCount": "completed",
    "failedRequestCount": "failed",
}
_VERTEX_COUNTS = {
    "successfulCount": "completed",
    "failedCount": "failed",
    "incompleteCount": "incomplete",
}


def _phase(status: str, *, has_results: bool) -> BatchPhase:
    if status in _ENDED or (status == "failed" and has_results):
        return BatchPhase.ENDED
    if status == "failed":
        return BatchPhase.REJECTED
    return BatchPhase.WORKING  # pending, running, cancelling, and words we do not know


def _executed(counts: Mapping[str, int] | None) -> int | None:
    found = counts or {}
    return (found.get("completed", 0) + found.get("failed", 0)) or None


def _is_rest(status: str, result: Mapping[str, Any]) -> bool:
    return bool(result) and status in ("partially_succeeded", "failed")


def _status_of(batch: Mapping[str, Any]) -> str:
    """Return the state without its prefix: the SDK knows some spellings only (facts 0.4)."""
    state = text_of(field(batch, "state"))
    for prefix in _PREFIXES:
        state = state.removeprefix(prefix)
    return state.lower()[:_STATUS_CHARS] or "unknown"


def inlined_responses(operation: Mapping[str, Any]) -> list[Any]:
    """Return the responses that an operation holds itself."""
    batch = mapping_of(field(operation, "metadata")) or operation
    output = mapping_of(field(batch, "output")) or mapping_of(field(operation, "response"))
    return _inlined_in(output)


def _inlined_in(output: Mapping[str, Any]) -> list[Any]:
    for outer in ("inlinedResponses", "inlinedEmbedContentResponses"):
        found = field(output, outer)
        if isinstance(found, Mapping):
            found = field(found, "inlinedResponses") or field(found, outer)
        if isinstance(found, list) and found:
            return found
    return []


def _name_of(record: Mapping[str, Any]) -> str:
    name = id_of(record, "name")
    if name is None:
        raise UnusableAnswerError("HTTP 200 with a batch that has no name")
    return name


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _counts(stats: object, names: Mapping[str, str]) -> dict[str, int] | None:
    """Return counts by our names; they come as texts (int64 in protobuf's JSON)."""
    if not isinstance(stats, Mapping):
        return None
    told = {ours: count_of(field(stats, theirs)) for theirs, ours in names.items()}
    return {ours: count for ours, count in told.items() if count is not None}
