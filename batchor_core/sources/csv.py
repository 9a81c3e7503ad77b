"""Rows of CSV files."""

import codecs
import csv
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader

import polars as pl

from batchor_core.errors import SourceError
from batchor_core.sources.protocol import BLOCK_ROWS, ItemBlock, Position
from batchor_core.sources.row_ids import check_column, item_ids
from batchor_core.sources.streams import (
    BLOCK_BYTES,
    LINE_BYTES,
    InputFile,
    TextPosition,
    lines_of,
    read_errors,
)

_FIELD_CHARACTERS = 128 << 20  # the module's own 131,072 is less than one long document
_STEP = 256  # records between two looks at how many bytes were read
_REASONS = (
    ("unexpected end of data", "a quoted value is never closed"),
    ("new-line character", "a carriage return outside quotes"),
    ("field larger", f"a value is longer than {_FIELD_CHARACTERS} characters"),
)


class CsvItemSource:
    r"""The records of a CSV file (RFC 4180: comma, double quotes) under a header line.

    With or without byte order mark; lines end in LF or CRLF; values may hold line breaks; blank
    lines are skipped. Every value is text exactly as it stands in the file: nothing is
    inferred, ``007`` stays, an empty value is empty and not null. ``.csv.gz`` and ``.csv.zst``
    are decompressed on the way.

    A position is the byte at which a record starts, ``{"offset": bytes, "line": n}`` (of the
    decompressed text, in UTF-8): the parser
    takes one line after the other from the file, so that the file's own position between two
    records is where the next one starts, whatever line breaks the values hold.

    Args:
        path: Local path or fsspec URL.
        id_column: Column that holds the items' keys; None: the row number is the key.
        encoding: As ``"cp1252"`` or ``"utf-16"``; any that Python knows.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | InputFile,
        id_column: str | None = None,
        *,
        encoding: str = "utf-8",
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._file = InputFile.of(path, encoding)
        self._id_column = id_column
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """The file's name."""
        return self._file.label

    @property
    def columns(self) -> Sequence[str]:
        """Names in the header line."""
        return self._header.names

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        start = self._header.end
        if position is not None:
            start = TextPosition.parse(position, self.label)
        with read_errors(self.label), self._file.open(start.offset) as stream:
            reader = _Records(lines_of(stream), start.line, self.label)
            while records := self._read(reader, stream, start):
                block = self._block(records, start)
                if block is not None:
                    yield block
                start = TextPosition(offset=stream.tell(), line=reader.line)

    def fingerprint(self) -> str:
        """Return the hash of the file's bytes and the id column's name."""
        return self._file.sha256(f"csv {self._id_column!r}\n")

    @cached_property
    def _header(self) -> "_Header":
        with read_errors(self.label), self._file.open() as stream:
            first = next(lines_of(stream), b"").removeprefix(codecs.BOM_UTF8)
            lines = itertools.chain((first,), lines_of(stream))
            reader = _Records(lines, 1, self.label)
            names: list[str] = []
            while not names:
                line = reader.line
                records = reader.take(1)
                if not records:
                    raise SourceError(f"{self.label} is empty: it needs a header line")
                names = records[0]
            _check_header(names, f"{self.label}, line {line}")
            check_column(self._id_column, names, self.label)
            end = TextPosition(offset=stream.tell(), line=reader.line)
            return _Header(names=names, end=end)

    def _read(
        self, reader: "_Records", stream: BufferedReader, start: TextPosition
    ) -> list[list[str]]:
        records: list[list[str]] = []
        while len(records) < self._block_rows and stream.tell() - start.offset < BLOCK_BYTES:
            step = reader.take(min(_STEP, self._block_rows - len(records)))
            if not step:
                break
            records += step
        return records

    def _block(self, records: list[list[str]], start: TextPosition) -> ItemBlock | None:
        """Return the records as columns; None if all of them are blank lines."""
        lines = _LineNumbers(records, start.line)
        width = len(self.columns)
        if set(map(len, records)) != {width}:
            for index, record in enumerate(records):
                if record and len(record) != width:
                    raise SourceError(
                        f"{self.label}, line {lines[index]}: {len(record)} values "
                        f"where the header has {width}"
                    )
            records = list(filter(None, records))
            if not records:
                return None
        frame = pl.DataFrame(
            [
                pl.Series(name, values, dtype=pl.String)
                for name, values in zip(self.columns, zip(*records, strict=True), strict=True)
            ]
        )
        self._refuse_nul(frame, lines)
        return ItemBlock(position=start.as_json(), frame=frame, item_ids=self._ids(frame, lines))

    def _refuse_nul(self, frame: pl.DataFrame, lines: "_LineNumbers") -> None:
        for column in frame:
            found = column.str.contains("\0", literal=True)
            if found.any():
                line = lines.of_row(found.to_list().index(True))
                raise SourceError(f"{self.label}, line {line}: a NUL character")

    def _ids(self, frame: pl.DataFrame, lines: "_LineNumbers") -> list[str] | None:
        if self._id_column is None:
            return None
        values = frame.get_column(self._id_column).to_list()
        return item_ids(
            values, self._id_column, lambda row: f"{self.label}, line {lines.of_row(row)}"
        )


