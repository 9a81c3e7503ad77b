"""Writing the result table, part by part, and closing the run."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import outcome_schema
from batchor_core.errors import RowConservationError
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.due import is_settled
from batchor_core.model.records import ArtifactRef, ChunkRecord, SubmissionRecord
from batchor_core.model.states import (
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
)
from batchor_core.results.joining import error_of_unanswered, join_outcomes
from batchor_core.results.outcome_files import (
    BATCH_ID,
    AbandonedOutcomes,
    NoOutcomes,
    OutcomeReader,
    Outcomes,
)

_ROWS_AT_ONCE = 8192


def finish(cycle: Cycle) -> bool:
    """Close the run if nothing can change its outcomes any more.

    A crash leaves some parts recorded: the next cycle writes the missing ones.

    Returns:
        Whether the run was closed.
    """
    work = cycle.store.open_work(cycle.run.run_id)
    cycle.run = work.run  # closed as it is found now
    if not is_settled(work):
        return False
    sources = _Sources.of(cycle)
    for chunk in sources.roots:
        if chunk.results is None:
            part = _write_part(cycle, sources, chunk)
            cycle.probe("finish.part_written")
            cycle.store.set_results_part(cycle.lease, chunk.seq, part)
            cycle.keeper.keep()
    _check_conservation(cycle)
    cycle.probe("finish.written")
    _close(cycle, sources.roots)
    cycle.probe("finish.closed")
    return True


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """What the result table is made of.

    Attributes:
        roots: Chunks of round 0 that were not split from another, in order: one part each.
        collected: (submission, its chunk): their outcome files.
        abandoned: Chunks whose items fail with the chunk's own error code.
    """

    roots: Sequence[ChunkRecord]
    collected: Sequence[tuple[SubmissionRecord, ChunkRecord]]
    abandoned: Sequence[ChunkRecord]

    @classmethod
    def of(cls, cycle: Cycle) -> "_Sources":
        chunks = cycle.store.list_chunks(cycle.run.run_id)
        by_seq = {chunk.seq: chunk for chunk in chunks}
        collected = cycle.store.list_submissions(
            cycle.run.run_id, states=[SubmissionState.COLLECTED]
        )
        return cls(
            roots=[c for c in chunks if c.round == 0 and c.parent_seq is None],
            collected=[(s, by_seq[s.chunk_seq]) for s in collected],
            abandoned=[c for c in chunks if c.state is ChunkState.ABANDONED],
        )


def _write_part(cycle: Cycle, sources: _Sources, root: ChunkRecord) -> ArtifactRef:
    """Join the items of one chunk of round 0 with their outcomes, in input order."""
    schema = cycle.plan.result_schema
    unanswered = _code_of_unanswered(cycle)
    with ExitStack() as stack:
        outcomes = _open_outcomes(cycle, sources, root, stack)
        items = stack.enter_context(
            pq.ParquetFile(stack.enter_context(cycle.artifacts.local(root.items)))
        )
        path = cycle.layout.results(root.seq, cycle.lease.token)
        file = stack.enter_context(cycle.artifacts.writer(path))
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in items.iter_batches(_ROWS_AT_ONCE, use_threads=False):
                rows = batch["row"]
                first, last = rows[0].as_py(), rows[-1].as_py()
                found = pa.concat_tables([each.between(first, last) for each in outcomes])
                table = pa.Table.from_batches([batch])
                writer.write_table(
                    join_outcomes(table, found, schema=schema, unanswered=unanswered)
                )
        return file.commit()


def _open_outcomes(
    cycle: Cycle, sources: _Sources, root: ChunkRecord, stack: ExitStack
) -> list[Outcomes]:
    """Open everything that may say something about the rows of ``root``, and check it."""
    schema = outcome_schema(cycle.plan.output_schema)
    schema = schema.append(pa.field(BATCH_ID, pa.string()))
    found: list[Outcomes] = [NoOutcomes(schema)]
    for submission, chunk in sources.collected:
        if _overlap(chunk, root):
            assert submission.outcomes is not None
            path = stack.enter_context(cycle.artifacts.local(submission.outcomes))
            reader = OutcomeReader(path, submission.provider_batch_id)
            found.append(stack.enter_context(closing(reader)))
    for chunk in sources.abandoned:
        if _overlap(chunk, root):
            with cycle.artifacts.local(chunk.items) as path:
                found.append(AbandonedOutcomes(path, chunk, schema))
    return found


def _overlap(chunk: ChunkRecord, root: ChunkRecord) -> bool:
    return chunk.first_row <= root.last_row and root.first_row <= chunk.last_row


def _code_of_unanswered(cycle: Cycle) -> tuple[str, str] | None:
    """Return (code, message) of items without a final outcome; None where there must be none."""
    if cycle.run.control is RunControlState.CANCEL:
        return error_of_unanswered(cycle.run)
    return None


def _check_conservation(cycle: Cycle) -> None:
    counts = cycle.store.counts(cycle.run.run_id)
    if counts.accounted != counts.total:
        raise RowConservationError(
            f"run {cycle.run.run_id!r} has {counts.total} items and accounts for "
            f"{counts.accounted}: {counts}"
        )


def _answered(cycle: Cycle, roots: Sequence[ChunkRecord]) -> dict[int, int]:
    """Return how many rows of each member have an answer."""
    count = len(cycle.store.list_members(cycle.run.run_id))
    if count <= 1:  # nearly always: no file has to be read
        return {0: cycle.store.counts(cycle.run.run_id).ok} if count else {}
    answered: Counter[int] = Counter(dict.fromkeys(range(count), 0))
    for root in roots:
        refs = [root.items, cycle.store.get_chunk(root.run_id, root.seq).results]
        with ExitStack() as stack:
            paths = [stack.enter_context(cycle.artifacts.local(ref)) for ref in refs if ref]
            columns = zip(paths, ("member", "batch_status"), strict=True)
            members, status = (pq.read_table(path, columns=[name])[name] for path, name in columns)
        found = pc.value_counts(members.filter(pc.equal(status, "ok")))
        answered.update({entry["values"]: entry["counts"] for entry in found.to_pylist()})
    return dict(answered)


def _close(cycle: Cycle, roots: Sequence[ChunkRecord]) -> None:
    if cycle.run.control is RunControlState.CANCEL:
        state = RunState.CANCELLED
    elif cycle.store.counts(cycle.run.run_id).failed:
        state = RunState.COMPLETED_WITH_FAILURES
    else:
        state = RunState.SUCCEEDED
    answered = _answered(cycle, roots)
    cycle.run = cycle.store.close_run(cycle.lease, state, ok_by_member=answered)
