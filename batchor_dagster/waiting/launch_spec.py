"""What a request asked for: all that a later Dagster run needs in order to do the rest of it."""

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
"""The part of a run's configuration that may hold secrets: it stays where Dagster keeps it."""

_KEPT_DAGSTER_TAGS = frozenset(
    {"dagster/priority", "dagster/max_runtime", "dagster/concurrency_key"}
)
"""Of Dagster's own tags, those that say how a run is to be executed; the others say what it was."""

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
"""What two requests have to agree in to be served together."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What a request asked for, and who asked: the payload of a waiter.

    Stored as JSON; fields are never renamed.

    Attributes:
        dagster_run: The request: the Dagster run that asked.
        joined: Later requests that asked for just the same, and are served together with it.
        root_run: The first Dagster run of the chain: of its re-executions, and of the materialize
            runs in which batch assets further downstream were asked for.
        backfill: Its backfill; None outside of one.
        repository: Whose sensors serve it, as ``name@location``; None for a request without one.
        selection: The waiting asset, then those downstream of it that were selected and have not
            run, each with the selected batch assets that are upstream of it. Names, as ``a/b``.
        partitions: The first and the last partition of the Dagster run, where the waiting asset has
            none: those of what is downstream of it.
        job: The job that was launched.
        run_config: Its configuration, but for that of resources.
        tags: The team's own tags of the Dagster run, and those about its execution.
        hold: The hold that stands for it; None without one.
        in_step: Whether the request's own step delivers, so that no other run may as long as it is
            alive.
        cancel_on_termination: Whether its end may cancel the batch run.
        upstream_columns: The columns of the frames that the rows were made of, by input.
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
        """Return what a Dagster run asks for.

        Args:
            run: The request.
            selection: As stored.
            asked_by: What the waiter had asked for that this Dagster run materializes, where the
                request is part of such a run.
            is_partitioned: Whether the waiting asset has partitions.
            in_step: As stored.
            cancel_on_termination: As stored.
            upstream_columns: As stored.
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
        """Read a waiter's payload."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in waiter.payload.items() if name in known}
        values["selection"] = {name: tuple(above) for name, above in values["selection"].items()}
        values["joined"] = tuple(values["joined"])
        values["partitions"] = tuple(values.get("partitions", ()))
        return cls(**values)

    def payload(self) -> dict[str, Any]:
        """Return the JSON that is stored."""
        return dataclasses.asdict(self)

    @property
    def demand(self) -> str:
        """A digest of all that is to be done.

        What is downstream of several batch assets is found by the root run, and a step delivers to
        its own Dagster run: there, only a request that is executed again is served together with
        itself.
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
        """The asset, and what needs no other batch asset than those that are there by now."""
        there = {self.asset, *self.selection[self.asset]}
        return tuple(name for name, above in self.selection.items() if there.issuperset(above))

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """What needs other batch assets of the selection too."""
        own = set(self.own)
        return tuple(name for name in self.selection if name not in own)

    def config_for(self, request: dg.DagsterRun | None) -> dict[str, Any]:
        """Return the configuration as it was launched.

        Args:
            request: The Dagster run that asked, for the configuration of resources; None if its
                record is gone.
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
