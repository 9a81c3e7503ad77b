"""``build_batch_sensors``: the advance sensor and the materialize sensor of a code location."""

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
    """Selects all assets; the UI shows batch assets and what is downstream of them.

    The sensor has to be able to launch all: an asset that was selected together with a batch asset
    may have been detached from it since.
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
    """A job: what ``define_asset_job`` returns, or any other."""

    @property
    def name(self) -> str:
        """The job's name."""


class _MaterializeSensor(dg.SensorDefinition):
    """A sensor that launches Dagster's job of all assets and some named jobs.

    A plain sensor launches either the job of all assets or named jobs. With the first alone, the
    materialize run of a request would lose the hooks, executor and tags of the request's job.
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
    """Return the advance sensor and the materialize sensor; a code location needs one pair.

    The sensors bring their op jobs: ``batchor_advance``, which they launch, and ``batchor_pause``,
    ``batchor_resume`` and ``batchor_cancel``, which users launch.

    Args:
        assets: The batch assets to serve; other definitions in the list are passed over, and other
            batch assets of the code location are left alone. By default the sensors serve all of
            the code location, and find them, with their accounts, at each tick.
        jobs: Asset jobs in which batch assets are launched, or their names. What such a job asks
            for is materialized in the same job, with its hooks, executor and tags; what other jobs
            ask for is materialized in Dagster's job of all assets.
        minimum_interval_seconds: Seconds between two ticks.
        default_status: Whether the sensors run without being switched on.
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
        # With this sensor, so that a code location has the control jobs wherever it advances.
        jobs=[build_advance_job(declarations.values()), *build_control_jobs()],
        description="Polls provider batches; launches batchor_advance, which collects, retries and "
        "submits. Launch its other jobs yourself to pause, resume or cancel batch runs.",
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
        description="Launches materialize runs for partitions whose batch runs have finished.",
        **common,
    )
    return [advance_sensor, materialize_sensor]
