"""Finished items in the order in which they became final, while the run goes on.

That order never changes: the journal numbers it. An item has a place once its final outcome is
committed, and keeps it; so a page that was read once is complete, and the next one begins where it
ended, in any process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.tables import METADATA, outcome_schema
from batchor_core.model.records import ArtifactRef, ChunkRecord, Event
from batchor_core.model.states import ChunkState, SubmissionState, Verdict
from batchor_core.planning.schema_compiler import AnswerValidator
from batchor_core.results.failed_items import overlap, roots_of
from batchor_core.results.items import ItemResult, items_of
from batchor_core.results.joining import error_of_unanswered, join_outcomes
from batchor_core.results.outcome_files import BATCH_ID, AbandonedOutcomes, OutcomeReader
from batchor_core.store.protocol import Store

_FINAL_KINDS = ("submission.collected", "answers.reused", "chunk.abandoned", "run.closed")
_EVENTS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class ResultsPage:
    """Some finished items.

    Attributes:
        items: In the order in which they became final, which is not the input's.
        next_sequence: What to give as ``after_sequence`` for the next page.
        is_complete: Whether nothing comes after it: the run is finished, and all of it was read.
    """

    items: Sequence[ItemResult]
    next_sequence: int
    is_complete: bool


@dataclass(frozen=True, kw_only=True)
class TableShape:
    """What the tables of a run look like.

    Attributes:
        result: Schema of the result table.
        output: Schema of what answers are parsed into; None for text.
        validator: Validates answers; None for text.
        has_vectors: Whether answers are embeddings.
    """

    result: pa.Schema
    output: pa.Schema | None
    validator: AnswerValidator | None
    has_vectors: bool


@dataclass(frozen=True, kw_only=True)
class Portion:
    """Items that follow each other in the order of becoming final.

    Attributes:
        first: How many finished items come before it.
        table: Their rows of the result table.
        texts: What each was answered, as it came.
        metadata: JSON of each item, as it was handed in.
    """

    first: int
    table: pa.Table
    texts: pa.ChunkedArray
    metadata: pa.ChunkedArray


class FinishedItems:
    """The finished items of one run, as they were when this object was made.

    Args:
        store: The control plane.
        artifacts: The data plane.
        run_id: The run.
        shape: What its tables look like.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, run_id: str, shape: TableShape
    ) -> None:
        self._artifacts = artifacts
        self._shape = shape
        self._run = store.get_run(run_id)  # before its events: else its end could be overlooked
        self._events = list(_final_events(store, run_id))
        self._chunks = {chunk.seq: chunk for chunk in store.list_chunks(run_id)}
        self._roots = roots_of(store, run_id)
        collected = store.list_submissions(run_id, states=[SubmissionState.COLLECTED])
        self._submissions = {each.submission_id: each for each in collected}
        self._schema = outcome_schema(shape.output).append(pa.field(BATCH_ID, pa.string()))

    @property
    def total(self) -> int:
        """How many items are finished."""
        return sum(_final_count(event) for event in self._events)

    @property
    def is_over(self) -> bool:
        """Whether no more can come."""
        return self._run.state.is_terminal

    def page(self, after: int, limit: int) -> ResultsPage:
        """Return up to ``limit`` finished items behind the first ``after`` ones."""
        items = [
            item
            for portion in self.portions(after, limit)
            for item in items_of(
                portion.table,
                portion.texts.to_pylist(),
                portion.metadata.to_pylist(),
                self._shape.validator,
                has_vectors=self._shape.has_vectors,
            )
        ]
        end = after + len(items)
        return ResultsPage(
            items=items, next_sequence=end, is_complete=self.is_over and end >= self.total
        )

    def portions(self, after: int, limit: int) -> Iterator[Portion]:
        """Yield the same items as tables: each of one provider batch, or of one cause."""
        first, end = 0, after + limit
        for event in self._events:
            count = _final_count(event)
            begin, stop = max(after, first), min(end, first + count)
            if begin < stop:
                yield from self._load(event, begin, begin - first, stop - begin)
            first += count

    def _load(self, event: Event, first: int, offset: int, count: int) -> Iterator[Portion]:
        if event.kind == "run.closed":
            yield from self._unanswered(first, offset, count)
            return
        if event.kind == "chunk.abandoned":
            outcomes = self._abandoned(event.data["chunk_seqs"])
        else:
            outcomes = self._collected(event.data["submission_id"])
        outcomes = outcomes.slice(offset, count)
        yield self._portion(first, outcomes["row"].combine_chunks(), outcomes, None)

    def _collected(self, submission_id: str) -> pa.Table:
        """Return the final outcomes of one submission, in the order of its file."""
        submission = self._submissions[submission_id]
        assert submission.outcomes is not None
        with self._artifacts.local(submission.outcomes) as path:
            table = pq.read_table(path)
        table = table.filter(pc.not_equal(table["verdict"], Verdict.RETRY.value))
        ids = pa.repeat(pa.scalar(submission.provider_batch_id, pa.string()), table.num_rows)
        return table.append_column(BATCH_ID, ids)

    def _abandoned(self, seqs: Sequence[int]) -> pa.Table:
        tables = [self._schema.empty_table()]
        for seq in seqs:
            chunk = self._chunks[seq]
            with self._artifacts.local(chunk.items) as path:
                outcomes = AbandonedOutcomes(path, chunk, self._schema)
            tables.append(outcomes.between(chunk.first_row, chunk.last_row))
        return pa.concat_tables(tables)

    def _unanswered(self, first: int, offset: int, count: int) -> Iterator[Portion]:
        """Yield the items that the run's end has failed, in input order."""
        error = error_of_unanswered(self._run)
        left, skip = count, offset
        for root in self._roots:
            judged = self._judged_with(root)
            if not judged and skip >= root.item_count:
                skip -= root.item_count
                continue
            rows = self._rows_without_outcome(root, judged)
            part = rows.slice(skip, left)
            skip = max(0, skip - len(rows))
            if len(part):
                yield self._portion(first + count - left, part, self._schema.empty_table(), error)
                left -= len(part)
            if not left:
                return

    def _judged_with(self, root: ChunkRecord) -> list[ArtifactRef]:
        """Return the files that may name items of ``root`` that have a final outcome."""
        found: list[ArtifactRef] = []
        for submission in self._submissions.values():
            is_near = overlap(self._chunks[submission.chunk_seq], root)
            if is_near and submission.outcomes is not None:
                found.append(submission.outcomes)
        given_up = (c for c in self._chunks.values() if c.state is ChunkState.ABANDONED)
        return found + [chunk.items for chunk in given_up if overlap(chunk, root)]

    def _rows_without_outcome(self, root: ChunkRecord, judged: Sequence[ArtifactRef]) -> pa.Array:
        with self._artifacts.local(root.items) as path:
            rows = pq.read_table(path, columns=["row"])["row"].combine_chunks()
        for ref in judged:
            with self._artifacts.local(ref) as path:
                rows = rows.filter(pc.invert(pc.is_in(rows, value_set=_final_rows(path))))
        return rows

    def _portion(
        self, first: int, rows: pa.Array, final: pa.Table, error: tuple[str, str] | None
    ) -> Portion:
        """Join some items with their outcomes, in the order of ``rows``."""
        low, high = _range(rows)
        found = [
            _some(self._artifacts, root, rows)
            for root in self._roots
            if root.first_row <= high and low <= root.last_row
        ]
        items = pa.concat_tables(found)
        items = items.take(pc.index_in(rows, value_set=items["row"].combine_chunks()))
        outcomes = pa.concat_tables([final, self._earlier(rows)])
        table = join_outcomes(items, outcomes, schema=self._shape.result, unanswered=error)
        texts = final["text"] if error is None else pa.chunked_array([pa.nulls(len(rows))])
        return Portion(first=first, table=table, texts=texts, metadata=items[METADATA])

    def _earlier(self, rows: pa.Array) -> pa.Table:
        """Return the outcomes of the tries that have sent these items back."""
        low, high = _range(rows)
        tables = [self._schema.empty_table()]
        for submission in self._submissions.values():
            chunk = self._chunks[submission.chunk_seq]
            if not submission.retry_count or chunk.first_row > high or low > chunk.last_row:
                continue
            assert submission.outcomes is not None
            with (
                self._artifacts.local(submission.outcomes) as path,
                closing(OutcomeReader(path, submission.provider_batch_id)) as reader,
            ):
                table = reader.between(low, high)
            is_retry = pc.equal(table["verdict"], Verdict.RETRY.value)
            tables.append(table.filter(pc.and_(is_retry, pc.is_in(table["row"], value_set=rows))))
        return pa.concat_tables(tables)


