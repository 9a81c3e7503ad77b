"""Positions and places of sources that count rows."""

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
        raise SourceError(f"{label}: {dict(position)!r} is not a position in this source")
    return value
