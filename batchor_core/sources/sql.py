"""Rows of a SQL query."""

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec
import polars as pl
import sqlalchemy as sa

from batchor_core.errors import SourceError
from batchor_core.sources.fingerprints import rows_fingerprint
from batchor_core.sources.protocol import ItemBlock, Position
from batchor_core.sources.row_ids import check_column, item_ids
from batchor_core.sources.row_positions import no_position, row_number
from batchor_core.sources.spool import Spool

_Row = tuple[Any, ...]

_FETCH_ROWS = 1024
_TYPES = {
    str: pl.String(),
    int: pl.Int64(),
    float: pl.Float64(),
    bool: pl.Boolean(),
    bytes: pl.Binary(),
    dt.date: pl.Date(),
    dt.time: pl.Time(),
    dt.timedelta: pl.Duration("us"),
}
_INT64 = range(-(2**63), 2**63)


class SqlItemSource:
    """The rows that a query yields, fetched through a server-side cursor where there is one.

    Without ``order_by`` the query runs once, in its own order, into a temporary file. With it,
    nothing is stored: the rows come in the order of that column, and reading goes on in the
    middle by ``WHERE <order_by> > <last>``; the query then runs once for its fingerprint and once
    for its rows. Either way a run that was killed goes on in another process if the query yields
    the same rows; if they have changed, it begins again.

    A column of a block's frame has the type of its values in that block; where these are not all
    of one kind, or no frame has such a type (decimals, UUIDs, JSON), it holds their text, so that
    what a value looks like in a prompt never depends on other rows. A function that builds prompts
    sees the driver's own values.

    Positions are ``{"row": n}``, or ``{"after": key}`` with ``order_by``.

    Args:
        database: A SQLAlchemy URL, or an engine. The URL is shown and stored nowhere.
        query: SQL text, with ``:name`` for a parameter, or a ``select()``.
        id_column: Column that holds the items' keys; None: the row number is the key.
        order_by: A column of whole numbers or text, unique and never null.
        parameters: Values of the query's parameters.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        database: str | sa.URL | sa.Engine,
        query: str | sa.Select[Any],
        id_column: str | None = None,
        *,
        order_by: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        block_rows: int = _FETCH_ROWS,
    ) -> None:
        self._database = database if isinstance(database, sa.Engine) else _parsed(database)
        self._query = sa.text(query.strip().rstrip(";")) if isinstance(query, str) else query
        self._id_column = id_column
        self._order_by = order_by
        self._parameters = dict(parameters or {})
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """What messages call it."""
        return "SQL query"

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the columns: the query is begun, and no row is fetched."""
        with self._result(self._query) as result:
            names = list(result.keys())
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise SourceError(f"{self.label}: more than one column is named {repeated[0]!r}")
        for name in (self._id_column, self._order_by):
            check_column(name, names, self.label)
        return names

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        if self._order_by is not None:
            return self._ordered_blocks(position)
        return self._spooled_blocks(row_number(position, self.label))

    def fingerprint(self) -> str:
        """Return the hash of names and values, as they were when they were first asked for."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        shape = repr((self._id_column, self._order_by, list(self.columns)))
        found = self._spool.blocks() if self._order_by is None else self._ordered(None)
        return rows_fingerprint(shape, (rows for _, rows in found), self.label)

    def _spooled_blocks(self, row: int) -> Iterator[ItemBlock]:
        _ = self.columns
        for first, rows in self._spool.blocks(row):
            yield self._block(rows, {"row": first}, first, "")

    def _ordered_blocks(self, position: Position | None) -> Iterator[ItemBlock]:
        after = self._key_of(position)
        where = "" if after is None else f" after key {after!r}"
        row = 0
        for last, rows in self._ordered(after):
            yield self._block(rows, {"after": last}, row, where)
            row += len(rows)
        if after is not None and not row:  # a block's position is always that of a row
            raise SourceError(f"{self.label}: there is no row after key {after!r}")

    @cached_property
    def _spool(self) -> Spool[list[_Row]]:
        return Spool(lambda: self._fetched(self._statement()), self.label, is_once=False)

    def _ordered(self, after: Any) -> Iterator[tuple[Any, list[_Row]]]:
        """Yield (key of the row before, rows) in the order of the key."""
        assert self._order_by is not None
        index = list(self.columns).index(self._order_by)
        for rows in self._fetched(self._statement(after)):
            before = after
            for row in rows:
                after = self._next_key(row[index], after)
            yield before, rows

    def _next_key(self, key: Any, before: Any) -> Any:
        problem = None
        if key is None:
            problem = "is null"
        elif type(key) not in {int, str}:
            problem = f"holds a {type(key).__name__}, not whole numbers or text"
        elif key == before:
            problem = f"holds {key!r} more than once"
        if problem is not None:
            raise SourceError(f"{self.label}: the column {self._order_by!r} to order by {problem}")
        return key

    def _key_of(self, position: Position | None) -> Any:
        if position is None:
            return None
        after = position.get("after")
        if "after" not in position or type(after) not in {int, str, type(None)}:
            raise no_position(position, self.label)
        return after

    def _statement(self, after: Any = None) -> sa.Executable:
        query = self._query
        if self._order_by is None:
            return query
        if isinstance(query, sa.TextClause):
            rows = query.columns(sa.column(self._order_by)).subquery("batchor_rows")
            every: sa.Select[Any] = sa.select(sa.literal_column("*")).select_from(rows)
        else:
            rows = query.subquery("batchor_rows")
            every = sa.select(rows)
        key = rows.c[self._order_by]
        every = every.order_by(key)
        return every if after is None else every.where(key > after)

    def _fetched(self, statement: sa.Executable) -> Iterator[list[_Row]]:
        with self._result(statement) as result:
            for rows in result.partitions(self._block_rows):
                yield [tuple(row) for row in rows]

    @contextmanager
    def _result(self, statement: sa.Executable) -> Iterator[sa.CursorResult[Any]]:
        with (
            _failures(self.label),
            _engine(self._database) as engine,
            engine.connect() as connection,
        ):
            streaming = connection.execution_options(
                stream_results=True, yield_per=self._block_rows
            )
            with streaming.execute(statement, self._parameters) as result:
                yield result

    def _block(self, rows: list[_Row], position: Position, first: int, where: str) -> ItemBlock:
        names = list(self.columns)
        values = list(zip(*rows, strict=True))
        ids = None
        if self._id_column is not None:
            ids = item_ids(
                values[names.index(self._id_column)],
                self._id_column,
                lambda n: f"{self.label}, row {first + n}{where}",
            )
        return ItemBlock(
            position=position,
            frame=pl.DataFrame(list(map(_series, names, values))),
            item_ids=ids,
            records=[dict(zip(names, row, strict=True)) for row in rows],
        )


def _series(name: str, values: Sequence[Any]) -> pl.Series:
    """Return a column of one type, or of text."""
    kinds = set(map(type, values)) - {type(None)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is dt.datetime:
        zones = {value.tzinfo is None for value in values if value is not None}
        if zones == {True}:
            return pl.Series(name, values, dtype=pl.Datetime("us"))
        if zones == {False}:
            moments = [None if v is None else v.astimezone(dt.UTC) for v in values]
            return pl.Series(name, moments, dtype=pl.Datetime("us", "UTC"))
    if kind in _TYPES and not (kind is int and _is_long(values)):
        return pl.Series(name, values, dtype=_TYPES[kind])
    return pl.Series(name, [None if v is None else _text(v) for v in values], dtype=pl.String)


def _is_long(values: Sequence[Any]) -> bool:
    return any(value is not None and value not in _INT64 for value in values)


def _text(value: Any) -> str:
    """Return what a template makes of a value in a column of its own type."""
    match value:
        case bool():
            return "true" if value else "false"
        case decimal.Decimal():
            return format(value, "f")
        case dt.datetime() if value.tzinfo is not None:
            return str(value.astimezone(dt.UTC))
        case dict() | list():
            return msgspec.json.encode(value).decode()
        case _:
            return str(value)


def _parsed(url: str | sa.URL) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        # Without its cause, which may quote the URL with the password in it.
        raise SourceError("the database is no SQLAlchemy URL, such as sqlite:///rows.db") from None
    if parsed.drivername in {"postgresql", "postgres"}:  # SQLAlchemy would look for psycopg2
        return parsed.set(drivername="postgresql+psycopg")
    return parsed


@contextmanager
def _engine(database: sa.URL | sa.Engine) -> Iterator[sa.Engine]:
    """Hand out the user's engine, or one that keeps no connection."""
    if isinstance(database, sa.Engine):
        yield database
        return
    engine = sa.create_engine(database, poolclass=sa.NullPool)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _failures(label: str) -> Iterator[None]:
    """Turn what a database may raise into a ``SourceError`` of one line, without the statement."""
    try:
        yield
    except ImportError as error:
        raise SourceError(f"{label}: {error}") from error
    except sa.exc.SQLAlchemyError as error:
        reason = getattr(error, "orig", None) or error
        first_line = str(reason).partition("\n")[0]
        # Without its cause, whose text has the values of the query's parameters.
        raise SourceError(f"{label}: {type(reason).__name__}: {first_line}") from None
