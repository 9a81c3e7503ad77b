"""Several sources, one after the other, and from which of them each row comes."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl

from batchor_core.errors import ConfigurationError, SourceError
from batchor_core.model.items import BatchItem
from batchor_core.sources.objects import source_of
from batchor_core.sources.protocol import LINEAGE, ItemBlock, ItemSource, Position
from batchor_core.sources.row_ids import check_column
from batchor_core.sources.row_positions import inner_position, position_number


class CompositeItemSource:
    """The rows of several sources, in the order given.

    An item's id is ``<source index>:<id in its source>``, so that two sources may use the same
    keys. Where it comes from is handed back with its result, under ``batchor_lineage`` in the
    metadata, whose keys are stored and never renamed:

    * ``source_ref``: what messages call its source, as ``tickets.csv``;
    * ``partition_id``: the file, if its source is a folder or a pattern; else null;
    * ``source_item_index``: its row in its source, from 0;
    * ``source_primary_key``: its id in its source; null where that is the row number;
    * ``source_namespace``: the source's index as text, which is what its id begins with.

    ``columns`` are those that all sources have: only these can stand in templates, or be kept. A
    function that builds prompts sees all columns of the row's own source. Positions are
    ``{"source": n, "row": r, "at": position in it}``.

    Args:
        sources: The sources; frames and iterables of ``BatchItem`` are also taken.
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        self._parts: list[ItemSource] = [source_of(source) for source in sources]
        if not self._parts:
            raise ConfigurationError("a composite source needs at least one source")
        if any(isinstance(part, CompositeItemSource) for part in self._parts):
            raise ConfigurationError("a composite source in another: give all sources to one")

    @property
    def label(self) -> str:
        """The labels of all sources, or of the first ones."""
        labels = [part.label for part in self._parts]
        shown = ", ".join(labels[:_SHOWN])
        return shown if len(labels) <= _SHOWN else f"{shown} and {len(labels) - _SHOWN} more"

    @cached_property
    def columns(self) -> Sequence[str] | None:
        """Names of the columns that all sources have; None if none of them has columns."""
        found = [part.columns for part in self._parts]
        columnar = [names for names in found if names is not None]
        if not columnar:
            return None
        first, *others = columnar
        return [name for name in first if all(name in names for names in others)]

    @cached_property
    def dtypes(self) -> Mapping[str, pl.DataType]:
        """Types of the columns that have the same type in all sources."""
        first, *others = [getattr(part, "dtypes", {}) for part in self._parts]
        return {
            name: dtype
            for name, dtype in first.items()
            if all(types.get(name) == dtype for types in others)
        }

    @property
    def reopenable(self) -> bool:
        """Whether all sources have positions and fingerprints."""
        return all(
            hasattr(type(part), "fingerprint") and getattr(part, "reopenable", True)
            for part in self._parts
        )

    def require(self, names: Sequence[str]) -> None:
        """Make sure that every source that has columns has these.

        Raises:
            MissingColumnError: One lacks one; the message says which.
        """
        for number, part in enumerate(self._parts):
            for name in names:
                if part.columns is not None:
                    check_column(name, part.columns, f"{part.label} (source {number})")

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: D102 (protocol)
        first, row, inner = 0, 0, None
        if position is not None:
            first = position_number(position, "source", self.label)
            row = position_number(position, "row", self.label)
            inner = inner_position(position, "at", self.label)
            if first >= len(self._parts):
                raise SourceError(f"{self.label} has become shorter: there is no source {first}")
        for number in range(first, len(self._parts)):
            for block in self._parts[number].blocks(inner):
                yield self._named(block, number, row)
                row += len(block)
            row, inner = 0, None

    def fingerprint(self) -> str:
        """Return the hash of the sources' fingerprints, in their order."""
        digest = hashlib.sha256(b"composite\n")
        for part in self._parts:
            digest.update(f"{part.fingerprint()}\n".encode())  # type: ignore[attr-defined]  # see reopenable
        return digest.hexdigest()

    def _named(self, block: ItemBlock, number: int, row: int) -> ItemBlock:
        """Return a block with ids of the composite, and its rows' lineage."""
        place = None
        if self.reopenable and block.position is not None:
            place = {"source": number, "row": row, "at": block.position}
        if block.items is not None:
            lineage = self._lineage(block, number, row, [item.item_id for item in block.items])
            return replace(
                block,
                position=place,
                items=[_with_lineage(*pair) for pair in zip(block.items, lineage, strict=True)],
            )
        keys = block.item_ids
        ids = keys if keys is not None else range(row, row + len(block))
        return replace(
            block,
            position=place,
            item_ids=[f"{number}:{item_id}" for item_id in ids],
            metadata=self._lineage(block, number, row, keys),
        )

    def _lineage(
        self, block: ItemBlock, number: int, row: int, keys: Sequence[str] | None
    ) -> list[Mapping[str, Any]]:
        shared = {"source_ref": self._parts[number].label, "partition_id": block.file}
        namespace = str(number)
        return [
            {
                LINEAGE: {
                    **shared,
                    "source_item_index": row + index,
                    "source_primary_key": None if keys is None else keys[index],
                    "source_namespace": namespace,
                }
            }
            for index in range(len(block))
        ]


_SHOWN = 3


def _with_lineage(item: BatchItem, lineage: Mapping[str, Any]) -> BatchItem:
    """Return an item of the composite.

    Raises:
        SourceError: It claims a lineage already.
    """
    if item.metadata and LINEAGE in item.metadata:
        raise SourceError(
            f"item {item.item_id!r}: the metadata key {LINEAGE!r} is reserved for where a row "
            "comes from; name yours otherwise"
        )
    namespace = lineage[LINEAGE]["source_namespace"]
    return replace(
        item, item_id=f"{namespace}:{item.item_id}", metadata={**(item.metadata or {}), **lineage}
    )
