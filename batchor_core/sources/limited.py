"""The first rows of a source."""

from collections.abc import Iterator, Sequence

from batchor_core.sources.protocol import ItemBlock, ItemSource, Position


class LimitedItemSource:
    """The first rows of another source, to try something out; it has no positions.

    The whole is read all the same, so that it is known how much the first rows stand for.

    Args:
        source: The whole.
        limit: How many rows, at most.
    """

    def __init__(self, source: ItemSource, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._row_count = 0

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"the first {self._limit} rows of {self._source.label}"

    @property
    def columns(self) -> Sequence[str] | None:
        """The whole source's."""
        return self._source.columns

    @property
    def row_count(self) -> int:
        """How many rows the whole has; 0 before it was read."""
        return self._row_count

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: ARG002, D102 (protocol)
        row_count = 0
        for block in self._source.blocks():
            left = self._limit - row_count
            if left > 0:
                yield block.head(left)
            row_count += len(block)
        self._row_count = row_count
