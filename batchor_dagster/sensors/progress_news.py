"""Observations of a batch run's progress at its partitions; ``batchor_advance`` logs them."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from batchor_core import BatchRunner, Run
from batchor_dagster import constants as c
from batchor_dagster.asset.metadata import observations, observed_partition, progress_metadata

OBSERVE_SECONDS = 300.0
"""New counts are observed at most this often; another state is observed at once."""

_LOOKED_AT = 20
_COUNTS = (
    c.META_PROGRESS_ROWS,
    c.META_PROGRESS_ROWS_OK,
    c.META_PROGRESS_ROWS_FAILED,
    c.META_PROGRESS_ROWS_RETRYING,
    c.META_PROGRESS_ROWS_IN_FLIGHT,
    c.META_PROGRESS_ROWS_READY,
    c.META_PROGRESS_BATCH_COUNT,
)


def news_of(
    instance: dg.DagsterInstance, runner: BatchRunner, run: Run
) -> Iterator[dg.AssetObservation]:
    """Yield observations of a batch run's progress if the last ones said something else."""
    members = runner.store.list_members(run.run_id)
    identities = [member.identity for member in members if member.is_open]
    if not identities:
        return
    key = dg.AssetKey.from_user_string(identities[0].asset)
    partitions = [identity.partition for identity in identities]
    metadata = progress_metadata(run.summary(), run)
    if _is_news(metadata, *_last_told(instance, key, observed_partition(partitions), run.run_id)):
        yield from observations(key, partitions, metadata)


def _is_news(metadata: Mapping[str, Any], told: Mapping[str, Any], told_at: float) -> bool:
    """Whether to observe: the state has changed, or counts have and the last time is long ago."""
    if told.get(c.META_PROGRESS_STATUS) != metadata[c.META_PROGRESS_STATUS]:
        return True
    changed = any(told.get(count) != metadata[count] for count in _COUNTS)
    return changed and time.time() - told_at >= OBSERVE_SECONDS


def _last_told(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None, run_id: str
) -> tuple[dict[str, Any], float]:
    """Return a batch run's last observation and its Unix time; ``({}, 0.0)`` without one."""
    which = dg.AssetRecordsFilter(
        asset_key=key, asset_partitions=[partition] if partition else None
    )
    for record in instance.fetch_observations(which, limit=_LOOKED_AT).records:
        observation = record.asset_observation
        told = {} if observation is None else observation.metadata
        values = {name: value.value for name, value in told.items()}
        if values.get(c.META_PROGRESS_BATCH_RUN) == run_id:
            return values, record.timestamp
    return {}, 0.0
