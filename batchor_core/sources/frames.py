"""Rows of Polars frames and Arrow tables."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import polars as pl
import pyarrow as pa

from batchor_core.errors import SourceError
from batchor_core.sources.fingerprints import rows_fingerprint
from batchor_core.sources.protocol import BLOCK_ROWS, ItemBlock, Position
from batchor_core.sources.row_ids import check_column, item_ids
from batchor_core.sources.row_positions import row_number


class FrameItemSource:
    """The rows of a frame, in its order; positions are ``{"row": n}``.

    A lazy frame is executed in streaming mode each time it is opened and never held as a whole;
    what it yields must come in the same order every time (sort after a join or a ``group_by``).
    An Arrow table is used without copying, except for its UUID columns, which become text.

    Args:
        frame: The rows.
        id_column: Column that holds the items' keys; None: the row number is the key.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        frame: pl.DataFrame | pl.LazyFrame | pa.Table,
        id_column: str | None = None,
        *,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._label, self._frame = _polars_frame(frame)
        self._id_column = id_column
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """What messages call it."""
        return self._label

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the columns; of a lazy frame, found without running it."""
        names = list(self._schema)
        check_column(self._id_column, names, self.label)
        return names

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        _ = self.columns
        row = row_number(position, self.label)
        for frame in self._slices(row):
            yield ItemBlock(
                position={"row": row},
                frame=frame,
                item_ids=self._ids(frame, row),
            )
            row += frame.height

    def fingerprint(self) -> str:
        """Return the hash of names, types, values and the id column's name."""
        dtypes = [(name, str(dtype)) for name, dtype in self._schema.items()]
        rows = (frame.rows() for frame in self._slices(0))
        return rows_fingerprint(repr((self._id_column, dtypes)), rows, self.label)

    @cached_property
    def _schema(self) -> pl.Schema:
        try:
            return self._frame.collect_schema()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._failure(error) from error

    def _slices(self, row: int) -> Iterator[pl.DataFrame]:
        rest = self._frame.slice(row)
        found = False
        try:
            for batch in _stream(rest, self._block_rows):
                for block in _in_blocks(batch, self._block_rows):
                    found = True
                    yield block
        except (pl.exceptions.PolarsError, OSError) as error:
            raise self._failure(error) from error
        if row and not found:  # a block's position is always that of a row
            raise SourceError(f"{self.label}: there is no row {row}")

    def _ids(self, frame: pl.DataFrame, row: int) -> list[str] | None:
        if self._id_column is None:
            return None
        values = frame.get_column(self._id_column).to_list()
        return item_ids(values, self._id_column, lambda n: f"{self.label}, row {row + n}")

    def _failure(self, error: Exception) -> SourceError:
        first_line = str(error).partition("\n")[0]
        return SourceError(f"{self.label}: {type(error).__name__}: {first_line}")


def frame_of_arrow(table: pa.Table, label: str) -> pl.DataFrame:
    """Return the table as a frame that shares its memory; UUIDs become text.

    Raises:
        SourceError: Two columns have the same name, or Polars has no such type.
    """
    for index, field in enumerate(table.schema):
        if isinstance(field.type, pa.UuidType):  # Polars would make bytes of them
            texts = [None if u is None else str(u) for u in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    repeated = sorted({n for n in table.column_names if table.column_names.count(n) > 1})
    if repeated:
        raise SourceError(f"{label}: more than one column is named {repeated[0]!r}")
    try:
        frame = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise SourceError(f"{label}: {error}") from error
    assert isinstance(frame, pl.DataFrame)
    return frame


def _polars_frame(
    frame: pl.DataFrame | pl.LazyFrame | pa.Table,
) -> tuple[str, pl.DataFrame | pl.LazyFrame]:
    if isinstance(frame, pl.DataFrame):
        return "polars frame", frame
    if isinstance(frame, pl.LazyFrame):
        return "polars lazy frame", frame
    if isinstance(frame, pa.Table):
        return "arrow table", frame_of_arrow(frame, "arrow table")
    raise SourceError(f"a {type(frame).__name__} is neither a Polars frame nor an Arrow table")


def _in_blocks(frame: pl.DataFrame, block_rows: int) -> Iterator[pl.DataFrame]:
    # Not iter_slices: for a frame without rows it yields one empty slice.
    for start in range(0, frame.height, block_rows):
        yield frame.slice(start, block_rows)


def _stream(frame: pl.DataFrame | pl.LazyFrame, block_rows: int) -> Iterator[pl.DataFrame]:
    if isinstance(frame, pl.DataFrame):
        yield frame
        return
    if not hasattr(frame, "collect_batches"):  # Polars before 1.34
        yield frame.collect(engine="streaming")
        return
    yield from frame.collect_batches(chunk_size=block_rows, maintain_order=True, lazy=True)
