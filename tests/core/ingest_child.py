"""Child processes that read input: one that dies on the way, and one that reports its memory."""

import gzip
import itertools
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from batchor_core import (
    BatchItem,
    BatchRunner,
    CompositeItemSource,
    CsvItemSource,
    FrameItemSource,
    JsonlItemSource,
    ParquetItemSource,
    SqlItemSource,
    open_source,
)
from batchor_core.clock import SystemClock
from batchor_core.model.policies import ChunkPolicy
from batchor_core.planning import tokens
from batchor_core.sources import ItemBlock, Position
from tests.core.world import job_for

NOWHERE = "http://127.0.0.1:1/v1"
ROWS = 10
BLOCK_ROWS = 4
FRAMES = ("frame", "lazy", "table", "dataset", "reader")
KINDS = (
    *("csv", "csv.gz", "csv.zst", "latin-1", "jsonl", "jsonl.gz", "utf-16", "parquet"),
    *("folder", "pattern", *FRAMES, "sql", "sql-key", "list", "generator", "unmarked"),
    *("composite", "mixed"),
)
UNMARKED = ("unmarked", "mixed")  # a killed reading of these begins again
COMPOSITES = {"composite": ("csv", "generator"), "mixed": ("jsonl", "unmarked")}


def write(kind: str, folder: Path, rows: int = ROWS, word: str = "Prompt") -> Any:
    """The same rows as a source of any kind, read anew each time."""
    frame = pl.DataFrame(
        {
            "id": [f"item-{n}" for n in range(rows)],
            "prompt": [f"{word} number {n};" for n in range(rows)],
        }
    )
    if kind in COMPOSITES:
        return CompositeItemSource([write(part, folder, rows, word) for part in COMPOSITES[kind]])
    makers: dict[str, Callable[[], Any]] = {
        "folder": lambda: _folder(frame, folder),
        "pattern": lambda: _pattern(frame, folder),
        "frame": lambda: frame,
        "lazy": frame.lazy,
        "table": frame.to_arrow,
        "dataset": lambda: pads.dataset(frame.to_arrow()),
        "reader": lambda: frame.to_arrow().to_reader(BLOCK_ROWS),
        "sql": lambda: _sql(frame, folder, None),
        "sql-key": lambda: _sql(frame, folder, "key"),
        "list": lambda: _items(frame),
        "generator": lambda: (item for item in _items(frame)),
        "unmarked": lambda: Unmarked(_items(frame)),
    }
    return makers[kind]() if kind in makers else _file(kind, frame, folder)


def keys_of(kind: str, rows: int = ROWS) -> list[str]:
    """The item ids of these rows."""
    ids = [f"item-{n}" for n in range(rows)]
    return [f"{n}:{key}" for n in (0, 1) for key in ids] if kind in COMPOSITES else ids


def options_of(kind: str) -> dict[str, Any]:
    """What a job has to say of this kind."""
    return {"id_column": "id"} if kind in FRAMES else {}


class Unmarked:
    """A source of somebody's own that has neither positions nor a fingerprint."""

    label = "unmarked"
    columns = None

    def __init__(self, items: list[BatchItem]) -> None:
        self._items = items

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:
        """Read from the start: it knows of no other place."""
        assert position is None
        for row in range(0, len(self._items), BLOCK_ROWS):
            yield ItemBlock(position=None, items=self._items[row : row + BLOCK_ROWS])


def _items(frame: pl.DataFrame) -> list[BatchItem]:
    return [BatchItem(item_id=i, payload=p) for i, p in frame.rows()]


def _file(kind: str, frame: pl.DataFrame, folder: Path) -> Any:
    encoding = kind if kind in {"latin-1", "utf-16"} else "utf-8"
    ending = {"latin-1": "csv", "utf-16": "jsonl"}.get(kind, kind)
    path = folder / f"input.{ending}"
    if ending == "parquet":
        frame.write_parquet(path)
        return ParquetItemSource(path, id_column="id", block_rows=BLOCK_ROWS)
    text = frame.write_csv() if ending.startswith("csv") else frame.write_ndjson()
    data = text.encode(encoding)
    if ending.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif ending.endswith(".zst"):
        data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)
    source = CsvItemSource if ending.startswith("csv") else JsonlItemSource
    return source(path, id_column="id", encoding=encoding, block_rows=BLOCK_ROWS)


