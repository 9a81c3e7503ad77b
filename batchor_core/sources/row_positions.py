"""Positions and places of sources that count rows."""

from collections.abc import Mapping

from batchor_core.errors import SourceError
from batchor_core.sources.protocol import Position


def row_number(position: Position | None, label: str) -> int:
    """Return the 0-based row of a position ``{"row": n}``; None is the first.

    Raises:
        SourceError: The position was made by another kind of source.
    """
    return 0 if position is None else position_number(position, "row", label)


def position_number(position: Position, key: str, label: str) -> int:
    """Return one number of a stored position.

    Raises:
        SourceError: The position was made by another kind of source.
    """
    value = position.get(key)
    if type(value) is not int or value < 0:
        raise no_position(position, label)
    return value


def inner_position(position: Position, key: str, label: str) -> Position:
    """Return the stored position in a part of the source.

    Raises:
        SourceError: The position was made by another kind of source.
    """
    value = position.get(key)
    if not isinstance(value, Mapping):
        raise no_position(position, label)
    return value


def no_position(position: Position, label: str) -> SourceError:
    """Return the refusal of a position that another kind of source has made."""
    return SourceError(f"{label}: {dict(position)!r} is not a position in this source")
