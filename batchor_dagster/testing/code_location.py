"""The code location of a test: its definitions, and the order in which to materialize assets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.sensors.builder import build_batch_sensors
from batchor_dagster.testing.resources import SimulatedWorld
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Assets that one request asks for together.

    Attributes:
        keys: Upstream assets first.
        is_partitioned: Whether the assets have partitions.
        is_serial: Whether each partition has to be materialized before the next is requested,
            because an asset depends on its own earlier partitions.
    """

    keys: list[dg.AssetKey]
    is_partitioned: bool
    is_serial: bool


@dataclass(frozen=True, kw_only=True)
class CodeLocation:
    """A code location whose resources reach only the simulator and the test's folder.

    Attributes:
        definitions: Assets, checks, both sensors, and resources.
        resources: The resources as objects, by key.
    """

    definitions: dg.Definitions
    resources: Mapping[str, Any]

    @classmethod
    def of(
        cls, assets: Iterable[Any] | dg.Definitions, place: SimulatedWorld, given: Mapping[str, Any]
    ) -> "CodeLocation":
        """Make the code location from assets, or from the user's ``Definitions``.

        Raises:
            ConfigurationError: There is no batch asset, or its sensors or accounts are missing.
        """
        theirs = assets if isinstance(assets, dg.Definitions) else _definitions_of(assets)
        all_assets = list(theirs.assets or ())
        accounts = {declaration.provider for declaration in declarations_of(all_assets).values()}
        if not accounts:
            raise ConfigurationError("none of the assets is a batch asset: use dagster.materialize")
        resources = place.resources(theirs.resources or {}, given, sorted(accounts))
        # The object itself, since configuration cannot hold the clock.
        batchor = dg.ResourceDefinition.hardcoded_resource(resources[BATCHOR_RESOURCE])
        definitions = dg.Definitions(
            assets=all_assets,
            asset_checks=theirs.asset_checks,
            sensors=_our_sensors(theirs),
            resources={**resources, BATCHOR_RESOURCE: batchor},
        )
        return cls(definitions=definitions, resources=resources)

    @cached_property
    def graph(self) -> Any:
        """The asset graph."""
        return self.definitions.get_repository_def().asset_graph

    def waves(self, selection: Any) -> Iterator[Wave]:
        """Yield the selected assets in waves, as a backfill requests them.

        Partitioned assets and assets without partitions are in different waves; a wave comes after
        those that it depends on.

        Raises:
            ValueError: The selected assets have several kinds of partitions.
        """
        graph = self.graph
        wanted = dg.AssetSelection.all() if selection is None else _coerced(selection)
        selected = wanted.resolve(graph) & graph.executable_asset_keys
        kinds = {graph.get(key).partitions_def for key in selected} - {None}
        if len(kinds) > 1:
            raise ValueError(
                f"the selected assets have {len(kinds)} kinds of partitions: select those of one "
                "kind at a time, with the same instance and folder"
            )
        level: dict[dg.AssetKey, int] = {}
        for key in graph.toposorted_asset_keys:
            if key in selected:
                level[key] = max(
                    (
                        level[parent]
                        + (_is_partitioned(graph, parent) != _is_partitioned(graph, key))
                        for parent in _other_parents(graph, key) & selected
                    ),
                    default=0,
                )
        order = sorted(level, key=lambda key: (level[key], _is_partitioned(graph, key)))
        for (_, partitioned), found in groupby(
            order, key=lambda key: (level[key], _is_partitioned(graph, key))
        ):
            keys = list(found)
            serial = any(key in graph.get(key).parent_keys for key in keys)
            yield Wave(keys=keys, is_partitioned=partitioned, is_serial=serial)


def _definitions_of(assets: Iterable[Any]) -> dg.Definitions:
    all_assets = list(assets)
    checks = [each for each in all_assets if isinstance(each, dg.AssetChecksDefinition)]
    others = [each for each in all_assets if not isinstance(each, dg.AssetChecksDefinition)]
    return dg.Definitions(
        assets=others, asset_checks=checks, sensors=build_batch_sensors(others) if others else None
    )


def _our_sensors(definitions: dg.Definitions) -> list[Any]:
    ours = (ADVANCE_SENSOR, MATERIALIZE_SENSOR)
    found = [sensor for sensor in definitions.sensors or () if sensor.name in ours]
    if len(found) != len(ours):
        raise ConfigurationError(
            "the Definitions lack the sensors that materialize batch assets: add "
            "sensors=build_batch_sensors(...), or use batchor_definitions(...)"
        )
    return found


def _coerced(selection: Any) -> dg.AssetSelection:
    """Return a selection, in any form that ``dagster.materialize`` takes, as ``AssetSelection``."""
    match selection:
        case dg.AssetSelection():
            return selection
        case str():
            return dg.AssetSelection.from_string(selection)
        case Sequence() if all(isinstance(each, str) for each in selection):
            return dg.AssetSelection.from_coercible(selection)
        case _:
            return dg.AssetSelection.assets(*selection)


def _other_parents(graph: Any, key: dg.AssetKey) -> set[dg.AssetKey]:
    """Return the assets that an asset depends on, without itself."""
    return set(graph.get(key).parent_keys) - {key}


def _is_partitioned(graph: Any, key: dg.AssetKey) -> bool:
    return graph.get(key).partitions_def is not None
