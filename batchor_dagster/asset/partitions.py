"""Which partitions are defined, and in which order."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import dagster as dg

AnyPartitions = dg.PartitionsDefinition[str]


class DefinedPartitions:
    """A look at partitions definitions during one tick; lists the keys of each only once.

    A run request for a partition that is gone would fail its whole tick.

    Args:
        instance: Knows the dynamic partitions.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._keys: Callable[[AnyPartitions], frozenset[str]] = lru_cache(maxsize=None)(self._list)
        self._places: Callable[[AnyPartitions], Mapping[str, int]] = lru_cache(maxsize=None)(
            self._number
        )

    def has(self, partitions_def: AnyPartitions | None, key: str) -> bool:
        """Return whether there is a partition of this key; of no partitions, only the empty one."""
        match partitions_def:
            case None:
                return not key
            case dg.MultiPartitionsDefinition():
                return self._has_dimensions(partitions_def, key)
            case dg.DynamicPartitionsDefinition() | dg.StaticPartitionsDefinition():
                return key in self._keys(partitions_def)
            case _:
                return partitions_def.has_partition_key(key)

    def places(self, partitions_def: AnyPartitions) -> Mapping[str, int]:
        """Return a number for each partition: those of a range of one dimension follow each other.

        A Dagster run takes a range of partitions. In two dimensions a range is a rectangle, so that
        the last of a row and the first of the next are not next to each other.
        """
        return self._places(partitions_def)

    def is_rectangle(self, partitions_def: AnyPartitions, keys: Sequence[str]) -> bool:
        """Whether keys of several dimensions are all combinations of a range in each of them."""
        if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
            return False
        values = zip(*(key.split("|") for key in keys), strict=True)
        ranges = [list(dict.fromkeys(dimension)) for dimension in values]
        return len(keys) == math.prod(map(len, ranges)) and all(
            self._are_adjacent(dimension.partitions_def, found)
            for dimension, found in zip(partitions_def.partitions_defs, ranges, strict=True)
        )

    def _are_adjacent(self, partitions_def: AnyPartitions, keys: Sequence[str]) -> bool:
        places = self.places(partitions_def)
        found = [places[key] for key in keys if key in places]
        return found == list(range(found[0], found[0] + len(keys))) if found else False

    def _has_dimensions(self, partitions_def: dg.MultiPartitionsDefinition, key: str) -> bool:
        dimensions = partitions_def.partitions_defs  # in the order of the key's parts
        parts = key.split("|")
        return len(parts) == len(dimensions) and all(
            self.has(dimension.partitions_def, part)
            for dimension, part in zip(dimensions, parts, strict=True)
        )

    def _list(self, partitions_def: AnyPartitions) -> frozenset[str]:
        if isinstance(partitions_def, dg.DynamicPartitionsDefinition) and partitions_def.name:
            return frozenset(self._instance.get_dynamic_partitions(partitions_def.name))
        return frozenset(partitions_def.get_partition_keys())

    def _number(self, partitions_def: AnyPartitions) -> Mapping[str, int]:
        numbers = numbered(partitions_def, self._instance)
        row = len(numbers) or 1
        if isinstance(partitions_def, dg.MultiPartitionsDefinition):
            last = partitions_def.partitions_defs[-1].partitions_def
            row = len(numbered(last, self._instance)) or 1
        return {key: number + number // row for key, number in numbers.items()}


def numbered(
    definition: dg.PartitionsDefinition[Any], instance: dg.DagsterInstance | None
) -> dict[str, int]:
    """Return the number of each partition in the order of its definition."""
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    return {str(key): number for number, key in enumerate(keys)}


def in_order(keys: Iterable[str], numbers: Mapping[str, int]) -> list[str]:
    """Return partition keys in the order of their numbers; those without one come last."""
    return sorted(keys, key=lambda key: numbers.get(key, len(numbers)))
