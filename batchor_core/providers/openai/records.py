"""OpenAI's files and batches as they come over the wire, read without trust in their shape."""

from collections.abc import Mapping
from typing import Any

from batchor_core.providers.openai.faults import batch_fault
from batchor_core.providers.protocol import BatchPhase, ProviderBatch
from batchor_core.providers.wire import (
    UnusableAnswerError,
    count_of,
    id_of,
    instant_of,
    required_id,
    text_of,
)

METADATA_KEY = "batchor_key"
_STATUS_CHARS = 64
_ENDED = frozenset({"completed", "succeeded", "expired", "cancelled", "canceled"})
_PARTIAL = frozenset({"expired", "cancelled", "canceled"})
_REJECTED = frozenset({"failed"})


def page_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a list page; null stands for an empty list on some hosts.

    Raises:
        UnusableAnswerError: It is no list: nothing may be concluded from what it does not show.
    """
    data = record.get("data", "no list")
    if data is None:
        return []
    if not isinstance(data, list):
        raise UnusableAnswerError("a list of batches without 'data'")
    return [entry for entry in data if isinstance(entry, dict) and id_of(entry, "id")]


def batch_of(record: Mapping[str, Any]) -> ProviderBatch:
    """Return a batch record in our words.

    Raises:
        UnusableAnswerError: It has no id.
    """
    status = text_of(record.get("status")).lower()[:_STATUS_CHARS]
    metadata = record.get("metadata")
    key = metadata.get(METADATA_KEY) if isinstance(metadata, Mapping) else None
    result = {
        "output_file_id": id_of(record, "output_file_id"),
        "errors_file_id": id_of(record, "error_file_id"),
    }
    counts = _counts(record.get("request_counts"))
    executed = (counts or {}).get("completed", 0) + (counts or {}).get("failed", 0)
    phase = _phase(status, record, counts or {}, has_results=any(result.values()))
    fault, lines = None, None
    if phase is BatchPhase.REJECTED:
        fault, lines = batch_fault(record.get("errors"))
    return ProviderBatch(
        batch_id=required_id(record),
        phase=phase,
        status=status or "unknown",
        key=key if isinstance(key, str) else None,
        upload_ref=id_of(record, "input_file_id"),
        created_at=instant_of(record.get("created_at")),
        counts=counts,
        executed=executed or None,
        result=result,
        fault=fault,
        line_faults=lines,
        is_partial=status in _PARTIAL,
    )


def _phase(
    status: str, record: Mapping[str, Any], counts: Mapping[str, int], *, has_results: bool
) -> BatchPhase:
    if status in _ENDED:
        return BatchPhase.ENDED
    if status in _REJECTED:
        # Azure names result files for batches that failed validation, too.
        has_run = has_results and (counts.get("failed") or not record.get("errors"))
        return BatchPhase.ENDED if counts.get("completed") or has_run else BatchPhase.REJECTED
    return BatchPhase.WORKING  # validating, in_progress, finalizing, and words we do not know


def _counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, Mapping):
        return None
    return {str(name): n for name, value in counts.items() if (n := count_of(value)) is not None}
