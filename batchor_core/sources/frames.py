"""Rows of Polars frames, and of Arrow tables, datasets and streams."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads

from batchor_core.errors import SourceError
from batchor_core.sources.fingerprints import rows_fingerprint
from batchor_core.sources.protocol import BLOCK_ROWS, ItemBlock, Position
from batchor_core.sources.row_ids import check_column, item_ids
from batchor_core.sources.row_positions import row_number
from batchor_core.sources.spool import Spool


class FrameItemSource:
    """The rows of a frame, in its order; positions are ``{"row": n}``.

    A Polars frame is used as it is; so is an Arrow table, without copying, except for its UUID
    columns, which become text. A lazy frame or an Arrow dataset is executed once, in batches, into
    a temporary file, and never held as a whole; so that a run that was killed can go on in another
    process, it must yield its rows in the same order again (sort after a join or a ``group_by``).
    A record batch reader, or any other object that hands out an Arrow stream (a DuckDB relation),
    is read once, likewise.

    Args:
        frame: The rows.
        id_column: Column that holds the items' keys; None: the row number is the key.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        frame: pl.DataFrame | pl.LazyFrame | pa.Table | pa.RecordBatchReader | pads.Dataset,
        id_column: str | None = None,
        *,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._label, self._frame = _input_of(frame)
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
        if isinstance(self._frame, pl.DataFrame):
            return self._frame.schema
        with _failures(self.label):
            return self._frame.schema()

    def _slices(self, row: int) -> Iterator[pl.DataFrame]:
        if not isinstance(self._frame, pl.DataFrame):
            yield from (frame for _, frame in self._spool.blocks(row))
            return
        if row and row >= self._frame.height:  # a block's position is always that of a row
            raise SourceError(f"{self.label}: there is no row {row}")
        yield from _in_blocks(self._frame.slice(row), self._block_rows)

    @cached_property
    def _spool(self) -> Spool[pl.DataFrame]:
        assert not isinstance(self._frame, pl.DataFrame)
        return Spool(self._read, self.label, is_once=self._frame.is_once)

    def _read(self) -> Iterator[pl.DataFrame]:
        assert not isinstance(self._frame, pl.DataFrame)
        with _failures(self.label):
            for batch in self._frame.batches(self._block_rows):
                yield from _in_blocks(batch, self._block_rows)

    def _ids(self, frame: pl.DataFrame, row: int) -> list[str] | None:
        if self._id_column is None:
            return None
        values = frame.get_column(self._id_column).to_list()
        return item_ids(values, self._id_column, lambda n: f"{self.label}, row {row + n}")


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


@dataclass(frozen=True, kw_only=True)
class _Query:
    """Rows that come in batches, from the first on.

    Attributes:
        schema: Gives names and types without reading a row.
        batches: Reads the rows, in batches of about so many.
        is_once: Whether that can be done only once.
    """

    schema: Callable[[], pl.Schema]
    batches: Callable[[int], Iterator[pl.DataFrame]]
    is_once: bool


def _input_of(given: Any) -> tuple[str, pl.DataFrame | _Query]:
    """Return what messages call it, and its rows."""
    if isinstance(given, pl.DataFrame):
        return "polars frame", given
    if isinstance(given, pl.LazyFrame):
        return "polars lazy frame", _lazy_query(given)
    if isinstance(given, pa.Table):
        return "arrow table", frame_of_arrow(given, "arrow table")
    if isinstance(given, pads.Dataset):
        return "arrow dataset", _dataset_query(given)
    if hasattr(given, "__arrow_c_stream__"):
        return "arrow stream", _stream_query(given)
    raise SourceError(
        f"a {type(given).__name__} is no Polars frame, and no Arrow table, dataset or stream"
    )


def _lazy_query(frame: pl.LazyFrame) -> _Query:
    def batches(rows: int) -> Iterator[pl.DataFrame]:
        if not hasattr(frame, "collect_batches"):  # Polars before 1.34
            return iter((frame.collect(engine="streaming"),))
        return frame.collect_batches(chunk_size=rows, maintain_order=True, lazy=True)

    return _Query(schema=frame.collect_schema, batches=batches, is_once=False)


def _dataset_query(dataset: pads.Dataset) -> _Query:
    def batches(rows: int) -> Iterator[pl.DataFrame]:
        for part in _parts_of(dataset):
            for batch in part(batch_size=rows, batch_readahead=2, fragment_readahead=1):
                yield _frame_of_batch(batch, "arrow dataset")

    return _Query(
        schema=lambda: _schema_of_arrow(dataset.schema, "arrow dataset"),
        batches=batches,
        is_once=False,
    )


def _parts_of(dataset: pads.Dataset) -> Iterator[Callable[..., Iterator[pa.RecordBatch]]]:
    """Yield what scans the dataset part by part, in order.

    Of a dataset as a whole Arrow reads up to a gigabyte ahead, whatever it is told.
    """
    try:
        fragments = dataset.get_fragments()
    except ValueError:  # it has a filter or a projection, which its fragments would not know of
        yield dataset.to_batches
        return
    for fragment in fragments:
        is_parquet = isinstance(fragment, pads.ParquetFileFragment)
        for part in fragment.split_by_row_group() if is_parquet else (fragment,):
            # With the dataset's schema: it may have columns that stand in the folders' names.
            yield functools.partial(part.to_batches, schema=dataset.schema)


def _stream_query(given: Any) -> _Query:
    reader = pa.RecordBatchReader.from_stream(given)

    def batches(rows: int) -> Iterator[pl.DataFrame]:
        del rows  # the stream's maker has chosen
        return (_frame_of_batch(batch, "arrow stream") for batch in reader)

    return _Query(
        schema=lambda: _schema_of_arrow(reader.schema, "arrow stream"),
        batches=batches,
        is_once=True,
    )


def _frame_of_batch(batch: pa.RecordBatch, label: str) -> pl.DataFrame:
    return frame_of_arrow(pa.Table.from_batches([batch]), label)


def _schema_of_arrow(schema: pa.Schema, label: str) -> pl.Schema:
    return frame_of_arrow(schema.empty_table(), label).schema


@contextmanager
def _failures(label: str) -> Iterator[None]:
    """Turn what running a query may raise into a ``SourceError`` of one line."""
    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError) as error:
        first_line = str(error).partition("\n")[0]
        raise SourceError(f"{label}: {type(error).__name__}: {first_line}") from error


def _in_blocks(frame: pl.DataFrame, block_rows: int) -> Iterator[pl.DataFrame]:
    # Not iter_slices: for a frame without rows it yields one empty slice.
    for start in range(0, frame.height, block_rows):
        yield frame.slice(start, block_rows)