def _final_events(store: Store, run_id: str) -> Iterator[Event]:
    after = 0
    while True:
        events = store.list_events(
            run_id, after_sequence=after, limit=_EVENTS_AT_ONCE, kinds=_FINAL_KINDS
        )
        yield from events
        if len(events) < _EVENTS_AT_ONCE:
            return
        after = events[-1].sequence


def _final_count(event: Event) -> int:
    """Return how many items an event has made final."""
    data: Mapping[str, int] = event.data
    if event.kind == "run.closed":
        return data["unanswered"]
    if event.kind == "chunk.abandoned":
        return data["item_count"]
    return data["ok_count"] + data["failed_count"]


def _some(artifacts: ArtifactStore, root: ChunkRecord, rows: pa.Array) -> pa.Table:
    """Return those of a chunk's items that are among ``rows``."""
    with artifacts.local(root.items) as path:
        items = pq.read_table(path)
    return items.filter(pc.is_in(items["row"], value_set=rows))


def _final_rows(path: Path) -> pa.Array:
    """Return the rows with a final outcome in an outcome file, or all rows of an items file."""
    with pq.ParquetFile(path) as file:
        names = [name for name in ("row", "verdict") if name in file.schema_arrow.names]
        table = file.read(columns=names)
    if "verdict" in names:
        table = table.filter(pc.not_equal(table["verdict"], Verdict.RETRY.value))
    return table["row"].combine_chunks()


def _range(rows: pa.Array) -> tuple[int, int]:
    found = pc.min_max(rows).as_py()
    return found["min"], found["max"]
