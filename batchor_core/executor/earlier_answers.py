"""What earlier runs have answered, looked up by request or by item."""

import logging
from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import OUTPUT
from batchor_core.errors import ArtifactError, ArtifactUnavailableError, RunNotFoundError
from batchor_core.executor.cycle import Cycle
from batchor_core.model.policies import Match
from batchor_core.model.records import ChunkRecord, SubmissionRecord
from batchor_core.model.states import SubmissionState, Verdict

logger = logging.getLogger(__name__)

ANSWER_COLUMNS = ("text", "finish_reason", "model", "request_id")
"""Of an outcome file: what an answer is made of."""

_KEY_COLUMNS = ("request_key", "item_id", "member")
_KEPT_ROWS = 500_000


class EarlierAnswers:
    """The answers of earlier runs, the newest first, while the chunks of a run are looked at.

    What the store says of each run is asked once. The keys of its items are kept for the next chunk
    as long as they are not too many: runs of a million rows are read again for each.

    Args:
        cycle: Of the run that takes the answers.
        earlier: Ids of the runs.
        match: What makes two items the same: the request, or the item's id and partition.
    """

    def __init__(self, cycle: Cycle, earlier: Sequence[str], match: Match) -> None:
        self._cycle = cycle
        self._earlier = earlier
        self._match: Match = match
        self._parts = cache(self._list_parts)
        self._kept: dict[str, pa.Table] = {}
        self._room = _KEPT_ROWS

    def to(self, keys: pa.Array) -> pa.Table | None:
        """Return answers to items with these keys; None if there are none."""
        found: list[pa.Table] = []
        for run_id in self._earlier:
            if not len(keys):
                break
            tables = list(self._of_run(keys, run_id))
            for table in tables:  # what is answered is not looked for in older runs
                keys = keys.filter(pc.invert(pc.is_in(keys, value_set=table["key"])))
            found += tables
        if not found:
            return None
        table = pa.concat_tables(found)
        return table.set_column(0, "key", table["key"].combine_chunks())

    def keys_of(self, run_id: str, items: pa.Table) -> pa.Array:
        """Return what makes items of a run the same as those of another one."""
        if self._match == "request":
            return items["request_key"].combine_chunks().cast(pa.binary())
        members = self._cycle.store.list_members(run_id)
        names = pa.array([m.identity.partition for m in members] or [""], pa.string())
        partitions = names.take(items["member"].combine_chunks())
        ids = items["item_id"].combine_chunks()
        return pc.binary_join_element_wise(partitions, ids, "\0").cast(pa.binary())

    def _of_run(self, keys: pa.Array, run_id: str) -> Iterator[pa.Table]:
        cycle = self._cycle
        for submission, chunk in self._parts(run_id):
            assert submission.outcomes is not None
            try:
                items = self._items(run_id, submission.submission_id, chunk)
                items = items.filter(pc.is_in(items["key"], value_set=keys))
                if items.num_rows:
                    with cycle.artifacts.local(submission.outcomes) as path:
                        yield _valid_answers(cycle, path, items)
            except ArtifactError as exc:
                # An outage is no loss, and files of the run itself are needed for more than this.
                if isinstance(exc, ArtifactUnavailableError) or run_id == cycle.run.run_id:
                    raise
                logger.warning("run %s: answers of %r are gone: %s", cycle.run.run_id, run_id, exc)
            cycle.keeper.keep()

    def _list_parts(self, run_id: str) -> list[tuple[SubmissionRecord, ChunkRecord]]:
        """Return a run's submissions that brought answers, with their chunks; the last first."""
        store = self._cycle.store
        try:
            if {"items", "results"} & store.get_run(run_id).pruned.keys():
                return []
        except RunNotFoundError:
            logger.warning("run %s: no run %r to reuse answers of", self._cycle.run.run_id, run_id)
            return []
        chunks = {chunk.seq: chunk for chunk in store.list_chunks(run_id)}
        collected = store.list_submissions(run_id, states=[SubmissionState.COLLECTED])
        return [
            (submission, chunks[submission.chunk_seq])
            for submission in reversed(collected)
            if submission.ok_count and submission.outcomes is not None
        ]

    def _items(self, run_id: str, submission_id: str, chunk: ChunkRecord) -> pa.Table:
        """Return rows and keys of a submission's items."""
        kept = self._kept.get(submission_id)
        if kept is not None:
            return kept
        with self._cycle.artifacts.local(chunk.items) as path:
            items = pq.read_table(path, columns=["row", *_KEY_COLUMNS])
        keys = self.keys_of(run_id, items)
        items = items.select(["row", "request_key"]).add_column(0, "key", keys)
        if items.num_rows <= self._room:
            self._room -= items.num_rows
            self._kept[submission_id] = items
        return items


def _valid_answers(cycle: Cycle, path: object, items: pa.Table) -> pa.Table:
    """Return the valid answers in an outcome file to some items, with their keys."""
    file = pq.ParquetFile(path)
    columns = ["row", "verdict", *ANSWER_COLUMNS]
    if cycle.plan.dimensions is not None:
        columns.append(OUTPUT)
    table = file.read(columns=columns, use_threads=False)
    file.close()
    rows = items["row"].combine_chunks()
    wanted = pc.and_(
        pc.equal(table["verdict"], Verdict.OK.value), pc.is_in(table["row"], value_set=rows)
    )
    table = table.filter(wanted)
    places = pc.index_in(table["row"].combine_chunks(), value_set=rows)
    table = table.drop_columns(["row", "verdict"])
    for name in ("request_key", "key"):
        table = table.add_column(0, name, items[name].take(places))
    return table
