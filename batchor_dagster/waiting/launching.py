"""Make the run request of a launch, checked against the code location as it is now.

Between a request and its materialize run lie up to 24 hours, in which people change definitions.
The launcher leaves out assets that are gone or have other partitions, and names them. If nothing of
a launch can be launched, it refuses that launch alone; Dagster would refuse the whole tick.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg

from batchor_dagster.asset.partitions import DefinedPartitions, partitions_defs
from batchor_dagster.constants import (
    ASSET_JOB,
    TAG_ASSET,
    TAG_BACKFILL,
    TAG_BATCH_RUN,
    TAG_KIND,
    TAG_LAUNCH,
    TAG_MAX_RETRIES,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    TAG_WAITER,
    RunKind,
)
from batchor_dagster.waiting.launches import Launch
from batchor_dagster.waiting.waiters import AssetWaiter


@dataclass(frozen=True, kw_only=True)
class Launchable:
    """A run request that Dagster takes.

    Attributes:
        left_out: The assets of the launch that it leaves out, with the reasons.
    """

    request: dg.RunRequest
    left_out: Mapping[str, str]


class CannotLaunchError(Exception):
    """The code location, as it is now, cannot run a launch; the text says why."""


class Launcher:
    """Makes run requests during one tick.

    Args:
        repository: The code location's definitions, as they are now.
        partitions: Which partitions are defined.
        jobs: Names of the jobs that the sensor may launch beside Dagster's job of all assets.
    """

    def __init__(
        self,
        repository: dg.RepositoryDefinition,
        partitions: DefinedPartitions,
        jobs: Collection[str],
    ) -> None:
        self._repository = repository
        self._graph = repository.asset_graph
        self._partitions = partitions
        self._jobs = jobs
        self.ancestors = cache(self._find_ancestors)
        self._refusal = cache(self._try_out)

    def run_request(
        self, waiter: AssetWaiter, launch: Launch, checks: Collection[dg.AssetCheckKey]
    ) -> Launchable:
        """Return the run request for the current attempt of a launch.

        Args:
            waiter: The waiter of the launch.
            launch: An open launch.
            checks: Blocking checks of assets that are materialized already: the Dagster run
                evaluates them before it runs anything downstream.

        Raises:
            CannotLaunchError: Nothing of the launch, or not the waiting asset, can be launched.
        """
        left_out: dict[str, str] = {}
        partitions = waiter.partitions_of(launch)
        keys = self._existing(launch, partitions, left_out)
        job = self._job_of(waiter, keys)
        config = self._config_of(waiter, job)
        keys = self._launchable(job, keys, config, left_out)
        if not keys or (waiter.spec.asset in launch.left and waiter.spec.asset in left_out):
            reason = next(iter(left_out.values()), "there is nothing to launch")
            raise CannotLaunchError(reason)
        if not self._are_partitioned(keys):  # Dagster would refuse the partition
            partitions = ()
        request = dg.RunRequest(
            run_key=launch.run_key(waiter.stored),
            job_name=job.name,
            partition_key=partitions[0] if len(partitions) == 1 else None,
            asset_selection=sorted(keys),
            asset_check_keys=self._checks_of(keys, checks) if checks else None,
            run_config=config,
            tags=_tags(waiter, launch, partitions),
        )
        return Launchable(request=request, left_out=left_out)

    def downstream_of(self, name: str, names: Iterable[str]) -> frozenset[str]:
        """Return which of ``names`` are downstream of the asset ``name``."""
        return frozenset(each for each in names if name in (self.ancestors(each) or ()))

    def definition_of(self, names: Iterable[str]) -> dg.PartitionsDefinition[str] | None:
        """Return the partitions definition that some assets share; None if none has partitions."""
        found = partitions_defs(self._graph, names).values()
        return next((each for each in found if each is not None), None)

    def is_blocking(self, check: dg.AssetCheckKey) -> bool:
        """Whether a check is defined as blocking."""
        return self._graph.has(check) and bool(self._graph.get(check).blocking)

    def _find_ancestors(self, name: str) -> frozenset[str] | None:
        key = dg.AssetKey.from_user_string(name)
        if not self._graph.has(key):
            return None
        together = self._together(key)
        above = frozenset[dg.AssetKey]().union(*map(self._graph.get_ancestor_asset_keys, together))
        return frozenset(each.to_user_string() for each in above - together)

    def _together(self, key: dg.AssetKey) -> frozenset[dg.AssetKey]:
        """Return the assets that run with an asset: all of a multi-asset that cannot be subset."""
        found = self._graph.get(key).execution_set_entity_keys
        return frozenset(each for each in found if isinstance(each, dg.AssetKey))

    def _are_partitioned(self, keys: Iterable[dg.AssetKey]) -> bool:
        return any(self._graph.get(key).partitions_def is not None for key in keys)

    def _existing(
        self, launch: Launch, partitions: Sequence[str], left_out: dict[str, str]
    ) -> frozenset[dg.AssetKey]:
        """Return the launch's assets that still have its partitions, and what runs with them."""
        keys: set[dg.AssetKey] = set()
        definition: Any = None
        for name in launch.left:
            key = dg.AssetKey.from_user_string(name)
            if key not in self._graph.executable_asset_keys:
                left_out[name] = f"asset {name!r} is not defined any more"
                continue
            theirs = self._graph.get(key).partitions_def
            definition = definition or theirs
            if theirs not in (None, definition) or not self._has_all(theirs, partitions):
                left_out[name] = f"asset {name!r} has other partitions by now"
                continue
            keys |= self._together(key)
        return frozenset(keys)

    def _has_all(self, definition: Any, partitions: Iterable[str]) -> bool:
        return definition is None or (
            bool(partitions) and all(self._partitions.has(definition, key) for key in partitions)
        )

    def _job_of(self, waiter: AssetWaiter, keys: Collection[dg.AssetKey]) -> dg.JobDefinition:
        """Return the request's job if it still has all these assets, else the job of all assets."""
        name = waiter.spec.job
        if name in self._jobs and self._repository.has_job(name):
            job = self._repository.get_job(name)
            if set(keys) <= set(job.asset_layer.selected_asset_keys):
                return job
        return self._repository.get_job(ASSET_JOB)

    def _config_of(self, waiter: AssetWaiter, job: dg.JobDefinition) -> dict[str, Any]:
        """Return the request's run configuration for the ops and resources that still exist."""
        config = waiter.spec.config_for(waiter.dagster_run)
        known = {"ops": {node.name for node in job.nodes}, "resources": set(job.resource_defs)}
        kept = {
            part: {name: value for name, value in config[part].items() if name in names}
            for part, names in known.items()
            if config.get(part)
        }
        others = (
            {k: v for k, v in config.items() if k not in known}
            if job.name == waiter.spec.job
            else {}
        )
        return others | {part: values for part, values in kept.items() if values}

    def _launchable(
        self,
        job: dg.JobDefinition,
        keys: frozenset[dg.AssetKey],
        config: Mapping[str, Any],
        left_out: dict[str, str],
    ) -> frozenset[dg.AssetKey]:
        """Return the assets that Dagster would run with this configuration."""
        text = json.dumps(config, sort_keys=True, default=str)
        if not keys or self._refusal(job.name, keys, text) is None:
            return keys
        for key in sorted(keys):
            refusal = self._refusal(job.name, frozenset([key]), text)
            if refusal is not None:
                left_out[key.to_user_string()] = refusal
        refused = set(left_out)
        fitting = frozenset(
            key
            for key in keys
            if key.to_user_string() not in refused
            and refused.isdisjoint(self.ancestors(key.to_user_string()) or ())
        )
        for key in keys - fitting:
            left_out.setdefault(key.to_user_string(), "what it depends on cannot be launched")
        return fitting

    def _try_out(self, job_name: str, keys: frozenset[dg.AssetKey], config: str) -> str | None:
        """Return why Dagster would refuse a run of some assets; None if it would not."""
        try:
            subset = self._repository.get_job(job_name).get_subset(asset_selection=keys)
            dg.validate_run_config(subset, json.loads(config))
        except dg.DagsterInvalidConfigError as exc:
            problems = "; ".join(map(_problem, exc.errors))
            return f"Dagster refuses a run of {_named(keys)}: {problems}"
        except Exception as exc:  # noqa: BLE001 - whatever it is, it must not end the tick
            return f"Dagster refuses a run of {_named(keys)}: {exc}"
        return None

    def _checks_of(
        self, keys: Collection[dg.AssetKey], checks: Collection[dg.AssetCheckKey]
    ) -> list[dg.AssetCheckKey]:
        theirs = (check for key in keys for check in self._graph.get(key).check_keys)
        return sorted({*theirs, *checks}, key=lambda check: check.to_user_string())


