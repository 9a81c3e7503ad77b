"""Context and inputs for one partition of a step that covers several."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.partitions import in_order, numbered
from batchor_dagster.resources.wanted_input import WantedInput
from batchor_dagster.step.added_metadata import AddMetadata, RowsContext


class PartitionContext(RowsContext):
    """The step's context as the user's function sees it: for one partition.

    ``op_execution_context`` and ``AssetExecutionContext.get()`` still cover the whole step.

    Args:
        context: The step's.
        key: The partition.
        upstream_keys: Returns the partitions of an input, by its name, that belong to this one.
        add_metadata: Keeps the metadata that the function adds.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        key: str,
        upstream_keys: Callable[[str], Sequence[str]],
        add_metadata: AddMetadata,
    ) -> None:
        def add(partition: str | None, metadata: Mapping[str, Any]) -> None:
            add_metadata(partition or key, metadata)

        super().__init__(context, add)
        self._key = key
        self._upstream_keys = upstream_keys

    @property
    def has_partition_key(self) -> bool:
        """True."""
        return True

    @property
    def has_partition_key_range(self) -> bool:
        """False: this is one partition."""
        return False

    @property
    def partition_key(self) -> str:
        """The partition's key."""
        return self._key

    @property
    def partition_keys(self) -> Sequence[str]:
        """The partition's key alone."""
        return [self._key]

    @property
    def partition_key_range(self) -> dg.PartitionKeyRange:
        """From this partition to this partition."""
        return dg.PartitionKeyRange(self._key, self._key)

    @property
    def asset_partition_key_range(self) -> dg.PartitionKeyRange:
        """From this partition to this partition."""
        return self.partition_key_range

    def asset_partition_key_for_output(self, output_name: str = "result") -> str:  # noqa: ARG002 (Dagster's)
        """Return the partition's key."""
        return self._key

    def asset_partition_keys_for_output(self, output_name: str = "result") -> Sequence[str]:  # noqa: ARG002 (Dagster's)
        """Return the partition's key alone."""
        return [self._key]

    def asset_partition_key_range_for_output(
        self,
        output_name: str = "result",  # noqa: ARG002 (Dagster's)
    ) -> dg.PartitionKeyRange:
        """Return the range from this partition to this partition."""
        return self.partition_key_range

    def asset_partitions_time_window_for_output(
        self,
        output_name: str = "result",  # noqa: ARG002 (Dagster's)
    ) -> dg.TimeWindow:
        """Return the time that the partition covers."""
        return self.partition_time_window

    def asset_partition_keys_for_input(self, input_name: str) -> Sequence[str]:
        """Return the input's partitions that belong to this one, in order."""
        return self._upstream_keys(input_name)

    def asset_partition_key_for_input(self, input_name: str) -> str:
        """Return the only partition of the input that belongs to this one.

        Raises:
            ConfigurationError: There are several, or none.
        """
        keys = self._upstream_keys(input_name)
        if len(keys) != 1:
            raise ConfigurationError(
                f"input {input_name!r} has {len(keys)} partitions for {self._key!r}: ask for all "
                "of them with asset_partition_keys_for_input"
            )
        return keys[0]

    def asset_partition_key_range_for_input(self, input_name: str) -> dg.PartitionKeyRange:
        """Return the range of the input's partitions that belong to this one."""
        keys = self._upstream_keys(input_name)
        return dg.PartitionKeyRange(keys[0], keys[-1])

    def asset_partitions_time_window_for_input(self, input_name: str = "result") -> dg.TimeWindow:
        """Return the time that the input's partitions cover together.

        Raises:
            ConfigurationError: They have no time.
        """
        definition = self.asset_partitions_def_for_input(input_name)
        if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
            raise ConfigurationError(f"input {input_name!r} covers no time window")
        keys = self._upstream_keys(input_name)
        first = definition.time_window_for_partition_key(keys[0])
        last = definition.time_window_for_partition_key(keys[-1])
        return dg.TimeWindow(start=first.start, end=last.end)

    @property
    def multi_partition_key(self) -> dg.MultiPartitionKey:
        """The key with its dimensions."""
        definition = _definition(self)
        assert isinstance(definition, dg.MultiPartitionsDefinition)
        return definition.get_partition_key_from_str(self._key)

    @property
    def partition_time_window(self) -> dg.TimeWindow:
        """The time that the partition covers.

        Raises:
            ConfigurationError: It has no time.
        """
        definition: Any = _definition(self)
        key = self._key
        if isinstance(definition, dg.MultiPartitionsDefinition):
            for dimension in definition.partitions_defs:
                if isinstance(dimension.partitions_def, dg.TimeWindowPartitionsDefinition):
                    definition = dimension.partitions_def
                    key = self.multi_partition_key.keys_by_dimension[dimension.name]
        if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
            raise ConfigurationError(f"partition {key!r} covers no time window")
        return definition.time_window_for_partition_key(key)


