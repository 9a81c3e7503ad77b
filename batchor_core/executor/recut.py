"""Cutting items' lines out of sealed request files into new chunks: prompts are never rebuilt."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import ITEMS_SCHEMA
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.seal import Position, open_chunk
from batchor_core.model.records import ChunkRecord, NewChunk
from batchor_core.planning.chunking import ChunkLimits, ChunkMeter

_BATCH_ROWS = 4096

Line = tuple[dict[str, Any], bytes]
"""(an item as its items file has it, its part of the request file)."""


def recut(
    cycle: Cycle,
    pieces: Iterable[tuple[ChunkRecord, pa.Table]],
    first: Position,
    limits: ChunkLimits | None = None,
) -> list[NewChunk]:
    """Write new chunks of items of sealed ones, in order; a crash leaves files without a record.

    Args:
        cycle: Whose.
        pieces: Chunks, each with those of its items that are wanted.
        first: Where the first new chunk stands; the others follow it.
        limits: What fits into a chunk; None makes one of all items.
    """
    lines = (line for chunk, items in pieces for line in lines_of(cycle, chunk, items))
    sealed: list[NewChunk] = []
    for _, group in groupby(lines, _numbering(limits)):
        position = replace(first, seq=first.seq + len(sealed))
        with open_chunk(cycle, position) as writer:
            for item, line in group:
                writer.add_again(item, line, item["attempts"])
            sealed.append(writer.seal())
    return sealed


def items_of(cycle: Cycle, chunk: ChunkRecord) -> pa.Table:
    """Return a sealed chunk's items, without the kept input columns."""
    with cycle.artifacts.local(chunk.items) as path:
        return pq.read_table(path, columns=ITEMS_SCHEMA.names)


def lines_of(cycle: Cycle, chunk: ChunkRecord, items: pa.Table) -> Iterator[Line]:
    """Yield some items of a chunk, each with its line; a few thousand at a time in memory."""
    with cycle.artifacts.local(chunk.requests) as path, path.open("rb") as file:
        for batch in items.select(ITEMS_SCHEMA.names).to_batches(max_chunksize=_BATCH_ROWS):
            for item in batch.to_pylist():
                file.seek(item["offset"])
                yield item, file.read(item["length"])


def next_seq(cycle: Cycle) -> int:
    """Return the number of the run's next chunk."""
    return 1 + max(chunk.seq for chunk in cycle.store.list_chunks(cycle.run.run_id))


def _numbering(limits: ChunkLimits | None) -> Callable[[Line], int]:
    """Return a function that says, line by line, into how manieth chunk each goes."""
    number, meter = 0, None if limits is None else ChunkMeter(limits)

    def number_of(entry: Line) -> int:
        nonlocal number
        if meter is not None:
            item, line = entry
            if not meter.fits(len(line), item["tokens"]):
                number += 1
                meter.reset()
            meter.add(len(line), item["tokens"])
        return number

    return number_of
