"""The rows of a block as Python objects, for prompts that are built by the user's own function."""

from collections.abc import Iterator
from typing import Any

from batchor_core.model.items import BatchItem
from batchor_core.sources.protocol import ItemBlock


def items_of(block: ItemBlock, first_row: int) -> Iterator[BatchItem]:
    """Return the rows as items, with a mapping of the row's columns as payload.

    Args:
        block: Any block; one that holds items hands out these.
        first_row: Row in the run of the block's first row; its text is the id where the user
            named no id column.
    """
    if block.items is not None:
        yield from block.items
        return
    ids = block.item_ids
    metadata = block.metadata
    for index, payload in enumerate(rows_as_dicts(block)):
        item_id = str(first_row + index) if ids is None else ids[index]
        yield BatchItem(
            item_id=item_id, payload=payload, metadata={} if metadata is None else metadata[index]
        )


def rows_as_dicts(block: ItemBlock) -> Iterator[dict[str, Any]]:
    """Return the rows of a columnar block as a new dict each, in the order of the columns.

    Every column is there, null where the row has no such value; nested JSON values are lists and
    dicts. Keys of a JSON object that are not columns of the frame come last.

    Raises:
        ValueError: The block holds items, whose payload need not be a mapping.
    """
    if block.frame is None:
        raise ValueError("a block of items has no columns: use its items")
    if block.records is None:
        yield from block.frame.iter_rows(named=True)
        return
    absent = dict.fromkeys(block.frame.columns)
    for record in block.records:
        yield {**absent, **record}