@dataclass(frozen=True, kw_only=True)
class _Header:
    names: list[str]
    end: TextPosition


class _Records:
    """The parser, with errors that say which line of the file is wrong."""

    def __init__(self, lines: Iterable[bytes], first_line: int, label: str) -> None:
        if csv.field_size_limit() < _FIELD_CHARACTERS:  # one for the process: only ever raised
            csv.field_size_limit(_FIELD_CHARACTERS)
        self._reader = csv.reader(map(_decoded, lines), strict=True)
        self._first_line = first_line
        self._label = label

    @property
    def line(self) -> int:
        """Number of the line after the last record."""
        return self._first_line + self._reader.line_num

    def take(self, count: int) -> list[list[str]]:
        """Return the next records, a blank line as an empty one; fewer only at the end."""
        start = self.line
        records: list[list[str]] = []
        try:
            records.extend(itertools.islice(self._reader, count))
        except csv.Error as error:
            # list.extend keeps what came before the error: it tells where the record starts.
            line = _LineNumbers(records, start)[len(records)]
            raise SourceError(f"{self._label}, line {line}: {_reason(error)}") from error
        except _LongLineError as error:
            raise SourceError(
                f"{self._label}, line {self.line}: longer than {LINE_BYTES >> 20} MiB"
            ) from error
        except UnicodeDecodeError as error:
            byte = f"0x{error.object[error.start]:02x}"
            raise SourceError(
                f"{self._label}, line {self.line}: not UTF-8 (byte {byte}): name its encoding"
            ) from error
        return records


class _LongLineError(Exception):
    pass


def _decoded(line: bytes) -> str:
    if len(line) >= LINE_BYTES:  # cut: its rest would pass for another record
        raise _LongLineError
    return line.decode()


class _LineNumbers:
    """Which line each record starts at: only counted when there is something to complain about."""

    def __init__(self, records: Sequence[Sequence[str]], first_line: int) -> None:
        self._records = records
        self._first_line = first_line

    def __getitem__(self, index: int) -> int:
        before = itertools.islice(self._records, index)
        return self._first_line + sum(1 + sum(v.count("\n") for v in record) for record in before)

    def of_row(self, row: int) -> int:
        """Return the line of the n-th record that is not a blank line."""
        filled = (index for index, record in enumerate(self._records) if record)
        return self[next(itertools.islice(filled, row, None))]


def _check_header(names: Sequence[str], place: str) -> None:
    for number, name in enumerate(names, 1):
        if not name.strip():
            raise SourceError(f"{place}: column {number} has no name in the header")
        if "\0" in name:
            raise SourceError(f"{place}: a NUL character")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SourceError(f"{place}: more than one column is named {repeated[0]!r}")


def _reason(error: csv.Error) -> str:
    text = str(error)
    return next((reason for start, reason in _REASONS if text.startswith(start)), text)
