"""The contract of a source of items.

A source hands out its rows in blocks, in an order that is the same every time it is opened. A
block carries the position of its first row; opened again at that position, the source starts with
that row. Whoever stopped in the middle of a block stores the position and how many of its rows
were used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import polars as pl

from batchor_core.model.items import BatchItem

Position = Mapping[str, Any]
"""Where a block starts: JSON, made and understood by the source alone."""

BLOCK_ROWS = 4096
"""Rows in a block, at most: what ingestion holds in memory at once."""

LINEAGE = "batchor_lineage"
"""Metadata key under which a composite source says where a row comes from; stored, so never
renamed, and reserved."""


@dataclass(frozen=True, kw_only=True)
class ItemBlock:
    """Some consecutive rows, either as a frame or as items.

    Attributes:
        position: Where the block starts; None where the source cannot be opened in the middle.
        frame: The rows as columns; None for a source of ``BatchItem``.
        items: The rows as items; None for a columnar source.
        item_ids: The user's keys, one a row; None: the row's number in the run is its id.
        partitions: Index of the row's partition (``member``); None: all belong to the first.
        records: The rows as they were read, nested values and all, where ``frame`` can only hold
            their text; None where the frame says it all.
        metadata: What is handed back with each row of a frame; None: nothing. Items have their own.
        file: The file that the rows come from; None where the source is not made of several.
    """

    position: Position | None
    frame: pl.DataFrame | None = None
    items: Sequence[BatchItem] | None = None
    item_ids: Sequence[str] | None = None
    partitions: Sequence[int] | None = None
    records: Sequence[Mapping[str, Any]] | None = None
    metadata: Sequence[Mapping[str, Any]] | None = None
    file: str | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        if self.frame is not None:
            return self.frame.height
        return len(self.items or ())

    def head(self, count: int) -> "ItemBlock":
        """Return the block's first rows, all of them if there are not so many."""
        return self if count >= len(self) else self._slice(slice(0, count))

    def tail(self, skip: int) -> "ItemBlock":
        """Return the block without its first ``skip`` rows; the position stays the same."""
        return self._slice(slice(skip, len(self))) if skip else self

    def _slice(self, rows: slice) -> "ItemBlock":
        return replace(
            self,
            frame=None if self.frame is None else self.frame[rows],
            items=None if self.items is None else self.items[rows],
            item_ids=None if self.item_ids is None else self.item_ids[rows],
            partitions=None if self.partitions is None else self.partitions[rows],
            records=None if self.records is None else self.records[rows],
            metadata=None if self.metadata is None else self.metadata[rows],
        )


@runtime_checkable
class ItemSource(Protocol):
    """Anything that can hand out its rows in blocks."""

    @property
    def label(self) -> str:
        """What messages call it: a file's name, or what kind of object it is."""
        ...

    @property
    def columns(self) -> Sequence[str] | None:
        """Names of the columns, known before the first row; None for a source of ``BatchItem``."""
        ...

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:
        """Read from ``position`` (None: the start), at most ``BLOCK_ROWS`` rows at a time.

        Raises:
            SourceError: The input cannot be read; the message names the file and the line.
        """
        ...


@runtime_checkable
class CheckpointedItemSource(ItemSource, Protocol):
    """A source whose blocks carry positions, so that a killed ingestion goes on where it was."""

    def fingerprint(self) -> str:
        """Return a short text that changes when the rows may have changed (content, not path)."""
        ...
