"""The result table of a run together with those of the runs that have asked its failures again."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.errors import ArtifactMissingError, RunNotFinishedError
from batchor_core.model.records import ChunkRecord
from batchor_core.results.failed_items import overlap, roots_of
from batchor_core.results.joining import plus
from batchor_core.store.protocol import Store

_ROW = "row"
_SUMMED = (
    "batch_attempts",
    "batch_input_tokens",
    "batch_cached_input_tokens",
    "batch_output_tokens",
    "batch_reasoning_tokens",
    "batch_cost_usd",
)
"""Of an item that was asked again, these are summed: each time was paid for."""


class CombinedResults:
    """The result table of a run, with the answers of its retry runs in their places.

    Args:
        store: The control plane.
        artifacts: The data plane.
        run_id: The run that was retried.
        schema: Of the result table.

    Raises:
        RunNotFinishedError: One of its retries still goes on.
        ArtifactMissingError: One of its retries ended without a result table.
    """

    def __init__(
        self, store: Store, artifacts: ArtifactStore, run_id: str, schema: pa.Schema
    ) -> None:
        self._artifacts = artifacts
        self._schema = schema
        self._retries: list[tuple[CombinedResults, list[ChunkRecord]]] = []
        for retry in store.retries_of(run_id):
            if not retry.state.is_terminal:
                raise RunNotFinishedError(
                    f"run {retry.run_id!r}, which asks failed items of run {run_id!r} again, is "
                    f"{retry.state}: wait for it, or read the results without it"
                )
            roots = roots_of(store, retry.run_id)
            if any(root.results is None for root in roots):
                raise ArtifactMissingError(
                    f"run {retry.run_id!r}, which asked failed items of run {run_id!r} again, is "
                    f"{retry.state} without a result table: read the results without it"
                )
            of_retry = CombinedResults(store, artifacts, retry.run_id, schema)
            self._retries.append((of_retry, roots))

    def part(self, root: ChunkRecord) -> pa.Table:
        """Return one part of the table, in input order."""
        return self._with_rows(root).drop_columns([_ROW])

    def _with_rows(self, root: ChunkRecord) -> pa.Table:
        assert root.results is not None
        with self._artifacts.local(root.items) as path:
            rows = pq.read_table(path, columns=["row"])["row"]
        with self._artifacts.local(root.results) as path:
            table = pq.read_table(path).cast(self._schema)
        table = table.append_column(_ROW, rows)
        for of_retry, roots in self._retries:
            for again in roots:
                if overlap(again, root):
                    table = _replace(table, of_retry._with_rows(again))  # noqa: SLF001 - our own class
        return table


def _replace(table: pa.Table, again: pa.Table) -> pa.Table:
    """Return the table with the rows that are in ``again`` taken from there."""
    rows = table[_ROW].combine_chunks()
    again = again.filter(pc.is_in(again[_ROW], value_set=rows))
    if not again.num_rows:
        return table
    before = table.take(pc.index_in(again[_ROW].combine_chunks(), value_set=rows))
    for name in _SUMMED:
        place = again.schema.get_field_index(name)
        field = again.schema.field(place)
        summed = plus(before[name], again[name]).cast(field.type)
        again = again.set_column(place, field, summed)
    kept = table.filter(pc.invert(pc.is_in(table[_ROW], value_set=again[_ROW].combine_chunks())))
    merged = pa.concat_tables([kept, again])
    return merged.take(pc.index_in(rows, value_set=merged[_ROW].combine_chunks()))
