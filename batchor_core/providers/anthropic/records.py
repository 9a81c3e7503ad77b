"""Anthropic's batches as they come over the wire, read without trust in their shape."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from batchor_core.providers.protocol import BatchPhase, ProviderBatch
from batchor_core.providers.wire import UnusableAnswerError, count_of, id_of, required_id, text_of

_STATUS_CHARS = 64
_TIME_CHARS = 64
_PARTIAL = ("canceled", "expired")


def page_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a list page.

    Raises:
        UnusableAnswerError: It is no list: nothing may be concluded from what it does not show.
    """
    data = record.get("data")
    if not isinstance(data, list):
        raise UnusableAnswerError("a list of batches without 'data'")
    return [entry for entry in data if isinstance(entry, dict) and id_of(entry, "id")]


def batch_of(record: Mapping[str, Any]) -> ProviderBatch:
    """Return a batch record in our words; it carries nothing of ours, and is never rejected.

    Raises:
        UnusableAnswerError: It has no id.
    """
    batch_id = required_id(record)
    status = text_of(record.get("processing_status")).lower()[:_STATUS_CHARS]
    counts = _counts(record.get("request_counts"))
    has_ended = status == "ended"  # else in_progress, canceling, or a word we do not know
    result = {
        "batch_id": batch_id,
        "results_url": id_of(record, "results_url"),
        "archived_at": id_of(record, "archived_at"),
    }
    return ProviderBatch(
        batch_id=batch_id,
        phase=BatchPhase.ENDED if has_ended else BatchPhase.WORKING,
        status=status or "unknown",
        created_at=instant_of(record.get("created_at")),
        counts=counts,
        executed=sum((counts or {}).get(name, 0) for name in ("succeeded", "errored")) or None,
        result=result if has_ended else None,
        is_partial=has_ended and any((counts or {}).get(name, 0) > 0 for name in _PARTIAL),
    )


def instant_of(value: object) -> datetime | None:
    """Return the instant of an RFC 3339 text; None for what is none."""
    text = text_of(value)
    if not 10 < len(text) <= _TIME_CHARS:
        return None
    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, Mapping):
        return None
    return {str(name): n for name, value in counts.items() if (n := count_of(value)) is not None}