class StepInputs:
    """Picks the inputs of one partition out of those of a step that covers several.

    Args:
        context: The step's.
        values: The step's arguments. An input is what its IO manager loaded: a dict by partition if
            the upstream asset has partitions.
        annotations: The annotations of the user's function, by the name of the input.
        add_metadata: Keeps the metadata that the function adds.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        values: Mapping[str, Any],
        annotations: Mapping[str, Any],
        add_metadata: AddMetadata,
    ) -> None:
        self._context = context
        self._add_metadata = add_metadata
        self._values = values
        self._annotations = annotations
        self._keys_of = context.assets_def.keys_by_input_name
        self._graph = context.job_def.asset_layer.asset_graph
        self._is_by_partition = cache(self._look_at)
        self._numbered = cache(partial(numbered, instance=context.instance))

    def of(self, partition: str) -> dict[str, Any]:
        """Return the arguments for one partition.

        Raises:
            ConfigurationError: The IO manager did not load an input as a dict by partition.
        """
        return {name: self._pick(name, value, partition) for name, value in self._values.items()}

    def context(self, partition: str) -> PartitionContext:
        """Return the context for one partition."""

        def upstream_keys(name: str) -> Sequence[str]:
            return self._upstream_keys(self._keys_of[name], partition)

        return PartitionContext(self._context, partition, upstream_keys, self._add_metadata)

    def _pick(self, name: str, value: Any, partition: str) -> Any:
        key = self._keys_of.get(name)
        if key is None or not self._graph.has(key) or self._graph.get(key).partitions_def is None:
            return value
        keys = self._upstream_keys(key, partition)
        if not self._is_by_partition(name):
            if len(self._context.partition_keys) == 1 or (keys and self._is_of_one(name)):
                return value
            if not self._is_of_one(name):
                raise ConfigurationError(
                    f"input {name!r} came as one {type(value).__name__} for "
                    f"{len(self._context.partition_keys)} partitions: give the asset a "
                    "backfill_policy, with an IO manager that loads several partitions as a "
                    "dict, or launch one Dagster run for each partition"
                )
            value = {}
        return WantedInput.of(self._annotations.get(name)).shaped(
            {k: value[k] for k in keys if k in value},
            is_single=len(keys) == 1,
            name=f"input {name!r} of partition {partition!r}",
        )

    def _look_at(self, name: str) -> bool:
        """Whether the IO manager loaded an input as a dict by partition."""
        value = self._values[name]
        if not isinstance(value, Mapping):
            return False
        return set(value) <= set(self._context.asset_partition_keys_for_input(name))

    def _is_of_one(self, name: str) -> bool:
        """Whether the whole step needs at most one partition of an input.

        Dagster's own IO managers load one partition as it is, and no partition as None.
        """
        return len(self._context.asset_partition_keys_for_input(name)) <= 1

    def _upstream_keys(self, upstream: dg.AssetKey, partition: str) -> Sequence[str]:
        mapping = self._graph.get_partition_mapping(self._context.asset_key, upstream)
        if isinstance(mapping, dg.IdentityPartitionMapping):
            return [partition]
        own, theirs = _definition(self._context), self._graph.get(upstream).partitions_def
        assert own is not None
        assert theirs is not None
        found = mapping.get_upstream_mapped_partitions_result_for_partitions(
            own.subset_with_partition_keys([partition]),
            own,
            theirs,
            dynamic_partitions_store=self._context.instance,
        ).partitions_subset
        return in_order(found.get_partition_keys(), self._numbered(theirs))


def by_partition(annotation: Any) -> dg.DagsterType:
    """Return the type of an input that an IO manager has to load as a dict by partition.

    The type checks nothing: an IO manager may load a single partition without a dict, as Dagster's
    own do.
    """
    asked = WantedInput.of(annotation or Any)
    # Without "| None": a dict has no entry for a partition that is missing.
    value: Any = asked.annotation
    return _unchecked(value if asked.by_partition else dict[str, value])


@cache  # Dagster wants one object of each name
def _unchecked(wanted: Any) -> dg.DagsterType:
    return dg.DagsterType(
        name=f"{wanted} by partition",
        type_check_fn=lambda _context, _value: True,
        typing_type=wanted,
    )


def _definition(context: dg.AssetExecutionContext) -> dg.PartitionsDefinition[Any] | None:
    graph = context.job_def.asset_layer.asset_graph
    definition: dg.PartitionsDefinition[Any] | None = graph.get(context.asset_key).partitions_def
    return definition
