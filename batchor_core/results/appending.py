"""Exports that grow while the run goes on: what is finished is appended, nothing is rewritten.

Where an export stands is kept with it, so that any process goes on with it: of a folder of Parquet
files in their names, of a JSONL or CSV file in a small file beside it, which is written last. What
a crash has left half-written is cut off by the next append.
"""

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.durable import make_folder, publish
from batchor_core.errors import ConfigurationError
from batchor_core.ids import path_segment
from batchor_core.results.export import cell, json_lines, rows_of
from batchor_core.results.incremental import FinishedItems

ITEMS_AT_ONCE = 50_000
_POSITION_SUFFIX = ".position.json"
_TABLE_SUFFIXES = (".jsonl", ".csv")


@dataclass(frozen=True, kw_only=True)
class Appended:
    """What an append did.

    Attributes:
        rows: How many rows it has added.
        next_sequence: How many rows the export has now.
        is_complete: Whether the export is complete, and the run is finished.
    """

    rows: int
    next_sequence: int
    is_complete: bool


def append(finished: FinishedItems, run_id: str, schema: pa.Schema, path: str) -> Appended:
    """Append what has finished since the last append.

    Args:
        finished: The run's finished items.
        run_id: The run.
        schema: Of the result table.
        path: A file ending in ``.jsonl`` or ``.csv``, or a folder, which gets Parquet files.

    Raises:
        ConfigurationError: It is another run's export, cannot be written, or has a suffix that
            cannot be appended to.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix == ".parquet":
        raise ConfigurationError(
            f"a Parquet file cannot grow: name a folder in place of {path!r}, which gets one file "
            "for each append"
        )
    try:
        if suffix in _TABLE_SUFFIXES:
            begin = _append_text(finished, run_id, schema, target)
        else:
            begin = _append_parts(finished, run_id, schema, target)
    except OSError as exc:
        raise ConfigurationError(f"cannot write {path!r}: {exc.strerror or exc}") from exc
    end = max(begin, finished.total)
    return Appended(rows=end - begin, next_sequence=end, is_complete=finished.is_over)


def _append_parts(finished: FinishedItems, run_id: str, schema: pa.Schema, folder: Path) -> int:
    """Write one Parquet file for each ``ITEMS_AT_ONCE`` items; return where they begin."""
    make_folder(folder)
    name = path_segment(run_id)
    pattern = re.compile(re.escape(name) + r"\.\d{12}-(\d{12})\.parquet")
    names = [pattern.fullmatch(each.name) for each in folder.iterdir()]
    ends = [int(found[1]) for found in names if found]
    begin = max(ends, default=0)
    for first, tables in _stretches(finished, begin):
        table = pa.concat_tables([schema.empty_table(), *tables])
        last = first + table.num_rows
        target = folder / f"{name}.{first:012d}-{last:012d}.parquet"
        temporary = folder / f".{target.name}.tmp"
        pq.write_table(table, temporary, compression="zstd")
        publish(temporary, target)
    return begin


def _append_text(finished: FinishedItems, run_id: str, schema: pa.Schema, path: Path) -> int:
    """Append lines behind what is known to be whole; return where they begin."""
    note = path.with_name(f".{path.name}{_POSITION_SUFFIX}")
    begin, size = _position(note, run_id, path)
    if path.exists():
        with path.open("ab") as raw:
            raw.truncate(size)
    for first, tables in _stretches(finished, begin):
        with path.open("a", encoding="utf-8", newline="") as file:
            rows = _write(file, path.suffix.lower(), tables, schema, is_new=not size)
            file.flush()
            os.fsync(file.fileno())
        size = path.stat().st_size
        _note(note, run_id, first + rows, size)
    return begin


def _note(note: Path, run_id: str, sequence: int, size_bytes: int) -> None:
    """Write down how far a file is known to be whole."""
    temporary = note.with_name(f"{note.name}.tmp")
    known = {"run_id": run_id, "sequence": sequence, "size_bytes": size_bytes}
    temporary.write_text(json.dumps(known))
    publish(temporary, note)


def _position(note: Path, run_id: str, path: Path) -> tuple[int, int]:
    """Return (rows, bytes) that were appended so far."""
    if not note.exists():
        if path.exists() and path.stat().st_size:
            raise ConfigurationError(
                f"{str(path)!r} exists and was not begun by an append: choose another file"
            )
        _note(note, run_id, 0, 0)  # before the first row: else a crash would leave a foreign file
        return 0, 0
    known = json.loads(note.read_text())
    if known["run_id"] != run_id:
        raise ConfigurationError(
            f"{str(path)!r} holds results of run {known['run_id']!r}: choose another file"
        )
    size = path.stat().st_size if path.exists() else 0
    if size < known["size_bytes"]:
        raise ConfigurationError(
            f"{str(path)!r} is shorter than it was: remove it and {note.name!r} to begin again"
        )
    return known["sequence"], known["size_bytes"]


def _write(
    file: TextIO, suffix: str, tables: Iterable[pa.Table], schema: pa.Schema, *, is_new: bool
) -> int:
    """Write rows as lines; return their number."""
    rows = 0
    if suffix == ".jsonl":
        for line in json_lines(tables):
            file.write(line + "\n")
            rows += 1
        return rows
    writer = csv.writer(file)
    if is_new:
        writer.writerow(schema.names)
    for row in rows_of(tables):
        writer.writerow([cell(value) for value in row.values()])
        rows += 1
    return rows


def _stretches(finished: FinishedItems, begin: int) -> Iterator[tuple[int, list[pa.Table]]]:
    """Yield (items before it, its tables) of stretches of up to ``ITEMS_AT_ONCE`` items."""
    while begin < finished.total:
        tables = [portion.table for portion in finished.portions(begin, ITEMS_AT_ONCE)]
        yield begin, tables
        begin += sum(table.num_rows for table in tables)
