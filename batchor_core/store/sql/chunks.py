"""Chunks: sealed once, then only their state changes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import func, insert, select, update

from batchor_core.errors import RowConservationError, StoreError
from batchor_core.model.records import ArtifactRef, ChunkRecord, Lease, NewChunk
from batchor_core.model.states import ChunkState, RunState
from batchor_core.model.transitions import CHUNK_TRANSITIONS, sources_of
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.members import flag_unwanted_chunks
from batchor_core.store.sql.tables import chunks, runs
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    change_state,
    record_columns,
    stale,
)

_COLUMNS = record_columns(chunks, ChunkRecord)


class Chunks(Aggregate):
    """The chunks' part of the store."""

    def seal_chunk(
        self, lease: Lease, chunk: NewChunk, checkpoint: Mapping[str, Any]
    ) -> ChunkRecord:
        """See ``Store.seal_chunk``."""
        if chunk.round != 0 or chunk.parent_seq is not None:
            raise StoreError(f"run {lease.run_id!r}: only chunks of round 0 come from a source")
        with self._fenced(lease) as tx:
            counted = tx.execute(
                update(runs)
                .where(runs.c.run_id == lease.run_id, runs.c.state == RunState.INGESTING)
                .values(total_items=runs.c.total_items + chunk.item_count, checkpoint=checkpoint)
            )
            if counted.rowcount != 1:
                found = select(runs.c.state).where(runs.c.run_id == lease.run_id)
                raise stale(
                    runs,
                    {"run_id": lease.run_id},
                    wanted=RunState.INGESTING,
                    found=tx.execute(found).scalar_one_or_none(),
                )
            return add_chunks(tx, lease.run_id, [chunk])[0]

    def list_chunks(
        self, run_id: str, *, states: Iterable[ChunkState] | None = None, limit: int | None = None
    ) -> list[ChunkRecord]:
        """See ``Store.list_chunks``."""
        statement = select(*_COLUMNS).where(chunks.c.run_id == run_id)
        if states is not None:
            statement = statement.where(chunks.c.state.in_(list(states)))
        with self._read() as tx:
            found = tx.execute(statement.order_by(chunks.c.seq).limit(limit)).mappings()
            return [ChunkRecord(**row) for row in found]

    def get_chunk(self, run_id: str, seq: int) -> ChunkRecord:
        """See ``Store.get_chunk``."""
        with self._read() as tx:
            return load_chunk(tx, run_id, seq)

    def split_chunk(
        self, lease: Lease, seq: int, children: Sequence[NewChunk]
    ) -> list[ChunkRecord]:
        """See ``Store.split_chunk``."""
        with self._fenced(lease) as tx:
            parent = move_chunk(tx, lease.run_id, seq, ChunkState.SPLIT)
            check_same_items(
                f"run {lease.run_id!r}, split of chunk {seq}", parent.item_count, children
            )
            append_event(
                tx, lease.run_id, "chunk.split", chunk_seq=seq, item_count=parent.item_count
            )
            return add_chunks(
                tx, lease.run_id, [replace(child, parent_seq=seq) for child in children]
            )

    def abandon_chunks(self, lease: Lease, seqs: Iterable[int], code: str, message: str) -> None:
        """See ``Store.abandon_chunks``; all of them or none."""
        with self._fenced(lease) as tx:
            abandon_in(tx, lease.run_id, seqs, code, message)

    def set_results_part(self, lease: Lease, seq: int, results: ArtifactRef) -> None:
        """See ``Store.set_results_part``."""
        with self._fenced(lease) as tx:
            done = tx.execute(
                update(chunks)
                .where(
                    chunks.c.run_id == lease.run_id,
                    chunks.c.seq == seq,
                    chunks.c.round == 0,
                    chunks.c.parent_seq.is_(None),
                )
                .values(results=results)
            )
            if done.rowcount != 1:
                raise StoreError(
                    f"run {lease.run_id!r}: chunk {seq} has no part of the result table; only "
                    "chunks of round 0 without parent do"
                )
            append_event(tx, lease.run_id, "chunk.results_written", chunk_seq=seq)


