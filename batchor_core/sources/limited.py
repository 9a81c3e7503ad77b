"""The first rows of a source."""

from collections.abc import Iterator, Sequence

from batchor_core.sources.protocol import ItemBlock, ItemSource, Position


class LimitedItemSource:
    """The first rows of another source, to try something out; it has no positions.

    Args:
        source: The whole.
        limit: How many rows, at most.
    """

    def __init__(self, source: ItemSource, limit: int) -> None:
        self._source = source
        self._limit = limit

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"the first {self._limit} rows of {self._source.label}"

    @property
    def columns(self) -> Sequence[str] | None:
        """The whole source's."""
        return self._source.columns

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: ARG002, D102 (protocol)
        left = self._limit
        for block in self._source.blocks():
            yield block.head(left)
            left -= min(left, len(block))
            if not left:
                return
