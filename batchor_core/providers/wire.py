"""What comes over the wire, read without trust in its shape; all providers' adapters share it."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from batchor_core.providers.http_dates import http_date, server_time
from batchor_core.providers.loose_json import decode_json

MESSAGE_CHARS = 2_000
DEFINITE_REFUSALS = frozenset({400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 429})
"""After these a create certainly had no effect, with any provider; after anything else it may
have had."""
_RETRY_AFTER_CAP_S = 3_600.0


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


_MOST_TOKENS = 2**31
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)]
"""What ``tokens_in`` takes, for lines that are decoded by their types."""


def count_of(value: object) -> int | None:
    """Return a count of 0 or more, which some hosts send as a text; None if it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**53 else None


def tokens_in(value: object) -> int:
    """Return a number of tokens; 0 for what no answer can have used, so that sums stay sound."""
    count = count_of(value)
    return count if count is not None and count <= _MOST_TOKENS else 0


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


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, at most an hour; None if it does not.

    A date is held against the answer's own ``Date``: our clock may differ from the provider's.
    """
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return min(seconds, _RETRY_AFTER_CAP_S)
    until, now = http_date(headers.get("retry-after")), server_time(headers)
    if until is None or now is None:
        return None
    return min(max(0.0, (until - now).total_seconds()), _RETRY_AFTER_CAP_S)


def one_line(text: str) -> str:
    """Return ``text`` as one line that any database takes: no NUL, no lone surrogate."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())


def shortened(text: str) -> str:
    """Return a text of at most ``MESSAGE_CHARS`` characters."""
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"
