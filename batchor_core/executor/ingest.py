"""Reading the source: rows become sealed chunks, with a checkpoint behind each."""

from collections.abc import Iterator
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from batchor_core.artifacts.tables import KEPT, METADATA
from batchor_core.errors import (
    FingerprintMismatchError,
    MissingColumnError,
    RunIngestionSourceRequiredError,
    SourceError,
)
from batchor_core.executor.cycle import Attachment, Cycle
from batchor_core.executor.digests import RowsDigest, check_unique_ids
from batchor_core.executor.fill_retry_run import fill_retry_run
from batchor_core.executor.ingested import finish_rows, seal_rows
from batchor_core.executor.requests import RequestReader, source_mark
from batchor_core.executor.seal import ChunkWriter, Position, open_chunk
from batchor_core.model.records import ChunkRecord
from batchor_core.planning.chunking import ChunkMeter
from batchor_core.sources.protocol import ItemBlock


def ingest(cycle: Cycle) -> bool:
    """Seal chunks until the source is read to its end or the cycle's time is used up.

    A retry run has no source: its items are cut out of the run whose failed ones it asks again.

    A crash leaves sealed chunks with a checkpoint, and perhaps files that nothing points at; the
    next cycle goes on behind the last sealed chunk.

    Returns:
        Whether a chunk was sealed or the end was reached.

    Raises:
        RunIngestionSourceRequiredError: This process has no source to go on with.
        SourceError: The input cannot be read, or two rows carry the same id.
    """
    if cycle.run.retry_of is not None:
        return fill_retry_run(cycle, cycle.run.retry_of)
    if cycle.attachment is None:
        raise RunIngestionSourceRequiredError(
            f"run {cycle.run.run_id!r} was cut short while reading its input: start it again with "
            "the same job and run_id, and it goes on where it was"
        )
    return _Ingestion(cycle, cycle.attachment).run()