def _named(keys: Iterable[dg.AssetKey]) -> str:
    return ", ".join(repr(key.to_user_string()) for key in sorted(keys))


def _problem(error: Any) -> str:
    """Return what is wrong in a run configuration, without its values: one may be a secret."""
    if error.reason.name.startswith(("MISSING", "FIELD")):
        return str(error.message).partition(". ")[0]
    path = ".".join(getattr(entry, "field_name", "…") for entry in error.stack.entries)
    return f"the value of {path!r} does not fit"


def _tags(waiter: AssetWaiter, launch: Launch, partitions: Sequence[str]) -> dict[str, str]:
    tags = {
        **waiter.spec.tags,
        TAG_BATCH_RUN: waiter.run.run_id,
        TAG_KIND: RunKind.MATERIALIZE.value,
        TAG_WAITER: waiter.stored.waiter_id,
        TAG_LAUNCH: str(launch.index),
        # The next tick tries again. Dagster's run retries would, after a verdict, ask anew and pay.
        TAG_MAX_RETRIES: "0",
    }
    if waiter.spec.asset in launch.assets:
        tags[TAG_ASSET] = waiter.spec.asset
    if waiter.spec.backfill:
        tags[TAG_BACKFILL] = waiter.spec.backfill
    if len(partitions) > 1:
        tags[TAG_PARTITION_RANGE_START] = partitions[0]
        tags[TAG_PARTITION_RANGE_END] = partitions[-1]
    return tags
