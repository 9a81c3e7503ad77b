"""Writing the result table to one file for people and other tools."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.durable import publish
from batchor_core.errors import ConfigurationError

_Writer = Callable[[Iterable[pa.Table], pa.Schema, Path], int]


def export(parts: Iterable[pa.Table], schema: pa.Schema, path: str) -> int:
    """Write result parts to a file chosen by its suffix; return the number of rows.

    The file appears whole or not at all. Nested values become JSON text in CSV.

    Args:
        parts: The result table, part by part: one is held in memory at a time.
        schema: Of all parts.
        path: A local file ending in ``.parquet``, ``.jsonl`` or ``.csv``.

    Raises:
        ConfigurationError: Another suffix, or the file cannot be written.
    """
    target = Path(path)
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise ConfigurationError(
            f"cannot tell the format of {path!r}: end it in {', '.join(sorted(_WRITERS))}"
        )
    try:
        with _replacing(target) as temporary:
            return writer(parts, schema, temporary)
    except OSError as exc:
        raise ConfigurationError(f"cannot write {path!r}: {exc.strerror or exc}") from exc


def json_lines(parts: Iterable[pa.Table]) -> Iterator[str]:
    """Yield each row of result parts as one line of JSON, without its line break."""
    yield from map(_json_text, rows_of(parts))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        yield temporary
        publish(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(parts: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)
            rows += part.num_rows
    return rows


def _write_jsonl(parts: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:  # noqa: ARG001 - one signature
    rows = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for line in json_lines(parts):
            file.write(line + "\n")
            rows += 1
    return rows


def _write_csv(parts: Iterable[pa.Table], schema: pa.Schema, path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(schema.names)
        for row in rows_of(parts):
            writer.writerow([cell(value) for value in row.values()])
            rows += 1
    return rows


def rows_of(parts: Iterable[pa.Table]) -> Iterator[Mapping[str, Any]]:
    """Yield each row of result parts as a mapping."""
    for part in parts:
        for batch in part.to_batches(max_chunksize=4096):
            yield from batch.to_pylist(maps_as_pydicts="strict")


def cell(value: Any) -> Any:
    """Return a value as a cell of a CSV file: what is nested becomes JSON text."""
    if isinstance(value, (dict, list)):
        return _json_text(value)
    return value


def _json_text(value: Any) -> str:
    """Return a value as JSON; a number that JSON does not have becomes null, as Polars does it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_with_finite_numbers(value), ensure_ascii=False, default=str)


def _with_finite_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_finite_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_finite_numbers(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_WRITERS: Mapping[str, _Writer] = {
    ".parquet": _write_parquet,
    ".jsonl": _write_jsonl,
    ".csv": _write_csv,
}
