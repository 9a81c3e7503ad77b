"""Writing a chunk: a request file and an items file that say the same, then sealed for good."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import ITEMS_SCHEMA
from batchor_core.executor.cycle import Cycle
from batchor_core.ids import custom_id, new_chunk_token
from batchor_core.model.records import NewChunk

_WRITE_BYTES = 1 << 18

_PACK_TOKENS = 200_000
"""Estimated tokens of the inputs that share a request; OpenAI, the only one that lets them, takes
300,000 (OpenAI's embeddings reference)."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a chunk stands among the others.

    Attributes:
        is_again: Whether its items were sent before, by this run or by another.
    """

    seq: int
    round: int = 0
    parent_seq: int | None = None
    is_duplicate: bool = False
    is_again: bool = False


def open_chunk(cycle: Cycle, position: Position) -> "ChunkWriter":
    """Return a writer of the run's kind of requests: one item each, or many."""
    if cycle.plan.encoder.inputs_per_request > 1:
        return PackedChunkWriter(cycle, position)
    return ChunkWriter(cycle, position)


class ChunkWriter:
    """An open chunk of requests of one item each.

    Leaving the context without ``seal`` leaves nothing behind.

    Rows are given in order; the items file is written when the chunk is sealed, so that what is
    held in memory is a few numbers a row and the kept columns of one chunk.
    """

    def __init__(self, cycle: Cycle, position: Position) -> None:
        self._cycle = cycle
        self._position = position
        self.token = new_chunk_token()
        path = cycle.layout.requests(position.seq, cycle.lease.token)
        self._requests = cycle.artifacts.writer(path)
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._rows: list[int] = []
        self._ids: list[str] = []
        self._keys: list[bytes] = []
        self._attempts: list[int] = []
        self._lengths: list[int] = []
        self._tokens: list[int] = []
        self._members: list[int] = []

    def __len__(self) -> int:
        """Return the number of requests so far."""
        return len(self._rows)

    def add(  # noqa: PLR0917 - the hot path: one call a row, keywords cost a tenth of it
        self, row: int, item_id: str, key: bytes, body: bytes, tokens: float, member: int
    ) -> None:
        """Append an item that was never sent."""
        line = self._cycle.plan.encoder.line(custom_id(self.token, row), body)
        self._write_later(line)
        self._note(row, item_id, key, len(line), tokens, member, 0)

    def add_again(self, item: Mapping[str, Any], line: bytes, attempts: int) -> None:
        """Append an item of another sealed chunk, whose line was cut out of its request file."""
        line = self._cycle.plan.encoder.relabel(line, self.token)
        self._write_later(line)
        self._note_again(item, len(line), attempts)

    def seal(self, extra: pa.Table | None = None) -> NewChunk:
        """Write both files under their final names and return the chunk they make.

        Args:
            extra: Further columns of the items file, one row an item.
        """
        self._write()
        requests = self._requests.commit()
        table = self._items_table(extra)
        path = self._cycle.layout.items(self._position.seq, self._cycle.lease.token)
        with self._cycle.artifacts.writer(path) as file:
            pq.write_table(table, file, compression="zstd")
            items = file.commit()
        plan, count = self._cycle.plan, len(self)
        input_tokens = sum(self._tokens)
        output_tokens = count * plan.reserved_output_tokens
        return NewChunk(
            token=self.token,
            round=self._position.round,
            parent_seq=self._position.parent_seq,
            item_count=count,
            first_row=min(self._rows),
            last_row=max(self._rows),
            items=items,
            requests=requests,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=plan.cost(input_tokens, 0, output_tokens),
            is_duplicate=self._position.is_duplicate,
        )

    def close(self) -> None:
        """Discard what is not sealed. Idempotent."""
        self._requests.close()

    def __enter__(self) -> "ChunkWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def item_ids(self) -> Sequence[str]:
        """The ids so far, in order."""
        return self._ids

    @property
    def request_keys(self) -> Sequence[bytes]:
        """The request keys so far, in order."""
        return self._keys

    @property
    def members(self) -> Sequence[int]:
        """The members so far, in order."""
        return self._members

    def _write_later(self, line: bytes) -> None:
        self._unwritten.append(line)
        self._unwritten_bytes += len(line)
        if self._unwritten_bytes >= _WRITE_BYTES:
            self._write()

    def _note(  # noqa: PLR0917
        self,
        row: int,
        item_id: str,
        key: bytes,
        length: int,
        tokens: float,
        member: int,
        attempts: int,
    ) -> None:
        self._rows.append(row)
        self._ids.append(item_id)
        self._keys.append(key)
        self._attempts.append(attempts)
        self._lengths.append(length)
        self._tokens.append(int(tokens) + 1)
        self._members.append(member)

    def _note_again(self, item: Mapping[str, Any], length: int, attempts: int) -> None:
        self._note(
            item["row"],
            item["item_id"],
            item["request_key"],
            length,
            item["tokens"],
            item["member"],
            attempts,
        )

    def _write(self) -> None:
        """Pass many lines on at once: a call for each costs more than hashing and writing it."""
        self._requests.write(b"".join(self._unwritten))
        self._unwritten.clear()
        self._unwritten_bytes = 0

    def _places(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return where each item's bytes begin, and the number of its line."""
        offsets = [0, *itertools.accumulate(self._lengths)][:-1]
        return offsets, range(len(offsets))

    def _items_table(self, extra: pa.Table | None) -> pa.Table:
        offsets, requests = self._places()
        columns = [
            self._rows,
            self._ids,
            self._keys,
            self._attempts,
            offsets,
            self._lengths,
            self._tokens,
            self._members,
            requests,
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, ITEMS_SCHEMA, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=ITEMS_SCHEMA)
        if extra is not None:
            for field in extra.schema:
                table = table.append_column(field, extra[field.name])
        return table


class PackedChunkWriter(ChunkWriter):
    """An open chunk of requests that hold many items each, as embeddings do.

    What an item owns of its line is its *piece*. The provider answers a request as a whole: one
    input that it refuses fails all that share its request. Items that are sent again therefore
    get a request each.
    """

    def __init__(self, cycle: Cycle, position: Position) -> None:
        super().__init__(cycle, position)
        self._encoder = cycle.plan.encoder
        is_again = position.round or position.is_again
        self._most = 1 if is_again else self._encoder.inputs_per_request
        self._pieces: list[bytes] = []
        self._first_row = 0
        self._pack_tokens = 0.0
        self._written_bytes = 0
        self._offsets: list[int] = []
        self._line_numbers: list[int] = []
        self._line_count = 0

    def add(  # noqa: PLR0917
        self, row: int, item_id: str, key: bytes, body: bytes, tokens: float, member: int
    ) -> None:
        """Append an item that was never sent; ``body`` is its piece."""
        self._add_piece(row, body, tokens)
        self._note(row, item_id, key, len(body), tokens, member, 0)

    def add_again(self, item: Mapping[str, Any], line: bytes, attempts: int) -> None:
        """Append an item of another sealed chunk, whose piece is ``line``."""
        self._add_piece(item["row"], line, item["tokens"])
        self._note_again(item, len(line), attempts)

    def seal(self, extra: pa.Table | None = None) -> NewChunk:
        """See ``ChunkWriter.seal``."""
        self._close_pack()
        return super().seal(extra)

    def _add_piece(self, row: int, piece: bytes, tokens: float) -> None:
        is_full = len(self._pieces) >= self._most or self._pack_tokens + tokens > _PACK_TOKENS
        if self._pieces and is_full:
            self._close_pack()
        if not self._pieces:
            self._first_row = row
        self._pieces.append(piece)
        self._pack_tokens += tokens

    def _close_pack(self) -> None:
        if not self._pieces:
            return
        name = custom_id(self.token, self._first_row)
        line = self._encoder.line(name, b",".join(self._pieces))
        begin = self._written_bytes + self._encoder.body_offset(name)
        for piece in self._pieces:
            self._offsets.append(begin)
            self._line_numbers.append(self._line_count)
            begin += len(piece) + 1
        self._write_later(line)
        self._written_bytes += len(line)
        self._line_count += 1
        self._pieces = []
        self._pack_tokens = 0.0

    def _places(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._offsets, self._line_numbers
