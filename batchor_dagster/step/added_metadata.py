"""Metadata that the user's function adds, kept with the waiter until the asset is materialized.

A request materializes nothing, so Dagster would drop what its function adds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

MAX_BYTES = 10_000
"""How much metadata a waiter keeps; it lies in the database."""

_PAYLOAD_KEY = "added_metadata"  # stored, never renamed
_EVERYWHERE = ""

AddMetadata = Callable[[str | None, Mapping[str, Any]], None]
"""Takes metadata for one partition, or (None) for all partitions of the request."""


class AddedMetadata:
    """Added metadata by partition; a later value of a name replaces an earlier one."""

    def __init__(self) -> None:
        self._by_partition: dict[str, dict[str, Any]] = {}

    def add(self, partition: str | None, metadata: Mapping[str, Any]) -> None:
        """Add metadata for one partition, or (None) for all."""
        self._by_partition.setdefault(partition or _EVERYWHERE, {}).update(metadata)

    def of(self, partition: str) -> dict[str, Any]:
        """Return the metadata of a partition; empty key: of an asset without partitions."""
        found = self._by_partition
        return {**found.get(_EVERYWHERE, {}), **found.get(partition, {})}

    def payload(self, key: dg.AssetKey, partitions: Sequence[str]) -> dict[str, Any]:
        """Return the payload entry for a waiter of these partitions; empty without metadata.

        Raises:
            ValueError: The metadata takes more than ``MAX_BYTES``.
        """
        wanted = {_EVERYWHERE, *partitions}
        kept = {
            partition: _serialized(key, values)
            for partition, values in self._by_partition.items()
            if partition in wanted
        }
        size = len(json.dumps(kept).encode())
        if size > MAX_BYTES:
            raise ValueError(f"{size} bytes of metadata")
        return {_PAYLOAD_KEY: kept} if kept else {}

    @classmethod
    def of_payload(cls, payload: Mapping[str, Any]) -> "AddedMetadata":
        """Read the metadata from a waiter's payload."""
        found = cls()
        for partition, text in payload.get(_PAYLOAD_KEY, {}).items():
            found.add(partition, dg.deserialize_value(text, dict))
        return found


def _serialized(key: dg.AssetKey, values: Mapping[str, Any]) -> str:
    # Dagster's event turns plain values into metadata values.
    metadata: Any = dict(dg.AssetObservation(key, metadata=values).metadata)
    return dg.serialize_value(metadata)


class RowsContext(dg.AssetExecutionContext):
    """The step's context, which keeps added metadata for the later materialization."""

    def __init__(self, context: dg.AssetExecutionContext, add: AddMetadata) -> None:
        super().__init__(context.op_execution_context)
        self._add = add

    def add_output_metadata(
        self,
        metadata: Mapping[str, Any],
        output_name: str | None = None,  # noqa: ARG002 (Dagster's; there is one output)
        mapping_key: str | None = None,  # noqa: ARG002 (Dagster's)
    ) -> None:
        """Keep metadata for the materialization."""
        self._add(None, metadata)

    def add_asset_metadata(
        self,
        metadata: Mapping[str, Any],
        asset_key: Any = None,  # noqa: ARG002 (Dagster's; there is one asset)
        partition_key: str | None = None,
    ) -> None:
        """Keep metadata for the materialization of all partitions, or of one."""
        self._add(partition_key, metadata)
