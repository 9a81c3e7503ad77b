"""Observations that tell why batch runs are paused; the advance sensor emits them."""

from collections import defaultdict
from collections.abc import Iterator

import dagster as dg

from batchor_core import BatchRunner
from batchor_dagster.asset.metadata import observations
from batchor_dagster.constants import (
    META_PROGRESS_BATCH_RUN,
    META_PROGRESS_HINT,
    META_PROGRESS_STATUS,
    RESUME_JOB,
)

PAUSES_PER_TICK = 50
"""The next ticks tell of further pauses."""


def news_of_pauses(runner: BatchRunner, told: int) -> tuple[int, list[dg.AssetObservation]]:
    """Return observations of newly paused batch runs, at their partitions, with the reason.

    Batch runs of one asset that are paused for the same reason share their observations.

    Args:
        runner: Opens the batch runs.
        told: The number of the last pause event that was told of.

    Returns:
        The number of the last pause event that is told of now, and the observations.
    """
    pauses = runner.store.pauses_since(runner.namespace, told, PAUSES_PER_TICK)
    runs = runner.store.get_runs(pause.run_id for pause in pauses)
    partitions: dict[tuple[str, str], list[str]] = defaultdict(list)
    run_ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run in (runs[pause.run_id] for pause in pauses):
        members = [m for m in runner.store.list_members(run.run_id) if m.is_open]
        if members:
            group = (members[0].identity.asset, f"{run.state.value} (pause: {run.control_reason})")
            partitions[group] += [member.identity.partition for member in members]
            run_ids[group].append(run.run_id)
    found = [
        observation
        for (asset, status), keys in partitions.items()
        for observation in _observations(asset, keys, status, run_ids[asset, status])
    ]
    return max([told, *(pause.sequence for pause in pauses)]), found


def _observations(
    asset: str, partitions: list[str], status: str, run_ids: list[str]
) -> Iterator[dg.AssetObservation]:
    others = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
    metadata = {
        META_PROGRESS_BATCH_RUN: f"{run_ids[0]}{others}",
        META_PROGRESS_STATUS: status,
        META_PROGRESS_HINT: f"when that is mended, launch the job {RESUME_JOB}",
    }
    yield from observations(dg.AssetKey.from_user_string(asset), partitions, metadata)
