"""The user's keys: what a value of the id column becomes, and what is refused."""

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Sequence

from batchor_core.errors import MissingColumnError, SourceError

_BY_STR = (str, int, dt.date, dt.time, uuid.UUID)


def item_ids(values: Sequence[object], column: str, place: Callable[[int], str]) -> list[str]:
    """Return one id a row: text as it is, whole numbers in decimal, dates and UUIDs by ``str``.

    Args:
        values: The id column's values.
        column: Its name, for messages.
        place: Says where the n-th value stands, as ``tickets.csv, line 7``.

    Raises:
        SourceError: A value is null, empty or of a kind that does not make a stable key.
    """
    kinds = set(map(type, values))
    if kinds in ({str}, {int}):
        ids = list(map(str, values))
    else:
        ids = [_id_text(value, column, place, index) for index, value in enumerate(values)]
    if "" in ids:
        raise SourceError(f"{place(ids.index(''))}: the id column {column!r} is empty")
    return ids


def check_column(name: str | None, columns: Sequence[str], label: str) -> None:
    """Refuse a column that the source does not have, and say which ones there are.

    Raises:
        MissingColumnError: ``name`` is given and is not one of ``columns``.
    """
    if name is not None and name not in columns:
        raise MissingColumnError(f"no column {name!r} in {label}; it has: {', '.join(columns)}")


def _id_text(value: object, column: str, place: Callable[[int], str], index: int) -> str:
    if value is None:
        raise SourceError(f"{place(index)}: the id column {column!r} is null")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, _BY_STR) and not isinstance(value, bool):
        return str(value)
    raise SourceError(
        f"{place(index)}: the id column {column!r} holds a {type(value).__name__}; "
        "make it text or whole numbers"
    )
