"""Reading outcomes by range of rows, without holding a whole file."""

from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.model.records import ChunkRecord
from batchor_core.model.states import Verdict

BATCH_ID = "provider_batch_id"
"""Further column of outcome tables here: the batch that each outcome came from."""


class Outcomes(Protocol):
    """Some items' outcomes."""

    def between(self, first: int, last: int) -> pa.Table:
        """Return the outcomes of the rows from ``first`` to ``last``, both included."""
        ...


class NoOutcomes:
    """Nothing at all, with the right columns: so that there is always something to join.

    Args:
        schema: Of outcome tables, the batch's column included.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._empty = schema.empty_table()

    def between(self, first: int, last: int) -> pa.Table:  # noqa: ARG002 - the protocol's
        """See ``Outcomes.between``."""
        return self._empty


class OutcomeReader:
    """The outcomes of one submission. Close it after use.

    Only the row groups that may hold a row of the range are read: providers mostly answer in
    order, and then each group is read once or twice.

    Args:
        path: Its checked outcome file.
        batch_id: The provider batch that it came from.
    """

    def __init__(self, path: Path, batch_id: str | None) -> None:
        self._file = pq.ParquetFile(path)
        self._batch_id = batch_id
        self._ranges = [
            _range_of(self._file.metadata.row_group(number))
            for number in range(self._file.num_row_groups)
        ]

    def between(self, first: int, last: int) -> pa.Table:
        """See ``Outcomes.between``."""
        groups = [n for n, (low, high) in enumerate(self._ranges) if low <= last and first <= high]
        table = _cut(self._file.read_row_groups(groups, use_threads=False), first, last)
        ids = pa.repeat(pa.scalar(self._batch_id, pa.string()), table.num_rows)
        return table.append_column(BATCH_ID, ids)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


class AbandonedOutcomes:
    """The outcomes of a chunk that was given up: its items fail with the chunk's own error.

    Args:
        path: Its checked items file.
        chunk: The chunk.
        schema: Of outcome tables, the batch's column included.
    """

    def __init__(self, path: Path, chunk: ChunkRecord, schema: pa.Schema) -> None:
        self._items = pq.read_table(path, columns=["row", "attempts"])
        self._schema = schema
        self._error = {"error_code": chunk.error_code, "error_message": chunk.error_message}

    def between(self, first: int, last: int) -> pa.Table:
        """See ``Outcomes.between``."""
        items = _cut(self._items, first, last)
        count = items.num_rows
        values = {
            "row": items["row"],
            "attempts": items["attempts"],
            "verdict": pa.repeat(Verdict.FAILED.value, count),
        }
        for name, text in self._error.items():
            values[name] = pa.repeat(pa.scalar(text, pa.string()), count)
        columns = [values.get(each.name, pa.nulls(count, each.type)) for each in self._schema]
        return pa.table(columns, schema=self._schema)


def _range_of(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Return the smallest and the largest row of a group; column 0 is ``row``."""
    statistics = group.column(0).statistics
    return statistics.min, statistics.max


def _cut(table: pa.Table, first: int, last: int) -> pa.Table:
    rows = table["row"]
    return table.filter(pc.and_(pc.greater_equal(rows, first), pc.less_equal(rows, last)))
