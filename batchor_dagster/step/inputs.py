"""The upstream inputs of a batch asset's step: a request loads them, a materialize run does not.

Dagster loads every declared input before it calls a step's function. A request needs the inputs to
make its rows. A materialize run finds all that it needs in the batch run: it must neither read its
inputs a second time nor fail because they are gone.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dagster as dg

from batchor_dagster.step.partition_view import by_partition


class _LoadedOnDemand(dg.DagsterType):
    """The declared type of an input, which turns into ``Nothing`` in steps that need no inputs.

    Within the step, Dagster asks each input for its kind before it loads it and again before it
    calls the function; it leaves out inputs of the kind ``Nothing``. So Dagster still decides which
    IO manager loads an input, and with which context.

    Args:
        wanted: The type as it was declared.
        is_needed: Whether a step needs its inputs.
    """

    def __init__(
        self, wanted: dg.DagsterType, is_needed: Callable[[dg.AssetExecutionContext], bool]
    ) -> None:
        self._display_name = wanted.display_name
        self._is_needed = is_needed
        super().__init__(
            type_check_fn=wanted.type_check,
            key=f"{wanted.key}, loaded on demand",  # without a name: there may be many of them
            description=wanted.description,
            loader=wanted.loader,
            required_resource_keys=set(wanted.required_resource_keys),
            typing_type=wanted.typing_type,
            metadata=wanted.metadata,
        )

    @property
    def display_name(self) -> str:
        """The declared type's."""
        return self._display_name

    @property
    def kind(self) -> Any:
        """``Nothing`` in a step that needs no inputs, else the kind of any class."""
        context = _current_context()
        is_left = context is not None and not self._is_needed(context)
        return type(self._kind).NOTHING if is_left else self._kind

    @kind.setter
    def kind(self, kind: Any) -> None:
        self._kind = kind


def loaded_on_demand(
    made: dg.AssetsDefinition,
    ins: Mapping[str, dg.AssetIn],
    deps: Iterable[dg.AssetDep],
    is_needed: Callable[[dg.AssetExecutionContext], bool],
    *,
    as_partitions: bool,
) -> dict[str, dg.AssetIn]:
    """Return an asset's inputs with types by which only requests load them.

    Dagster takes no type for an input that is also among the ``deps``: the partition mapping of
    such a dependency goes to the input.

    Args:
        made: The asset as Dagster makes it from its function; its input types are wrapped.
        ins: The user's ``ins``.
        deps: The user's ``deps``.
        is_needed: Whether a step needs its inputs; called within the step, several times.
        as_partitions: Whether to load the inputs as dicts by partition.
    """
    types = {
        name: made.node_def.input_def_named(name).dagster_type
        for name in made.node_keys_by_input_name
    }
    mappings = {dep.asset_key: dep.partition_mapping for dep in deps}
    return {
        name: (given := ins.get(name, dg.AssetIn(key)))._replace(
            key=key,
            key_prefix=None,
            partition_mapping=given.partition_mapping or mappings.get(key),
            dagster_type=_LoadedOnDemand(
                by_partition(types[name].typing_type) if as_partitions else types[name], is_needed
            ),
        )
        for name, key in made.node_keys_by_input_name.items()
        if not types[name].is_nothing
    }


def _current_context() -> dg.AssetExecutionContext | None:
    try:
        context: object = dg.AssetExecutionContext.get()
    except dg.DagsterInvariantViolationError:  # we are asked outside of an asset's step
        return None
    return context if isinstance(context, dg.AssetExecutionContext) else None
