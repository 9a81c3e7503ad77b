"""Packing the items to be retried into chunks of the next round."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.executor.cycle import Cycle
from batchor_core.executor.lines import ItemLines
from batchor_core.executor.seal import ChunkSeries, Position
from batchor_core.model.records import ChunkRecord, NewChunk, SubmissionRecord
from batchor_core.model.states import SubmissionState, Verdict
from batchor_core.planning.chunking import ChunkMeter


def retry(cycle: Cycle) -> bool:
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
    position = Position(seq=1 + max(chunks), round=round_)
    packed: dict[bool, list[NewChunk]] = {}
    # What nobody wants comes into chunks of its own, which are given up before they are sent.
    for are_wanted in (True, False) if unwanted else (True,):
        with ChunkSeries(cycle, position) as series:
            target = _Target(series=series, meter=ChunkMeter(cycle.plan.limits))
            for submission in submissions:
                chunk = chunks[submission.chunk_seq]
                attempts = {
                    row: count
                    for row, count in _attempts(cycle, submission).items()
                    if (row in unwanted) is not are_wanted
                }
                _copy(cycle, chunk, attempts, target)
                cycle.keeper.keep()
            series.seal()
        packed[are_wanted] = series.sealed
        position = replace(position, seq=position.seq + len(series.sealed))
    cycle.probe("retry.sealed")
    ids = [submission.submission_id for submission in submissions]
    cycle.store.pack_retries(cycle.lease, ids, packed[True], unwanted=packed.get(False, ()))
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


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The chunks that are filled, and how full the open one is."""

    series: ChunkSeries
    meter: ChunkMeter

    def make_room(self, size_bytes: int, tokens: float) -> None:
        """Begin another chunk if a line does not fit into the open one."""
        if not self.meter.fits(size_bytes, tokens):
            self.series.seal()
            self.meter.reset()
        self.meter.add(size_bytes, tokens)


def _copy(cycle: Cycle, chunk: ChunkRecord, attempts: Mapping[int, int], target: _Target) -> None:
    """Copy the lines of items of a chunk, given with their attempts by row."""
    if not attempts:
        return
    with (
        cycle.artifacts.local(chunk.items) as items_path,
        cycle.artifacts.local(chunk.requests) as requests_path,
        ItemLines(requests_path) as lines,
    ):
        items = pq.read_table(items_path)
        mine = items.filter(pc.is_in(items["row"], pa.array(list(attempts), pa.int64())))
        for item, line in lines.of(mine):
            target.make_room(len(line), item["tokens"])
            target.series.writer().add_again(item, line, attempts[item["row"]])


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