def abandon_in(tx: Transaction, run_id: str, seqs: Iterable[int], code: str, message: str) -> None:
    """Move ready chunks to ``abandoned``; all of them or none."""
    wanted = sorted(set(seqs))
    named = (chunks.c.run_id == run_id, chunks.c.seq.in_(wanted))
    sources = sources_of(CHUNK_TRANSITIONS, ChunkState.ABANDONED)
    found = tx.execute(
        select(chunks.c.seq, chunks.c.item_count).where(*named, chunks.c.state.in_(sources))
    ).all()
    missing = set(wanted) - {row.seq for row in found}
    if missing:
        raise _not_abandonable(tx, run_id, min(missing))
    tx.execute(
        update(chunks)
        .where(*named)
        .values(state=ChunkState.ABANDONED, error_code=code, error_message=message)
    )
    if wanted:
        append_event(
            tx,
            run_id,
            "chunk.abandoned",
            chunk_seqs=wanted,
            item_count=sum(row.item_count for row in found),
            error_code=code,
        )


def load_chunk(tx: Transaction, run_id: str, seq: int) -> ChunkRecord:
    """Return the chunk, or raise ``StoreError``."""
    statement = select(*_COLUMNS).where(chunks.c.run_id == run_id, chunks.c.seq == seq)
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        raise StoreError(f"run {run_id!r} has no chunk {seq}")
    return ChunkRecord(**row)


def add_chunks(
    tx: Transaction, run_id: str, new: Sequence[NewChunk], *, are_unwanted: bool = False
) -> list[ChunkRecord]:
    """Number and insert ready chunks. The lease's row lock keeps the numbers apart."""
    last = select(func.coalesce(func.max(chunks.c.seq), -1)).where(chunks.c.run_id == run_id)
    first_seq = tx.execute(last).scalar_one() + 1
    for seq, chunk in enumerate(new, start=first_seq):
        values = {column.name: getattr(chunk, column.name) for column in _NEW_COLUMNS}
        tx.execute(
            insert(chunks).values(
                **values,
                run_id=run_id,
                seq=seq,
                state=ChunkState.READY,
                refusals=0,
                is_unwanted=are_unwanted,
            )
        )
        append_event(
            tx,
            run_id,
            "chunk.sealed",
            chunk_seq=seq,
            round=chunk.round,
            parent_seq=chunk.parent_seq,
            item_count=chunk.item_count,
            input_tokens=chunk.input_tokens,
            output_tokens=chunk.output_tokens,
            cost_usd=chunk.cost_usd,
        )
    flag_unwanted_chunks(tx, run_id)
    added = select(*_COLUMNS).where(chunks.c.run_id == run_id, chunks.c.seq >= first_seq)
    return [ChunkRecord(**row) for row in tx.execute(added.order_by(chunks.c.seq)).mappings()]


def move_chunk(
    tx: Transaction, run_id: str, seq: int, target: ChunkState, **values: Any
) -> ChunkRecord:
    """Move the chunk to ``target`` and return it as it is afterwards."""
    change_state(tx, chunks, {"run_id": run_id, "seq": seq}, CHUNK_TRANSITIONS, target, **values)
    return load_chunk(tx, run_id, seq)


def check_same_items(what: str, item_count: int, parts: Sequence[NewChunk]) -> None:
    """Raise ``RowConservationError`` unless the parts hold exactly ``item_count`` items."""
    held = sum(part.item_count for part in parts)
    if held != item_count:
        raise RowConservationError(f"{what}: {item_count} items became {held}; nothing was changed")


def _not_abandonable(tx: Transaction, run_id: str, seq: int) -> StoreError:
    key = {"run_id": run_id, "seq": seq}
    found = select(chunks.c.state).where(chunks.c.run_id == run_id, chunks.c.seq == seq)
    state = tx.execute(found).scalar_one_or_none()
    return stale(chunks, key, wanted=ChunkState.ABANDONED, found=state)


_NEW_COLUMNS = record_columns(chunks, NewChunk)
