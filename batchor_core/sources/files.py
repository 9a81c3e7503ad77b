"""Which source reads a file, by the ending of its name; many files of one kind as one source."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import polars as pl

from batchor_core.errors import SourceError
from batchor_core.sources.csv import CsvItemSource
from batchor_core.sources.folders import Folder
from batchor_core.sources.jsonl import JsonlItemSource
from batchor_core.sources.parquet import ParquetItemSource
from batchor_core.sources.protocol import BLOCK_ROWS, CheckpointedItemSource, ItemBlock, Position
from batchor_core.sources.row_ids import check_column
from batchor_core.sources.row_positions import inner_position, position_number
from batchor_core.sources.streams import InputFile

_KINDS = {".csv": ".csv", ".jsonl": ".jsonl", ".ndjson": ".jsonl", ".parquet": ".parquet"}

FileSource = CsvItemSource | JsonlItemSource | ParquetItemSource


def open_source(
    path: str | os.PathLike[str],
    id_column: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    block_rows: int = BLOCK_ROWS,
) -> CheckpointedItemSource:
    """Return the source for ``.csv``, ``.jsonl``, ``.ndjson`` or ``.parquet``, one file or many.

    The first three may be compressed (``.csv.gz``, ``.jsonl.zst``). A file is not opened yet.

    Args:
        path: Local path or fsspec URL of a file, a folder or a pattern (``in/*.parquet``).
        id_column: Column that holds the items' keys; None: the row number is the key.
        columns: Columns to read, in this order; None: all. Not for CSV.
        encoding: Of CSV and JSON Lines.
        block_rows: Rows in a block, at most.

    Raises:
        SourceError: The name ends in something else, or there is no such encoding.
    """
    if Folder(path).exists():
        return FilesItemSource(
            path, id_column, columns=columns, encoding=encoding, block_rows=block_rows
        )
    return _open_file(InputFile(path, encoding=encoding), id_column, columns, block_rows)


class FilesItemSource:
    """The rows of several files of one kind, one file after the other, in the order of their paths.

    Which files these are is looked up once. The columns are those of the first file that has any;
    a further one may have more, but none less, except for JSON Lines, where an absent key is null.
    Names of folders (``date=2024-01-01``) do not become columns. Positions are
    ``{"file": n, "at": position in it}``.

    Args:
        path: Local path or fsspec URL of a folder or a pattern (``in/*.parquet``).
        id_column: Column that holds the items' keys; None: the row number is the key.
        columns: Columns to read, in this order; None: all. Not for CSV.
        encoding: Of CSV and JSON Lines.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        id_column: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        encoding: str = "utf-8",
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._folder = Folder(path)
        self._id_column = id_column
        self._named = columns
        self._encoding = encoding
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """The folder's name, or the last part of the pattern."""
        return self._folder.label

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns that every file has."""
        found = (self._open(file, self._named).columns for file in self._files)
        return next(filter(None, found), [])

    @cached_property
    def dtypes(self) -> Mapping[str, pl.DataType]:
        """Types of the columns in the first file; none but for Parquet."""
        first = self._open(self._files[0], self._named)
        return first.dtypes if isinstance(first, ParquetItemSource) else {}

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        number, inner = 0, None
        if position is not None:
            number = position_number(position, "file", self.label)
            inner = inner_position(position, "at", self.label)
        if number >= len(self._files):
            raise SourceError(f"{self.label} has become shorter: there is no file {number}")
        for index in range(number, len(self._files)):
            source = self._source(self._files[index])
            for block in source.blocks(inner):
                place = {"file": index, "at": block.position}
                yield replace(block, position=place, file=source.label)
            inner = None

    def fingerprint(self) -> str:
        """Return the hash of the files' fingerprints, in their order."""
        digest = hashlib.sha256(b"files\n")
        for file in self._files:
            digest.update(f"{self._open(file, self._named).fingerprint()}\n".encode())
        return digest.hexdigest()

    @cached_property
    def _files(self) -> list[InputFile]:
        files = self._folder.files(self._encoding)
        kinds = {_kind(file) for file in files}
        if len(kinds) > 1:
            raise SourceError(
                f"{self.label} holds {' and '.join(sorted(kinds))} files: give one kind, by a "
                "pattern such as folder/*.csv"
            )
        return files

    def _source(self, file: InputFile) -> FileSource:
        """Open a file and make sure that it has the columns."""
        if _kind(file) == ".jsonl":
            return self._open(file, self.columns)
        source = self._open(file, self._named)
        for name in self.columns:
            check_column(name, source.columns, source.label)
        return source

    def _open(self, file: InputFile, columns: Sequence[str] | None) -> FileSource:
        return _open_file(file, self._id_column, columns, self._block_rows)


def _open_file(
    file: InputFile, id_column: str | None, columns: Sequence[str] | None, block_rows: int
) -> FileSource:
    match _kind(file):
        case ".csv" if columns is None:
            return CsvItemSource(file, id_column, block_rows=block_rows)
        case ".csv":
            raise SourceError(f"{file.label}: columns of a CSV file cannot be chosen")
        case ".jsonl":
            return JsonlItemSource(file, id_column, columns=columns, block_rows=block_rows)
        case _:
            return ParquetItemSource(file, id_column, columns=columns, block_rows=block_rows)


def _kind(file: InputFile) -> str:
    ending, compression = file.suffixes
    if ending not in _KINDS or (ending == ".parquet" and compression):
        raise SourceError(
            f"cannot tell what {file.label!r} holds: its name must end in .csv, .jsonl, "
            ".ndjson (or these with .gz or .zst) or .parquet"
        )
    return _KINDS[ending]
