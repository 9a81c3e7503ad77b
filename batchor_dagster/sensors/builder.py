"""The two sensors of a code location: one advances batch runs, one materializes partitions."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import dagster as dg

from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.constants import ASSET_JOB
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.sensors.advance_job import build_advance_job
from batchor_dagster.sensors.advance_tick import advance_tick
from batchor_dagster.sensors.control_jobs import build_control_jobs
from batchor_dagster.sensors.materialize_tick import materialize_tick
from batchor_dagster.sensors.ticks import MINIMUM_INTERVAL_SECONDS
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR


class _MayBeLaunched(dg.AssetSelection):
    """All assets, and for those who look at the sensor, batch assets and what is downstream.

    An asset that was selected with a batch asset may have been detached from it since.
    """

    def resolve_inner(
        self,
        asset_graph: Any,
        allow_missing: bool,  # noqa: ARG002 (Dagster's)
    ) -> set[dg.AssetKey]:
        return set(asset_graph.executable_asset_keys)

    def to_serializable_asset_selection(self, asset_graph: Any) -> dg.AssetSelection:
        keys = [found.key for found in declarations_of(asset_graph.assets_defs).values()]
        shown = dg.AssetSelection.assets(*keys).downstream().resolve(asset_graph)
        return dg.AssetSelection.assets(*sorted(shown))


class NamedJob(Protocol):
    """What ``define_asset_job`` returns, and any other job."""

    @property
    def name(self) -> str:
        """The job's name."""


class _MaterializeSensor(dg.SensorDefinition):
    """A sensor that launches the job of all assets, and some others, by their names.

    Dagster's own sensors launch either, so that the hooks, the executor and the tags of a job would
    be lost on the way from its request to its materialization.
    """

    def __init__(self, *, job_names: Sequence[str], **options: Any) -> None:
        if not job_names:  # a code location without assets has no job of all assets
            super().__init__(asset_selection=_MayBeLaunched(), **options)
            return
        super().__init__(job_name=ASSET_JOB, **options)
        (target,) = self.targets
        names = [ASSET_JOB, *job_names]
        self._targets = [target._replace(resolvable_to_job=name) for name in names]


def build_batch_sensors(
    assets: Iterable[object] | None = None,
    *,
    jobs: Iterable[str | NamedJob] = (),
    minimum_interval_seconds: int = MINIMUM_INTERVAL_SECONDS,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> list[dg.SensorDefinition]:
    """Return the two sensors that batch assets need; one pair per code location.

    Their op jobs come with them: the one that advances batch runs, and those by which people pause,
    resume and cancel them.

    Args:
        assets: All batch assets of the location (other definitions are passed over); by default
            the sensors find them, and their providers' resources, at each tick.
        jobs: Asset jobs in which batch assets are launched, or their names: what such a job asked
            for is materialized in that job too, with its hooks, executor and tags. What was asked
            by other jobs is materialized in Dagster's job of all assets.
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

    job_names = [job if isinstance(job, str) else job.name for job in jobs]
    served = None if assets is None else declarations

    def materialize(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return materialize_tick(context, served, job_names)

    materialize_sensor = _MaterializeSensor(
        name=MATERIALIZE_SENSOR,
        evaluation_fn=materialize,
        job_names=job_names,
        description="Materializes the partitions whose batch runs are finished.",
        **common,
    )
    return [advance_sensor, materialize_sensor]
