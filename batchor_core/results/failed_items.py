"""Which items of a finished run failed, and are not asked again yet."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import ChunkRecord
from batchor_core.model.states import Verdict
from batchor_core.store.protocol import Store

NOT_BY_DEFAULT = (ItemErrorCode.RUN_CANCELLED.value,)
"""Failures that are asked again only where they are named: somebody did not want them answered."""


def roots_of(store: Store, run_id: str) -> list[ChunkRecord]:
    """Return the chunks that a run's result table has a part for, in input order."""
    return [c for c in store.list_chunks(run_id) if c.round == 0 and c.parent_seq is None]


class FailedItems:
    """The failed items of one finished run.

    Args:
        store: The control plane.
        artifacts: The data plane.
        run_id: The run.
        codes: Only failures with these error codes; None: all but ``NOT_BY_DEFAULT``.
        but_of: A retry of the run whose own items do not count as taken; None: all do.
    """

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore,
        run_id: str,
        *,
        codes: Iterable[str] | None = None,
        but_of: str | None = None,
    ) -> None:
        self._artifacts = artifacts
        self._codes = None if codes is None else frozenset(codes)
        self.roots = roots_of(store, run_id)
        self._taken: list[ChunkRecord] = []
        for retry in store.retries_of(run_id):
            if retry.run_id != but_of:
                self._taken += roots_of(store, retry.run_id)

    def count(self) -> int:
        """Return how many there are."""
        return sum(self.of(root).num_rows for root in self.roots)

    def of(self, root: ChunkRecord) -> pa.Table:
        """Return the failed items among those of ``root``: all columns of its items file."""
        assert root.results is not None
        columns = ["batch_status", "batch_error_code"]
        with self._artifacts.local(root.results) as path:
            results = pq.read_table(path, columns=columns)
        wanted = pc.equal(results["batch_status"], Verdict.FAILED.value)
        codes = self._codes if self._codes is not None else NOT_BY_DEFAULT
        has_code = pc.is_in(results["batch_error_code"], value_set=_texts(sorted(codes)))
        wanted = pc.and_(wanted, has_code if self._codes is not None else pc.invert(has_code))
        with self._artifacts.local(root.items) as path:
            items = pq.read_table(path).filter(wanted)
        return self._without_taken(root, items)

    def _without_taken(self, root: ChunkRecord, items: pa.Table) -> pa.Table:
        for chunk in self._taken:
            if items.num_rows and overlap(chunk, root):
                with self._artifacts.local(chunk.items) as path:
                    rows = pq.read_table(path, columns=["row"])["row"].combine_chunks()
                items = items.filter(pc.invert(pc.is_in(items["row"], value_set=rows)))
        return items


def overlap(one: ChunkRecord, other: ChunkRecord) -> bool:
    """Whether two chunks may hold the same row."""
    return one.first_row <= other.last_row and other.first_row <= one.last_row


def _texts(values: Sequence[str]) -> pa.Array:
    return pa.array(values, pa.string())
