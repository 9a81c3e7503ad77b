"""The result table of a run of several members, one member at a time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl
import pyarrow as pa

from batchor_core.artifacts import ArtifactStore
from batchor_core.model.records import ArtifactRef, ChunkRecord, Member


class MemberResults:
    """A context manager: frames that it gave out can be read until its block is left.

    Files of another place are fetched once, when the first member that needs them is asked for.

    Args:
        artifacts: Where the parts lie.
        parts: The chunks of round 0, in order, with their results.
        members: All members of the run, in order of ``seq``: their rows follow each other.
        schema: The result table's.
    """

    def __init__(
        self,
        artifacts: ArtifactStore,
        parts: Sequence[ChunkRecord],
        members: Sequence[Member],
        schema: pa.Schema,
    ) -> None:
        self._artifacts = artifacts
        self._parts = parts
        self._schema = schema
        self._rows: dict[str, tuple[int, int]] = {}
        begin = 0
        for member in members:
            self._rows[member.identity.partition] = (begin, member.item_count)
            begin += member.item_count
        self._paths: dict[int, Path] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def row_count(self, partition: str) -> int:
        """Return how many rows a member has.

        Raises:
            KeyError: The run has no such member.
        """
        return self._rows[partition][1]

    def frame(self, partition: str) -> pl.LazyFrame:
        """Return the rows of one member, in input order; nothing is read yet.

        Raises:
            KeyError: The run has no such member.
        """
        pieces = list(self._pieces(partition))
        if not pieces:
            return pl.LazyFrame(pl.from_arrow(self._schema.empty_table()))
        return pieces[0] if len(pieces) == 1 else pl.concat(pieces)

    def tables(self, partition: str) -> Iterator[pa.Table]:
        """Yield the rows of one member, a part of the run's table at a time."""
        for piece in self._pieces(partition):
            yield piece.collect().to_arrow()

    def _pieces(self, partition: str) -> Iterator[pl.LazyFrame]:
        begin, count = self._rows[partition]
        end = begin + count
        for part in self._parts:
            first, behind = max(begin, part.first_row), min(end, part.last_row + 1)
            if first < behind:
                scan = pl.scan_parquet(self._path(part), glob=False)
                yield scan.slice(first - part.first_row, behind - first)

    def _path(self, part: ChunkRecord) -> Path:
        path = self._paths.get(part.seq)
        if path is None:
            results: ArtifactRef | None = part.results
            assert results is not None
            path = self._stack.enter_context(self._artifacts.local(results))
            self._paths[part.seq] = path
        return path
