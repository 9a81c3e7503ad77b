"""Items that exist as Python objects."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from batchor_core.errors import SourceError
from batchor_core.model.items import BatchItem
from batchor_core.sources.fingerprints import rows_fingerprint
from batchor_core.sources.protocol import BLOCK_ROWS, LINEAGE, ItemBlock, Position
from batchor_core.sources.row_positions import row_number
from batchor_core.sources.spool import Spool


class BatchItemSource:
    """Items from a list, a tuple or any other iterable; positions are ``{"row": n}``.

    A sequence is opened at any item. Everything else (a generator, a set) is read once, into a
    temporary file, and from there ever after; its items must be picklable. Started again with the
    same items in another process, a run goes on where it was.

    Args:
        items: The items, in the order of the run.
        block_rows: Items in a block, at most.
    """

    def __init__(self, items: Iterable[BatchItem], *, block_rows: int = BLOCK_ROWS) -> None:
        self._items = items
        self._block_rows = block_rows

    @property
    def label(self) -> str:
        """What messages call it."""
        return "batch items"

    @property
    def columns(self) -> None:
        """Items have no columns."""
        return

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        for row, items in self._slices(row_number(position, self.label)):
            yield ItemBlock(position={"row": row}, items=items)

    def fingerprint(self) -> str:
        """Return the hash of the items."""
        rows = (((i.item_id, i.payload, i.metadata) for i in items) for _, items in self._slices(0))
        return rows_fingerprint("batch items", rows, self.label)

    def _slices(self, row: int) -> Iterator[tuple[int, Sequence[BatchItem]]]:
        if isinstance(self._items, Sequence):
            return self._of_sequence(self._items, row)
        return self._spool.blocks(row)

    def _of_sequence(
        self, items: Sequence[BatchItem], start: int
    ) -> Iterator[tuple[int, Sequence[BatchItem]]]:
        if start > len(items):
            raise SourceError(f"{self.label}: there is no row {start}, only {len(items)}")
        for row in range(start, len(items), self._block_rows):
            # One by one: a deque is a sequence too, but cannot be sliced.
            block = [items[n] for n in range(row, min(row + self._block_rows, len(items)))]
            yield row, self._checked(block, row)

    @cached_property
    def _spool(self) -> Spool[list[BatchItem]]:
        # Asked for an iterator, an iterator returns itself.
        is_once = iter(self._items) is self._items
        return Spool(self._read, self.label, is_once=is_once)

    def _read(self) -> Iterator[list[BatchItem]]:
        rest = iter(self._items)
        row = 0
        while block := list(itertools.islice(rest, self._block_rows)):
            yield self._checked(block, row)
            row += len(block)

    def _checked(self, items: list[BatchItem], first_row: int) -> list[BatchItem]:
        for row, item in enumerate(items, first_row):
            if not isinstance(item, BatchItem):
                raise SourceError(f"{self.label}, row {row}: a {type(item).__name__}, no BatchItem")
            item_id: object = item.item_id
            if not isinstance(item_id, str) or not item_id:
                raise SourceError(f"{self.label}, row {row}: item_id must be text and not empty")
            if item.metadata and LINEAGE in item.metadata:
                raise SourceError(
                    f"{self.label}, row {row}: the metadata key {LINEAGE!r} is reserved for where "
                    "a row of a composite source comes from; name yours otherwise"
                )
        return items
