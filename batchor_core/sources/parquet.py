"""Rows of Parquet files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.errors import SourceError
from batchor_core.sources.frames import frame_of_arrow
from batchor_core.sources.protocol import BLOCK_ROWS, ItemBlock, Position
from batchor_core.sources.row_ids import check_column, item_ids
from batchor_core.sources.row_positions import position_number
from batchor_core.sources.streams import BLOCK_BYTES, InputFile, read_errors


class ParquetItemSource:
    """The rows of one Parquet file, with the file's types.

    Row groups are read one after the other, a block at a time; no block spans two of them.
    Positions are ``{"group": g, "row": r}``, both from 0, ``r`` within the group.

    Args:
        path: Local path or fsspec URL of a file; ``FilesItemSource`` reads folders.
        id_column: Column that holds the items' keys; None: the row number is the key.
        columns: Columns to read, in this order; None: all. The id column need not be among them.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | InputFile,
        id_column: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._file = InputFile.of(path)
        self._id_column = id_column
        self._named = None if columns is None else list(columns)
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """The file's name."""
        return self._file.label

    @cached_property
    def columns(self) -> Sequence[str]:
        """Names of the columns that are read."""
        with self._open() as file:
            present = file.schema_arrow.names
        for name in (self._id_column, *(self._named or ())):
            check_column(name, present, self.label)
        if not (self._named or present):  # a frame without columns would have no rows either
            raise SourceError(f"{self.label} has no columns")
        return self._named or list(present)

    @cached_property
    def dtypes(self) -> Mapping[str, pl.DataType]:
        """Types that the columns have in a block's frame."""
        with self._open() as file:
            schema = frame_of_arrow(file.schema_arrow.empty_table(), self.label).schema
        return {name: schema[name] for name in self.columns}

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        _ = self.columns
        group, row = self._start(position)
        with self._open() as file:
            if group > file.num_row_groups:
                raise SourceError(f"{self.label} has become shorter: no row group {group}")
            while group < file.num_row_groups:
                yield from self._group_blocks(file, group, row)
                group, row = group + 1, 0

    def fingerprint(self) -> str:
        """Return the hash of the file's bytes, the id column's name and the projection."""
        return self._file.sha256(f"parquet {self._id_column!r} {self._named!r}\n")

    def _start(self, position: Position | None) -> tuple[int, int]:
        if position is None:
            return 0, 0
        group = position_number(position, "group", self.label)
        return group, position_number(position, "row", self.label)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        with read_errors(self.label), self._file.open_stored() as stream:
            try:
                with pq.ParquetFile(stream) as file:
                    yield file
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk's or the network's; Arrow's own about the data have none
                first_line = str(error).partition("\n")[0]
                raise SourceError(f"cannot read {self.label}: {first_line}") from error

    def _group_blocks(self, file: pq.ParquetFile, group: int, start: int) -> Iterator[ItemBlock]:
        metadata = file.metadata.row_group(group)
        if start > metadata.num_rows:
            raise SourceError(f"{self.label} has become shorter: no row {start} in group {group}")
        row_bytes = metadata.total_byte_size // max(metadata.num_rows, 1)
        rows = min(self._block_rows, max(1, BLOCK_BYTES // max(row_bytes, 1)))
        row = 0
        for batch in file.iter_batches(rows, row_groups=[group], columns=self._read_columns()):
            skipped = min(max(start - row, 0), batch.num_rows)
            if skipped < batch.num_rows:
                yield self._block(
                    pa.Table.from_batches([batch.slice(skipped)]), group, row + skipped
                )
            row += batch.num_rows

    def _read_columns(self) -> list[str] | None:
        if not self._named:
            return None
        return list(dict.fromkeys([*self._named, *filter(None, [self._id_column])]))

    def _block(self, table: pa.Table, group: int, row: int) -> ItemBlock:
        frame = frame_of_arrow(table, self.label)
        return ItemBlock(
            position={"group": group, "row": row},
            # Not select(): it takes the names "*" and "^…$" for patterns.
            frame=pl.DataFrame([frame.get_column(name) for name in self.columns]),
            item_ids=self._ids(frame, group, row),
        )

    def _ids(self, frame: pl.DataFrame, group: int, row: int) -> list[str] | None:
        if self._id_column is None:
            return None
        values = frame.get_column(self._id_column).to_list()
        place = f"{self.label}, row group {group}, row "
        return item_ids(values, self._id_column, lambda index: f"{place}{row + index}")
