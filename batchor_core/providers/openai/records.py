"""OpenAI's files and batches as they come over the wire, read without trust in their shape."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.openai.faults import batch_fault
from batchor_core.providers.protocol import BatchPhase, ProviderBatch

METADATA_KEY = "batchor_key"
_STATUS_CHARS = 64
_ENDED = frozenset({"completed", "succeeded", "expired", "cancelled", "canceled"})
_PARTIAL = frozenset({"expired", "cancelled", "canceled"})
_REJECTED = frozenset({"failed"})


class UnusableAnswerError(Exception):
    """A 200 whose body is not the JSON object that the protocol promises."""


def object_of(content: bytes) -> dict[str, Any]:
    """Return the JSON object that an answer consists of.

    Raises:
        UnusableAnswerError: It is something else, such as a proxy's page.
    """
    decoded = decode_json(content)
    if not isinstance(decoded, dict):
        raise UnusableAnswerError("HTTP 200 with a body that is no JSON object")
    return decoded


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
    phase = _phase(status, record, has_results=any(result.values()))
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
        counts=_counts(record.get("request_counts")),
        result=result,
        fault=fault,
        line_faults=lines,
        is_partial=status in _PARTIAL,
    )


def _phase(status: str, record: Mapping[str, Any], *, has_results: bool) -> BatchPhase:
    if status in _ENDED:
        return BatchPhase.ENDED
    if status in _REJECTED:
        # Azure names result files for batches that failed validation, too.
        ran = has_results and (_ran(record.get("request_counts")) or not record.get("errors"))
        return BatchPhase.ENDED if ran else BatchPhase.REJECTED
    return BatchPhase.WORKING  # validating, in_progress, finalizing, and words we do not know


def _ran(counts: object) -> bool:
    seen = _counts(counts) or {}
    return any(seen.get(name, 0) > 0 for name in ("completed", "failed"))


def _counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, Mapping):
        return None
    return {str(name): n for name, value in counts.items() if (n := count_of(value)) is not None}


def count_of(value: object) -> int | None:
    """Return a count of 0 or more, which some hosts send as a text; None if it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**53 else None


def id_of(record: Mapping[str, Any], field: str) -> str | None:
    """Return an id; null and "" both mean that there is none (Azure, facts 1.1)."""
    value = record.get(field)
    return value if isinstance(value, str) and value else None


def required_id(record: Mapping[str, Any]) -> str:
    """Return a record's own id.

    Raises:
        UnusableAnswerError: It has none.
    """
    value = id_of(record, "id")
    if value is None:
        raise UnusableAnswerError("HTTP 200 with an object that has no id")
    return value


def text_of(value: object) -> str:
    """Return a text; nothing for anything else."""
    return value if isinstance(value, str) else ""


def instant_of(value: object) -> datetime | None:
    """Return the instant of a Unix time in seconds; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(value, UTC) if value > 0 and math.isfinite(value) else None
    except (ValueError, OverflowError, OSError):
        return None
