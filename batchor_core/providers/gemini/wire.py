"""Google's JSON: field names in either spelling, counts as texts, times with nanoseconds."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_FRACTION = re.compile(r"\.(\d{6})\d+")


def field(record: object, *path: str) -> Any:
    """Return a value by its camelCase path, each step in that spelling or in snake_case.

    None where a step is missing, or leads into something that is no object.
    """
    for name in path:
        if not isinstance(record, Mapping):
            return None
        record = record[name] if name in record else record.get(_snake(name))
    return record


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def instant_of(value: object) -> datetime | None:
    """Return the instant of an RFC 3339 text; None for what is none."""
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        parsed = datetime.fromisoformat(_FRACTION.sub(r".\1", value))
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def camel(name: str) -> str:
    """Return a field's name in camelCase."""
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


@lru_cache(maxsize=256)
def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter.group().lower()}", name)
