"""Instants in HTTP headers: the provider's clock, which may differ from ours."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def server_time(headers: Mapping[str, str]) -> datetime | None:
    """Return the instant at which a server answered, by its own clock."""
    return http_date(headers.get("date"))


def http_date(text: str | None) -> datetime | None:
    """Return the instant that an HTTP date names, aware, in UTC; None for what is none."""
    try:
        parsed = parsedate_to_datetime(text or "")
        # "-0000" means UTC as well, but is parsed as a naive time.
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