def _folder(frame: pl.DataFrame, folder: Path) -> Any:
    (folder / "parts").mkdir(exist_ok=True)
    half = (frame.height + 1) // 2
    frame[:half].write_parquet(folder / "parts" / "0.parquet")
    frame[half:].write_parquet(folder / "parts" / "1.parquet")
    return open_source(folder / "parts", "id", block_rows=BLOCK_ROWS)


def _pattern(frame: pl.DataFrame, folder: Path) -> Any:
    half = (frame.height + 1) // 2
    frame[:half].write_csv(folder / "part-0.csv")
    frame[half:].write_csv(folder / "part-1.csv")
    return open_source(folder / "part-*.csv", "id", block_rows=BLOCK_ROWS)


def _sql(frame: pl.DataFrame, folder: Path, order_by: str | None) -> Any:
    path = folder / "input.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS input")
        connection.execute("CREATE TABLE input (key INTEGER, id TEXT, prompt TEXT)")
        rows = [(key, *row) for key, row in enumerate(frame.rows())]
        connection.executemany("INSERT INTO input VALUES (?, ?, ?)", rows)
    url = f"sqlite:///{path}"
    query = "SELECT * FROM input"
    return SqlItemSource(url, query, "id", order_by=order_by, block_rows=BLOCK_ROWS)


class LaterClock(SystemClock):
    """The machine's clock, put forward, so that the lease of whoever died is over."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._ahead


def read_and_die(kind: str, folder: str, generation: int, probe: str, nth: int) -> None:
    """Read the input from where the last process was, and be killed at the n-th passing."""
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None  # type: ignore[assignment]
    left = nth

    def kill(name: str) -> None:
        nonlocal left
        left -= name == probe
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    source = write(kind, Path(folder))
    job = job_for(NOWHERE, source, chunk_policy=ChunkPolicy(max_requests=3), **options_of(kind))
    with BatchRunner(
        Path(folder, "state.sqlite3"), clock=LaterClock(1000 * generation), probe=kill
    ) as runner:
        runner.open(job, run_id="run-1").ingest()


def measure(folder: Path, rows: int, kind: str) -> None:
    """Print the peak of resident memory in bytes."""
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None  # type: ignore[assignment]
    job = job_for(NOWHERE, _large(kind, folder, rows))
    with BatchRunner(folder / "state.sqlite3") as runner:
        run = runner.open(job, run_id="run-1").ingest()
        assert run.record.total_items == rows
    print(peak_bytes())  # noqa: T201 - its answer


def _large(kind: str, folder: Path, rows: int) -> Any:
    """A source of many rows of 330 bytes, none of which are held in memory."""
    # Words at random: compressed, as files and spools are, equal ones would take no room.
    dice = random.Random(1)
    texts = (f"Prompt number {n}: {dice.randbytes(150).hex()}" for n in range(rows))
    if kind == "generator":
        return (BatchItem(item_id=str(n), payload=text) for n, text in enumerate(texts))
    if kind == "dataset":
        schema = pa.schema({"prompt": pa.string()})
        with pq.ParquetWriter(folder / "input.parquet", schema) as writer:
            while group := list(itertools.islice(texts, 10_000)):
                writer.write_table(pa.table([group], schema=schema))
        return pads.dataset(folder / "input.parquet")
    path = folder / "input.csv"
    with path.open("w") as file:
        file.write("prompt\n")
        file.writelines(f"{text}\n" for text in texts)
    if kind == "lazy":
        return FrameItemSource(pl.scan_csv(path))
    if kind == "folder":
        return open_source(folder / "*.csv")
    if kind == "composite":
        return CompositeItemSource([CsvItemSource(path)])
    return CsvItemSource(path)


def peak_bytes() -> int:
    """Return the peak of this program; ``ru_maxrss`` would count what forked it as well."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
