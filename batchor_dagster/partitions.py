"""Whether a partition is still defined."""

from collections.abc import Callable
from functools import lru_cache

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
