"""The two sensors of a code location: one advances batch runs, one materializes partitions."""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from batchor_core import ConfigurationError
from batchor_dagster.asset.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.sensors.advance_job import build_advance_job
from batchor_dagster.sensors.advance_tick import advance_tick
from batchor_dagster.sensors.control_jobs import build_control_jobs
from batchor_dagster.sensors.materialize_tick import materialize_tick
from batchor_dagster.sensors.ticks import MINIMUM_INTERVAL_SECONDS
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR


class BatchAssetSelection(dg.AssetSelection):
    """All batch assets of a code location, whatever their keys and tags."""

    def resolve_inner(  # noqa: D102 (Dagster's)
        self,
        asset_graph: Any,
        allow_missing: bool,  # noqa: ARG002 (Dagster's)
    ) -> set[dg.AssetKey]:
        return {found.key for found in declarations_of(asset_graph.assets_defs).values()}


def build_batch_sensors(
    assets: Iterable[object] | None = None,
    *,
    minimum_interval_seconds: int = MINIMUM_INTERVAL_SECONDS,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> list[dg.SensorDefinition]:
    """Return the two sensors that batch assets need; one pair per code location.

    Their op jobs come with them: the one that advances batch runs, and those by which people pause,
    resume and cancel them.

    Args:
        assets: All batch assets of the location (other definitions are passed over); by default
            the sensors find them, and their providers' resources, at each tick.
        minimum_interval_seconds: Seconds between two ticks.
        default_status: Whether they run without being switched on.
    """
    declarations = declarations_of(assets or ())
    resource_keys = {BATCHOR_RESOURCE, *(d.provider for d in declarations.values())}
    common: dict[str, Any] = {
        "minimum_interval_seconds": minimum_interval_seconds,
        "default_status": default_status,
        "required_resource_keys": resource_keys,
    }

    @dg.sensor(
        name=ADVANCE_SENSOR,
        # The control jobs come with it, so that they are there wherever batch runs are advanced.
        jobs=[build_advance_job(declarations.values()), *build_control_jobs()],
        description="Polls provider batches; launches what collects, retries and submits. The jobs "
        "that pause, resume and cancel are yours to launch.",
        **common,
    )
    def advance_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return advance_tick(context)

    @dg.sensor(
        name=MATERIALIZE_SENSOR,
        asset_selection=_batch_assets(assets, declarations).downstream(),
        description="Materializes the partitions whose batch runs are finished.",
        **common,
    )
    def materialize_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return materialize_tick(context, _found(context) if assets is None else declarations)

    return [advance_sensor, materialize_sensor]


def _batch_assets(
    assets: Iterable[object] | None, declarations: dict[str, BatchAssetDeclaration]
) -> dg.AssetSelection:
    if assets is None:
        return BatchAssetSelection()
    return dg.AssetSelection.assets(*(found.key for found in declarations.values()))


def _found(context: dg.SensorEvaluationContext) -> dict[str, BatchAssetDeclaration]:
    """Return the declarations of the code location's batch assets."""
    if context.repository_def is None:  # no assets would read as: all of them were removed
        raise ConfigurationError("give the sensor's context a repository_def")
    return declarations_of(context.repository_def.assets_defs_by_key.values())
