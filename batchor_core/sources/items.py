"""Items that exist as Python objects."""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence

from batchor_core.errors import SourceError
from batchor_core.model.items import BatchItem
from batchor_core.sources.fingerprints import rows_fingerprint
from batchor_core.sources.protocol import BLOCK_ROWS, ItemBlock, Position
from batchor_core.sources.row_positions import row_number


class BatchItemSource:
    """Items from a list, a tuple or any other sequence; or, once, from an iterator.

    A sequence can be opened at any item: positions are ``{"row": n}``. Nobody can tell whether an
    iterator would yield the same again, so its blocks have no position and it is read once.

    Args:
        items: The items, in the order of the run.
        block_rows: Items in a block, at most.
    """

    def __init__(self, items: Iterable[BatchItem], *, block_rows: int = BLOCK_ROWS) -> None:
        self._items = items
        self._block_rows = block_rows
        self._used_up = False

    @property
    def label(self) -> str:
        """What messages call it."""
        return "batch items"

    @property
    def columns(self) -> None:
        """Items have no columns."""
        return

    @property
    def reopenable(self) -> bool:
        """Whether the items can be read more than once."""
        return isinstance(self._items, Sequence)

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        if isinstance(self._items, Sequence):
            return self._slices(self._items, row_number(position, self.label))
        if position is not None:
            raise SourceError("an iterator of items cannot be opened in the middle: pass a list")
        return self._once(self._items)

    def fingerprint(self) -> str:
        """Return the hash of the items; for an iterator, one that never comes again."""
        if not isinstance(self._items, Sequence):
            return f"iterator-{uuid.uuid4().hex}"
        blocks = self._slices(self._items, 0)
        rows = (((i.item_id, i.payload, i.metadata) for i in b.items or ()) for b in blocks)
        return rows_fingerprint("batch items", rows, self.label)

    def _slices(self, items: Sequence[BatchItem], start: int) -> Iterator[ItemBlock]:
        if start > len(items):
            raise SourceError(f"{self.label}: there is no row {start}, only {len(items)}")
        for row in range(start, len(items), self._block_rows):
            # One by one: a deque is a sequence too, but cannot be sliced.
            block = [items[n] for n in range(row, min(row + self._block_rows, len(items)))]
            yield ItemBlock(position={"row": row}, items=self._checked(block, row))

    def _once(self, items: Iterable[BatchItem]) -> Iterator[ItemBlock]:
        if self._used_up:
            raise SourceError("these items came from an iterator that was read: pass a list")
        self._used_up = True
        rest = iter(items)
        row = 0
        while block := list(itertools.islice(rest, self._block_rows)):
            yield ItemBlock(position=None, items=self._checked(block, row))
            row += len(block)

    def _checked(self, items: Sequence[BatchItem], first_row: int) -> Sequence[BatchItem]:
        for row, item in enumerate(items, first_row):
            if not isinstance(item, BatchItem):
                raise SourceError(f"{self.label}, row {row}: a {type(item).__name__}, no BatchItem")
            item_id: object = item.item_id
            if not isinstance(item_id, str) or not item_id:
                raise SourceError(f"{self.label}, row {row}: item_id must be text and not empty")
        return items
