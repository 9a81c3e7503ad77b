"""Rows of JSON Lines files."""

import codecs
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from io import BufferedReader
from typing import Any

import msgspec
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

_STEP = 256  # lines between two looks at how many bytes were read
_START = TextPosition(offset=0, line=1)
_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder()


class JsonlItemSource:
    r"""JSON objects, one a line.

    Lines end in ``\n`` alone (``\r`` before it is white space; U+2028 is a character like any
    other); blank lines are skipped; a byte order mark is tolerated. ``.jsonl.gz`` and
    ``.jsonl.zst`` are decompressed on the way.

    JSON has no schema, so the frame's columns are text, and what a value looks like never depends
    on other rows: a string is itself; a number, boolean, list or object is its JSON; null and an
    absent key are null. A template renders that text. ``ItemBlock.records`` has the values with
    their types, for prompts that are built by a function.

    The columns are the keys of the first 4,096 rows, in order of appearance. A key that turns up
    later is in ``records`` only; ``columns`` names those that must be there. Positions are
    ``{"offset": bytes, "line": n}``, of the decompressed text in UTF-8.

    Args:
        path: Local path or fsspec URL.
        id_column: Key that holds the items' ids; None: the row number is the id.
        columns: Keys that become columns; None: those of the first rows.
        encoding: As ``"cp1252"`` or ``"utf-16"``; any that Python knows.
        block_rows: Rows in a block, at most.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | InputFile,
        id_column: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        encoding: str = "utf-8",
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self._file = InputFile.of(path, encoding)
        self._id_column = id_column
        self._named = None if columns is None else list(columns)
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """The file's name."""
        return self._file.label

    @cached_property
    def columns(self) -> Sequence[str]:
        """The keys that become columns; none for a file without rows."""
        if self._named:
            return self._named
        with read_errors(self.label), self._file.open() as stream:
            records = self._records(_read_lines(stream, BLOCK_ROWS), _START)
        keys = list(dict.fromkeys(itertools.chain.from_iterable(records)))
        if records and not keys:  # a frame without columns would have no rows either
            raise SourceError(f"{self.label}: its rows have no keys")
        if keys:
            check_column(self._id_column, keys, self.label)
        return keys

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        _ = self.columns
        start = _START if position is None else TextPosition.parse(position, self.label)
        with read_errors(self.label), self._file.open(start.offset) as stream:
            while lines := _read_lines(stream, self._block_rows):
                records = self._records(lines, start)
                if records:
                    yield self._block(records, lines, start)
                start = TextPosition(offset=stream.tell(), line=start.line + len(lines))

    def fingerprint(self) -> str:
        """Return the hash of the file's bytes and the id column's name."""
        return self._file.sha256(f"jsonl {self._id_column!r} {self._named!r}\n")

    def _records(self, lines: Sequence[bytes], start: TextPosition) -> list[dict[str, Any]]:
        if lines and len(max(lines, key=len)) >= LINE_BYTES:
            line = start.line + next(n for n, line in enumerate(lines) if len(line) >= LINE_BYTES)
            raise SourceError(f"{self.label}, line {line}: longer than {LINE_BYTES >> 20} MiB")
        filled = [line for line in lines if not line.isspace()]
        records: list[dict[str, Any]] = []
        try:
            # list.extend keeps what came before an error: it tells which line is wrong.
            records.extend(map(_DECODER.decode, filled))
        except (msgspec.DecodeError, RecursionError) as error:
            line = _line_number(lines, start, len(records))
            raise SourceError(f"{self.label}, line {line}: {_reason(error)}") from error
        return records

    def _block(
        self, records: list[dict[str, Any]], lines: Sequence[bytes], start: TextPosition
    ) -> ItemBlock:
        return ItemBlock(
            position=start.as_json(),
            frame=pl.DataFrame([_text_column(name, records) for name in self.columns]),
            item_ids=self._ids(records, lines, start),
            records=records,
        )

    def _ids(
        self, records: Sequence[Mapping[str, Any]], lines: Sequence[bytes], start: TextPosition
    ) -> list[str] | None:
        column = self._id_column
        if column is None:
            return None
        return item_ids(
            [record.get(column) for record in records],
            column,
            lambda row: f"{self.label}, line {_line_number(lines, start, row)}",
        )


def _read_lines(stream: BufferedReader, block_rows: int) -> list[bytes]:
    """Return the next lines, at most ``block_rows`` and not many more than ``BLOCK_BYTES``."""
    lines: list[bytes] = []
    start = stream.tell()
    rest = lines_of(stream)
    while len(lines) < block_rows and stream.tell() - start < BLOCK_BYTES:
        step = list(itertools.islice(rest, min(_STEP, block_rows - len(lines))))
        if not step:
            break
        lines += step
    if lines and not start:
        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    return lines


def _text_column(name: str, records: Sequence[Mapping[str, Any]]) -> pl.Series:
    values = [record.get(name) for record in records]
    if not set(map(type, values)) <= {str, type(None)}:
        values = [v if v is None or type(v) is str else _ENCODER.encode(v).decode() for v in values]
    return pl.Series(name, values, dtype=pl.String)


def _line_number(lines: Sequence[bytes], start: TextPosition, row: int) -> int:
    filled = (n for n, line in enumerate(lines, start.line) if not line.isspace())
    return next(itertools.islice(filled, row, None))


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"not a JSON object: {error}"
