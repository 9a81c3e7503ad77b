"""Rows of several partitions, one after the other, as the members of one run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from batchor_core.errors import SourceError
from batchor_core.sources.objects import source_of
from batchor_core.sources.protocol import ItemBlock, ItemSource, Position


@dataclass(frozen=True, kw_only=True)
class MemberRows:
    """One member's rows.

    Attributes:
        name: What messages call it, as a partition key.
        read: Returns what a job's ``items`` may be; called when its turn comes, and once at most
            for each reading of the whole source.
    """

    name: str
    read: Callable[[], Any]


class MemberItemSource:
    """The rows of several partitions: the n-th is the run's member n.

    Ids are those of the partition alone (its row numbers, where there is no id column), so that a
    partition's rows are the same rows in whatever company they are asked. One partition is in
    memory at a time. There are no positions: a run that is killed while reading starts over.

    Args:
        members: The partitions, in order; at least one.
        id_column: Column that holds the keys of a frame's rows.
    """

    def __init__(self, members: Sequence[MemberRows], id_column: str | None = None) -> None:
        self._members = members
        self._id_column = id_column

    @property
    def label(self) -> str:
        """How many partitions there are, and the first of them."""
        return f"{len(self._members)} partitions from {self._members[0].name!r} on"

    @cached_property
    def columns(self) -> Sequence[str] | None:
        """Names of the first partition's columns; the others have to have them, too."""
        return self._first.columns

    @cached_property
    def _first(self) -> ItemSource:
        return self._open(self._members[0])

    def blocks(self, position: Position | None = None) -> Iterator[ItemBlock]:  # noqa: ARG002, D102 (protocol)
        names = self.columns
        for number, member in enumerate(self._members):
            source = self._first if number == 0 else self._checked(member, names)
            row = 0
            for block in source.blocks():
                yield _of_member(block, number, row)
                row += len(block)
            if number == 0:
                del self._first  # read again, should the source be read again

    def _checked(self, member: MemberRows, names: Sequence[str] | None) -> ItemSource:
        source = self._open(member)
        missing = set(names or ()) - set(source.columns or ())
        if missing:
            raise SourceError(
                f"the rows of {member.name!r} lack column {min(missing)!r}, which those of "
                f"{self._members[0].name!r} have"
            )
        return source

    def _open(self, member: MemberRows) -> ItemSource:
        return source_of(member.read(), self._id_column)


def _of_member(block: ItemBlock, number: int, row: int) -> ItemBlock:
    ids = block.item_ids
    if ids is None and block.items is None:
        ids = [str(n) for n in range(row, row + len(block))]
    return replace(block, position=None, item_ids=ids, partitions=[number] * len(block))