class _Ingestion:
    """One stretch of ingestion, from the checkpoint on."""

    def __init__(self, cycle: Cycle, attachment: Attachment) -> None:
        self._cycle = cycle
        self._source = attachment.source
        self._prompts = attachment.prompts
        self._reader = RequestReader(cycle.plan, attachment)
        self._meter = ChunkMeter(cycle.plan.limits)
        self._digest = RowsDigest()
        self._kept: list[pa.Table] = []
        self._row = cycle.run.total_items
        self._source_mark = source_mark(attachment.source)
        self._sealed: list[ChunkRecord] = []
        self._writer: ChunkWriter | None = None
        self._block_end: tuple[ItemBlock, int] | None = None

    def run(self) -> bool:
        self._check_columns()
        self._sealed = self._cycle.store.list_chunks(self._cycle.run.run_id)
        before = len(self._sealed)
        for chunk in self._sealed:
            self._digest.add_chunk(self._cycle.artifacts, chunk)
        try:
            for block, skip in self._blocks():
                self._take(block, skip)
                self._cycle.keeper.keep()
                if self._may_stop and len(self._sealed) > before:
                    return True  # what is not sealed yet is read again by the next cycle
            self._finish()
        finally:
            if self._writer is not None:
                self._writer.close()
        return True

    @property
    def _may_stop(self) -> bool:
        """Whether time is up and the next cycle could go on: without a mark, perhaps not."""
        return self._cycle.is_over and self._source_mark is not None

    def _check_columns(self) -> None:
        columns = self._source.columns
        if columns is None:
            return
        self._prompts.check(columns, self._source.label)
        missing = [name for name in self._cycle.plan.kept.names if name not in columns]
        if missing:
            raise MissingColumnError(
                f"no column {missing[0]!r} to keep in {self._source.label}, which has: "
                f"{', '.join(columns)}"
            )

    def _blocks(self) -> Iterator[tuple[ItemBlock, int]]:
        """Yield (block, rows of it to skip) from the checkpoint on."""
        checkpoint = self._cycle.run.checkpoint
        if checkpoint is None:
            for block in self._source.blocks():
                yield block, 0
            return
        if checkpoint["source"] != self._source_mark:
            raise FingerprintMismatchError(
                f"{self._source.label} has changed since run {self._cycle.run.run_id!r} began to "
                "read it: give the new input a new run id"
            )
        if checkpoint["position"] is None:
            yield from self._replayed(checkpoint["rows"])
            return
        skip = checkpoint["skip"]
        for block in self._source.blocks(checkpoint["position"]):
            used = min(skip, len(block))
            skip -= used
            if used < len(block):
                yield block, used

    def _replayed(self, rows: int) -> Iterator[tuple[ItemBlock, int]]:
        """Read a source without positions from its start, checking the rows that are sealed.

        Raises:
            FingerprintMismatchError: They are not what was sealed.
        """
        replay = RowsDigest()
        left, self._row = rows, 0
        for block in self._source.blocks():
            used = min(left, len(block))
            if used:
                read = self._reader.read(block, self._row)
                replay.add(read.ids[:used], read.keys[:used], read.members[:used])
                left -= used
                self._row += used
                if not left and replay.member_digests() != self._digest.member_digests():
                    raise self._not_what_was_read(rows)
            if used < len(block):
                yield block, used
        if left:
            raise self._not_what_was_read(rows)

    def _not_what_was_read(self, rows: int) -> FingerprintMismatchError:
        return FingerprintMismatchError(
            f"the first {rows} rows of {self._source.label} are not those that run "
            f"{self._cycle.run.run_id!r} has read: give the new input a new run id"
        )

    def _take(self, block: ItemBlock, skip: int) -> None:
        """Put a block's rows into chunks, sealing those that are full on the way."""
        cycle = self._cycle
        rest = block.tail(skip)
        read = self._reader.read(rest, self._row)
        bodies = [body for _, body in read.encoded]
        ratio = cycle.tokens.tokens_per_byte(cycle.plan.vocabulary, bodies)
        extra = self._extra_columns(rest)
        begin = 0
        weighed = zip(read.encoded, read.weights(ratio), strict=True)
        for i, ((key, body), (size, tokens)) in enumerate(weighed):
            if not self._meter.fits(size, tokens):
                self._kept.append(extra.slice(begin, i - begin))
                begin = i
                self._seal(block, skip + i)
            if self._writer is None:
                self._writer = open_chunk(self._cycle, Position(seq=len(self._sealed)))
            self._writer.add(self._row, read.ids[i], key, body, tokens, read.members[i])
            self._meter.add(size, tokens)
            self._row += 1
        self._kept.append(extra.slice(begin))
        self._block_end = (block, len(block))

    def _extra_columns(self, block: ItemBlock) -> pa.Table:
        count = len(block)
        metadata: list[str | None] = [None] * count
        kept = self._cycle.plan.kept
        given = block.metadata
        if block.items is not None:
            given = [item.metadata for item in block.items]
        if given is not None:
            metadata = [msgspec.json.encode(m).decode() if m else None for m in given]
        columns: dict[str, Any] = {METADATA: pa.array(metadata, pa.string())}
        if len(kept):
            arrays = [self._kept_array(block, field) for field in kept]
            columns[KEPT] = pa.StructArray.from_arrays(arrays, fields=list(kept))
        return pa.table(columns)

    def _kept_array(self, block: ItemBlock, field: pa.Field) -> pa.Array:
        try:
            if block.frame is None:
                return pa.array(
                    [_value(i.payload, field.name) for i in block.items or ()], field.type
                )
            return _combined(block.frame.get_column(field.name).to_arrow(), field.type)
        except (pa.ArrowException, pl.exceptions.PolarsError) as exc:
            raise SourceError(
                f"column {field.name!r} of {self._source.label} cannot be kept as {field.type}: "
                f"{exc}"
            ) from exc

    def _seal(self, block: ItemBlock, used: int) -> None:
        if self._writer is None or not len(self._writer):
            return
        writer, self._writer = self._writer, None
        cycle = self._cycle
        extra = pa.concat_tables(self._kept)
        self._kept = []
        checkpoint = {
            "position": block.position,
            "skip": used,
            "rows": self._row,
            "source": self._source_mark,
        }
        self._sealed.append(seal_rows(cycle, writer, extra, checkpoint, self._digest))
        self._meter.reset()

    def _finish(self) -> None:
        cycle = self._cycle
        if self._block_end is not None:
            self._seal(*self._block_end)
        check_unique_ids(cycle.artifacts, self._sealed)
        finish_rows(cycle, self._digest)


def _value(payload: Any, name: str) -> Any:
    return payload.get(name) if isinstance(payload, dict) else None


def _combined(array: Any, data_type: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(data_type)
