"""Look up partitions definitions: which keys are defined, and in which order."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import dagster as dg

AnyPartitions = dg.PartitionsDefinition[str]


class DefinedPartitions:
    """Partitions definitions during one tick. Keys are listed for static and dynamic ones only.

    Args:
        instance: Holds the dynamic partitions.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._numbers: dict[int, tuple[AnyPartitions, Mapping[str, int]]] = {}

    def has(self, partitions_def: AnyPartitions | None, key: str) -> bool:
        """Return whether a definition has a key; None (no partitions) has the empty key only."""
        match partitions_def:
            case None:
                return not key
            case dg.MultiPartitionsDefinition():
                return self._has_dimensions(partitions_def, key)
            case dg.TimeWindowPartitionsDefinition():
                return partitions_def.has_partition_key(key)
            case _:
                return key in self._numbered(partitions_def)

    def follows(self, partitions_def: AnyPartitions | None, before: str, after: str) -> bool:
        """Return whether the partition ``after`` comes right after ``before``.

        A Dagster run takes a range of partitions. In two dimensions a range is a rectangle, so the
        last partition of a row and the first of the next do not follow each other.
        """
        if not (self.has(partitions_def, before) and self.has(partitions_def, after)):
            return False
        match partitions_def:
            case None:
                return False
            case dg.MultiPartitionsDefinition():
                *same, last = zip(before.split("|"), after.split("|"), strict=True)
                dimension = partitions_def.partitions_defs[-1].partitions_def
                return all(a == b for a, b in same) and self.follows(dimension, *last)
            case dg.TimeWindowPartitionsDefinition():
                end = partitions_def.time_window_for_partition_key(before).end
                return bool(end == partitions_def.time_window_for_partition_key(after).start)
            case _:
                numbers = self._numbered(partitions_def)
                return numbers[after] == numbers[before] + 1

    def is_rectangle(self, partitions_def: AnyPartitions | None, keys: Sequence[str]) -> bool:
        """Whether multi-partition keys are all combinations of one range per dimension."""
        if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
            return False
        values = zip(*(key.split("|") for key in keys), strict=True)
        ranges = [list(dict.fromkeys(dimension)) for dimension in values]
        return len(keys) == math.prod(map(len, ranges)) and all(
            all(self.follows(dimension.partitions_def, *pair) for pair in pairwise(found))
            for dimension, found in zip(partitions_def.partitions_defs, ranges, strict=True)
        )

    def _has_dimensions(self, partitions_def: dg.MultiPartitionsDefinition, key: str) -> bool:
        dimensions = partitions_def.partitions_defs  # in the order of the key's parts
        parts = key.split("|")
        return len(parts) == len(dimensions) and all(
            self.has(dimension.partitions_def, part)
            for dimension, part in zip(dimensions, parts, strict=True)
        )

    def _numbered(self, partitions_def: AnyPartitions) -> Mapping[str, int]:
        # By identity: a definition of many keys takes as long to hash as to list.
        found = self._numbers.get(id(partitions_def))
        if found is None:
            found = partitions_def, numbered(partitions_def, self._instance)
            self._numbers[id(partitions_def)] = found
        return found[1]


def partitions_defs(graph: Any, names: Iterable[str]) -> dict[dg.AssetKey, AnyPartitions | None]:
    """Return the partitions definitions of those of these assets that an asset graph has."""
    keys = map(dg.AssetKey.from_user_string, names)
    return {key: graph.get(key).partitions_def for key in keys if graph.has(key)}


def numbered(
    definition: dg.PartitionsDefinition[Any], instance: dg.DagsterInstance | None
) -> dict[str, int]:
    """Number the keys of a definition in its order."""
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    return {str(key): number for number, key in enumerate(keys)}


def in_order(keys: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    """Return partition keys in the order of their numbers; keys without a number come last."""
    return sorted(keys, key=lambda key: numbers.get(key, len(numbers)))
