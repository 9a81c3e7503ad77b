"""What the user's function says of the asset, kept until the asset is materialized.

A request materializes nothing: what its function adds to the output would be lost with it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

MAX_BYTES = 10_000
"""Of what is kept with a waiter; it lies in the database."""

_PAYLOAD_KEY = "added_metadata"  # stored, never renamed
_EVERYWHERE = ""

AddMetadata = Callable[[str | None, Mapping[str, Any]], None]
"""Takes metadata of a partition; None: of all those that the function is called for."""


class AddedMetadata:
    """Metadata by partition. Added twice, the later value of a name counts."""

    def __init__(self) -> None:
        self._by_partition: dict[str, dict[str, Any]] = {}

    def add(self, partition: str | None, metadata: Mapping[str, Any]) -> None:
        """Add some, of one partition or (None) of all."""
        self._by_partition.setdefault(partition or _EVERYWHERE, {}).update(metadata)

    def of(self, partition: str) -> dict[str, Any]:
        """Return what was said of a partition, or (empty) of an asset without partitions."""
        found = self._by_partition
        return {**found.get(_EVERYWHERE, {}), **found.get(partition, {})}

    def payload(self, key: dg.AssetKey, partitions: Sequence[str]) -> dict[str, Any]:
        """Return what is stored with a waiter for these partitions; nothing if nothing was said.

        Raises:
            ValueError: It is more than ``MAX_BYTES``.
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
        """Read what was stored with a waiter."""
        found = cls()
        for partition, text in payload.get(_PAYLOAD_KEY, {}).items():
            found.add(partition, dg.deserialize_value(text, dict))
        return found


def _serialized(key: dg.AssetKey, values: Mapping[str, Any]) -> str:
    # The event makes Dagster's values of plain ones.
    metadata: Any = dict(dg.AssetObservation(key, metadata=values).metadata)
    return dg.serialize_value(metadata)


class RowsContext(dg.AssetExecutionContext):
    """The step's context, whose metadata goes to the materialization to come."""

    def __init__(self, context: dg.AssetExecutionContext, add: AddMetadata) -> None:
        super().__init__(context.op_execution_context)
        self._add = add

    def add_output_metadata(
        self,
        metadata: Mapping[str, Any],
        output_name: str | None = None,  # noqa: ARG002 (Dagster's; there is one output)
        mapping_key: str | None = None,  # noqa: ARG002 (Dagster's)
    ) -> None:
        """Add metadata to the materialization."""
        self._add(None, metadata)

    def add_asset_metadata(
        self,
        metadata: Mapping[str, Any],
        asset_key: Any = None,  # noqa: ARG002 (Dagster's; there is one asset)
        partition_key: str | None = None,
    ) -> None:
        """Add metadata to the materialization, or to that of one partition."""
        self._add(partition_key, metadata)
