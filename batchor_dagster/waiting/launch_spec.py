"""The launch specification: what a request asked for, stored with its waiter."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from batchor_core.integration import Waiter
from batchor_dagster.constants import (
    TAG_BACKFILL,
    TAG_PARTITION,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
)

_FOREIGN_CONFIG = "resources"
"""The part of the run configuration that may hold secrets: only Dagster stores it."""

_KEPT_DAGSTER_TAGS = frozenset(
    {"dagster/priority", "dagster/max_runtime", "dagster/concurrency_key"}
)
"""Dagster's own tags that say how to execute a run; its other tags describe one Dagster run."""

_NOT_THE_TEAMS = ("dagster/", ".dagster/", "batchor/")


_DEMANDED = frozenset(
    {
        "backfill",
        "cancel_on_termination",
        "job",
        "partitions",
        "repository",
        "run_config",
        "selection",
        "tags",
    }
)
"""The fields in which two requests have to agree to share a waiter."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What a request asked for: the payload of its waiter.

    Stored as JSON; fields are never renamed.

    Attributes:
        dagster_run: The request, a Dagster run.
        joined: Later requests that asked for the same and share the waiter.
        root_run: The Dagster run with which it all began. Re-executions share it, and so do the
            requests of batch assets further downstream, which are part of a materialize run.
        backfill: The request's backfill; None outside of one.
        repository: The repository whose sensors serve the waiter, as ``name@location``; None for a
            request that belongs to none.
        selection: The waiting asset, then the selected assets downstream of it that have not run,
            each with the selected batch assets upstream of it. Names, as ``a/b``.
        partitions: The first and the last partition of the request, where the waiting asset has
            none: those of the assets downstream of it.
        job: The job in which the request was launched.
        run_config: The request's run configuration without that of resources.
        tags: The request's tags that its materialize runs get too: the team's own, and those that
            say how to execute a run.
        hold: The Dagster run id of the hold; None without one.
        in_step: Whether the request's own step waits for the answers and materializes them. While
            that step is alive, no other Dagster run does.
        cancel_on_termination: Whether the batch run is cancelled with its last waiter.
        upstream_columns: The columns of the upstream frames, by asset; for the column lineage.
    """

    dagster_run: str
    root_run: str
    backfill: str | None
    repository: str | None
    selection: Mapping[str, tuple[str, ...]]
    job: str
    partitions: tuple[str, ...] = ()
    run_config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    joined: tuple[str, ...] = ()
    hold: str | None = None
    in_step: bool = False
    cancel_on_termination: bool = True
    upstream_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of_run(
        cls,
        run: dg.DagsterRun,
        selection: Mapping[str, tuple[str, ...]],
        *,
        asked_by: "LaunchSpec | None",
        is_partitioned: bool,
        in_step: bool,
        cancel_on_termination: bool,
        upstream_columns: Mapping[str, Sequence[str]],
    ) -> "LaunchSpec":
        """Return the launch specification of a request.

        Args:
            run: The request.
            selection: See the attribute.
            asked_by: The launch specification of the waiter that this Dagster run serves, if it is
                a materialize run in which a further batch asset is requested.
            is_partitioned: Whether the waiting asset has partitions.
            in_step: See the attribute.
            cancel_on_termination: See the attribute.
            upstream_columns: See the attribute.
        """
        root = asked_by.root_run if asked_by else run.root_run_id or run.run_id
        return cls(
            dagster_run=run.run_id,
            root_run=root,
            backfill=run.tags.get(TAG_BACKFILL),
            repository=repository_of(run),
            selection=selection,
            job=run.job_name,
            partitions=() if is_partitioned else _partitions_of(run.tags),
            run_config={k: v for k, v in run.run_config.items() if k != _FOREIGN_CONFIG},
            tags=_kept(run.tags),
            in_step=in_step,
            cancel_on_termination=cancel_on_termination,
            upstream_columns=upstream_columns,
        )

    @classmethod
    def of_waiter(cls, waiter: Waiter) -> "LaunchSpec":
        """Read the launch specification from a waiter's payload."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in waiter.payload.items() if name in known}
        values["selection"] = {name: tuple(above) for name, above in values["selection"].items()}
        values["joined"] = tuple(values["joined"])
        values["partitions"] = tuple(values.get("partitions", ()))
        return cls(**values)

    def payload(self) -> dict[str, Any]:
        """Return the fields as JSON, as they are stored."""
        return dataclasses.asdict(self)

    @property
    def demand(self) -> str:
        """A digest of what was asked: equal requests share a waiter.

        Assets downstream of several batch assets are found by the root run, and a step delivers to
        its own Dagster run. Such requests therefore share only with their own re-executions.
        """
        values = {name: value for name, value in self.payload().items() if name in _DEMANDED}
        values |= {"root_run": self.root_run} if self.shared or self.in_step else {}
        text = json.dumps(values, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def asset(self) -> str:
        """The waiting asset."""
        return next(iter(self.selection))

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The waiting asset, and the selected assets that need no further batch asset."""
        there = {self.asset, *self.selection[self.asset]}
        return tuple(name for name, above in self.selection.items() if there.issuperset(above))

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The selected assets that need another selected batch asset as well."""
        own = set(self.own)
        return tuple(name for name in self.selection if name not in own)

    def config_for(self, request: dg.DagsterRun | None) -> dict[str, Any]:
        """Return the run configuration of the request, with that of resources.

        Args:
            request: The request, which has the configuration of resources; None if Dagster has
                deleted its record.
        """
        resources = request.run_config.get(_FOREIGN_CONFIG) if request else None
        return {**self.run_config, **({_FOREIGN_CONFIG: resources} if resources else {})}


def repository_of(run: dg.DagsterRun) -> str | None:
    """Return the repository that a Dagster run belongs to, as ``name@location``."""
    origin = run.remote_job_origin
    return None if origin is None else origin.repository_origin.get_label()


def _partitions_of(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Return a Dagster run's partition, or the first and the last one of its range."""
    ends = (tags.get(TAG_PARTITION_RANGE_START), tags.get(TAG_PARTITION_RANGE_END))
    return tuple(dict.fromkeys(filter(None, (tags.get(TAG_PARTITION), *ends))))


def _kept(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in tags.items()
        if key in _KEPT_DAGSTER_TAGS or not key.startswith(_NOT_THE_TEAMS)
    }
