"""Cutting a chunk in two that is too large as a whole."""

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.executor.cycle import Cycle
from batchor_core.executor.lines import ItemLines
from batchor_core.executor.seal import ChunkSeries, Position
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import ChunkRecord


def split_or_abandon(cycle: Cycle, chunk: ChunkRecord, reason: str) -> None:
    """Replace a ready chunk by two halves; a chunk of one item fails as too large.

    A crash leaves the chunk ready, and files that nothing points at.
    """
    if chunk.item_count == 1:
        cycle.store.abandon_chunks(
            cycle.lease, [chunk.seq], ItemErrorCode.REQUEST_TOO_LARGE, reason
        )
        return
    next_seq = 1 + max(c.seq for c in cycle.store.list_chunks(cycle.run.run_id))
    first = Position(seq=next_seq, round=chunk.round, parent_seq=chunk.seq)
    middle = chunk.item_count // 2
    with (
        cycle.artifacts.local(chunk.items) as items_path,
        cycle.artifacts.local(chunk.requests) as requests_path,
        ChunkSeries(cycle, first) as series,
    ):
        items = pq.read_table(items_path)
        for half in (items.slice(0, middle), items.slice(middle)):
            _copy(series, half, ItemLines(requests_path))
            series.seal()
        cycle.probe("split.sealed")
        cycle.store.split_chunk(cycle.lease, chunk.seq, series.sealed)


def _copy(series: ChunkSeries, items: pa.Table, lines: "ItemLines") -> None:
    writer = series.writer()
    with lines:
        for item, line in lines.of(items):
            writer.add_again(item, line, item["attempts"])
