"""``batchor_definitions``: batch assets with their sensors, jobs and resources."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.sensors.builder import build_batch_sensors


def batchor_definitions(
    assets: Iterable[Any],
    *,
    resources: Mapping[str, Any],
    minimum_interval_seconds: int = 30,
    jobs: Iterable[Any] = (),
    sensors: Iterable[Any] = (),
    **others: Any,
) -> dg.Definitions:
    """Return ``Definitions`` of assets, with the sensors and jobs that batch assets need.

    Args:
        assets: The batch assets of the code location, and any others.
        resources: At least ``batchor`` (a ``BatchorResource``) and the providers' resources.
        minimum_interval_seconds: Seconds between two ticks of the batch sensors.
        jobs: Jobs of the code location. What an asset job asks for is materialized in the same job.
        sensors: Further sensors of the code location.
        others: Whatever else ``dagster.Definitions`` takes, as ``schedules`` or ``asset_checks``.

    Raises:
        ValueError: There is no resource ``batchor``.
    """
    if BATCHOR_RESOURCE not in resources:
        raise ValueError(f"resources lack {BATCHOR_RESOURCE!r}: give a BatchorResource")
    all_jobs = list(jobs)
    asset_jobs = [job for job in all_jobs if not isinstance(job, dg.JobDefinition)]
    ours = build_batch_sensors(jobs=asset_jobs, minimum_interval_seconds=minimum_interval_seconds)
    return dg.Definitions(
        assets=list(assets),
        jobs=all_jobs,
        sensors=[*sensors, *ours],
        resources=resources,
        **others,
    )
