"""Packing the items to be retried into chunks of the next round."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.executor.cycle import Cycle
from batchor_core.executor.recut import items_of, recut
from batchor_core.executor.seal import Position
from batchor_core.model.records import ChunkRecord, NewChunk, SubmissionRecord
from batchor_core.model.states import SubmissionState, Verdict


def pack_retries(cycle: Cycle) -> bool:
    """Pack what is due, one series of chunks per round.

    Until the transaction that inserts those chunks, the items belong to their submissions: a
    crash before it leaves files that nothing points at.

    Returns:
        Whether anything was packed.
    """
    now = cycle.clock.now()
    chunks = {chunk.seq: chunk for chunk in cycle.store.list_chunks(cycle.run.run_id)}
    rounds: dict[int, list[SubmissionRecord]] = defaultdict(list)
    for submission in waiting(cycle):
        if submission.retry_at is None or submission.retry_at <= now:
            rounds[chunks[submission.chunk_seq].round].append(submission)
    for round_, submissions in sorted(rounds.items()):
        _pack(cycle, chunks, submissions, round_ + 1)
        cycle.keeper.keep()
        chunks = {chunk.seq: chunk for chunk in cycle.store.list_chunks(cycle.run.run_id)}
    return bool(rounds)


def waiting(cycle: Cycle) -> list[SubmissionRecord]:
    """Return the collected submissions whose items to be retried are not packed yet."""
    collected = cycle.store.list_submissions(cycle.run.run_id, states=[SubmissionState.COLLECTED])
    return [s for s in collected if s.retry_count and not s.retries_packed]


def _pack(
    cycle: Cycle,
    chunks: dict[int, ChunkRecord],
    submissions: list[SubmissionRecord],
    round_: int,
) -> None:
    unwanted = _Stretches(cycle.store.unwanted_rows(cycle.run.run_id))
    sources = [(submission, chunks[submission.chunk_seq]) for submission in submissions]
    position = Position(seq=1 + max(chunks), round=round_)
    limits = cycle.plan.limits
    # What nobody wants comes into chunks of its own, which are given up before they are sent.
    wanted = recut(
        cycle, _sent_back(cycle, sources, lambda row: row not in unwanted), position, limits
    )
    rest: list[NewChunk] = []
    if unwanted:
        position = replace(position, seq=position.seq + len(wanted))
        rest = recut(
            cycle, _sent_back(cycle, sources, lambda row: row in unwanted), position, limits
        )
    cycle.probe("retry.sealed")
    ids = [submission.submission_id for submission in submissions]
    cycle.store.pack_retries(cycle.lease, ids, wanted, unwanted=rest)
    cycle.probe("retry.committed")


class _Stretches:
    """Rows of a run, as stretches (first, last) in order."""

    def __init__(self, stretches: Sequence[tuple[int, int]]) -> None:
        self._stretches = stretches
        self._firsts = [first for first, _ in stretches]

    def __len__(self) -> int:
        return len(self._stretches)

    def __contains__(self, row: int) -> bool:
        place = bisect_right(self._firsts, row) - 1
        return place >= 0 and row <= self._stretches[place][1]


def _sent_back(
    cycle: Cycle,
    submissions: Sequence[tuple[SubmissionRecord, ChunkRecord]],
    wanted: Callable[[int], bool],
) -> Iterator[tuple[ChunkRecord, pa.Table]]:
    """Yield the chunks of submissions with those of their items that come back and are wanted."""
    for submission, chunk in submissions:
        attempts = {row: n for row, n in _attempts(cycle, submission).items() if wanted(row)}
        if attempts:
            items = items_of(cycle, chunk)
            mine = items.filter(pc.is_in(items["row"], pa.array(list(attempts), pa.int64())))
            counts = [attempts[row] for row in mine["row"].to_pylist()]
            place = mine.schema.get_field_index("attempts")
            field = mine.schema.field(place)
            yield chunk, mine.set_column(place, field, pa.array(counts, field.type))
        cycle.keeper.keep()


def _attempts(cycle: Cycle, submission: SubmissionRecord) -> dict[int, int]:
    """Return attempts by row of the items that the submission's outcomes send back."""
    assert submission.outcomes is not None
    with cycle.artifacts.local(submission.outcomes) as path:
        table = pq.read_table(
            path,
            columns=["row", "attempts"],
            filters=[("verdict", "=", Verdict.RETRY.value)],
        )
    return dict(zip(table["row"].to_pylist(), table["attempts"].to_pylist(), strict=True))
