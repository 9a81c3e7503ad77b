"""How values that SQL has no common type for are stored. These formats are part of the data."""

# ruff: noqa: ARG002 - SQLAlchemy passes the dialect; nothing here depends on it

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Dialect, Integer, Text, TypeDecorator

from batchor_core.model.records import ArtifactRef

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

RowNumber = BigInteger().with_variant(Integer(), "sqlite")
"""A self-numbering primary key; SQLite numbers only a column declared as INTEGER."""


class Instant(TypeDecorator[datetime]):
    """An aware instant, as microseconds since 1970 in UTC: exact, and comparable everywhere."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Return microseconds; a naive value is a bug of the caller."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"an instant must be aware, got {value!r}")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """Return the aware instant."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class Json(TypeDecorator[Any]):
    r"""JSON as ASCII text: escaped, so that NUL and lone surrogates survive on every database.

    The store hardly ever looks inside (``json_text``), so a native JSON type would only add
    differences.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Return the text; None stays NULL."""
        if value is None:
            return None
        return json.dumps(value, separators=(",", ":"), default=_as_plain)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the parsed value."""
        return None if value is None else json.loads(value)


class Artifact(TypeDecorator[ArtifactRef]):
    """A pointer to a file of the data plane: path, size and SHA-256 as one JSON object."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: ArtifactRef | None, dialect: Dialect) -> str | None:
        """Return the text; None stays NULL."""
        return None if value is None else json.dumps(asdict(value), separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> ArtifactRef | None:
        """Return the pointer."""
        return None if value is None else ArtifactRef(**json.loads(value))


class Artifacts(TypeDecorator[tuple[ArtifactRef, ...]]):
    """Pointers to files of the data plane, as a JSON array of what ``Artifact`` stores."""

    impl = Text
    cache_ok = True

    def process_bind_param(
        self, value: tuple[ArtifactRef, ...] | None, dialect: Dialect
    ) -> str | None:
        """Return the text; None stays NULL."""
        if value is None:
            return None
        return json.dumps([asdict(ref) for ref in value], separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> tuple[ArtifactRef, ...]:
        """Return the pointers; none where there is nothing."""
        return tuple(ArtifactRef(**each) for each in json.loads(value or "[]"))


class State(TypeDecorator[StrEnum]):
    """A stored state, read back as a member of its enumeration."""

    impl = Text
    cache_ok = True

    def __init__(self, states: type[StrEnum]) -> None:
        super().__init__()
        self.states = states

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the stored word; one that is no state raises."""
        return None if value is None else self.states(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        """Return the enumeration's member."""
        return None if value is None else self.states(value)


class FreeText(TypeDecorator[str]):
    """A line that somebody else wrote (a provider, a user): made storable, never refused.

    PostgreSQL takes no NUL character and no database takes a lone surrogate.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text with what cannot be stored replaced."""
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _as_plain(value: object) -> object:
    """Turn read-only mappings and the like into what ``json`` knows."""
    try:
        return dict(value)  # type: ignore[call-overload]  # a mapping, or the TypeError below
    except (TypeError, ValueError):
        raise TypeError(f"{type(value).__name__} is not JSON") from None
