"""One execution of a batch asset's step: its context, declaration and runner."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from batchor_core import BatchorError, BatchRunner, BudgetPolicy, ConfigurationError
from batchor_core.integration import Identity, Items, ProviderConfig
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.lineage import UpstreamColumns
from batchor_dagster.asset.metadata import observations
from batchor_dagster.asset.run_config import BatchRunConfig
from batchor_dagster.constants import TAG_BACKFILL
from batchor_dagster.resources import BatchorResource, ModelRequest
from batchor_dagster.resources.connections import batchor_resource, location_of, provider_resource
from batchor_dagster.step.added_metadata import AddedMetadata
from batchor_dagster.step.selection import asked_by, waiting_selection
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.sensor_status import SensorStatus, status_of_sensors

CANCEL_SECONDS = 20.0
"""How long a step that is stopped tries to cancel its provider batches."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One execution of a batch asset's step.

    Attributes:
        context: The step's.
        read: Calls the user's function for one partition; None: for the whole step, which has at
            most one partition. Only requests call it.
        config: The configuration of this Dagster run.
        upstream_columns: The columns of the inputs, for the lineage; empty in materialize runs.
        added_metadata: The metadata that the user's function has added so far.
    """

    context: dg.AssetExecutionContext
    declaration: BatchAssetDeclaration
    runner: BatchRunner
    read: Callable[[str | None], Items]
    config: BatchRunConfig
    upstream_columns: UpstreamColumns
    added_metadata: AddedMetadata

    @cached_property
    def partitions(self) -> tuple[str, ...]:
        """The step's partition keys, in order; empty for an unpartitioned asset."""
        context = self.context
        is_asked = context.has_partition_key or context.has_partition_key_range
        if not is_asked or self.partitions_def is None:
            return ()
        return tuple(context.partition_keys)

    @property
    def partitions_def(self) -> dg.PartitionsDefinition[Any] | None:
        """The partitions definition of this asset; other assets of the run may have another."""
        graph = self.context.job_def.asset_layer.asset_graph
        found: dg.PartitionsDefinition[Any] | None = graph.get(
            self.context.asset_key
        ).partitions_def
        return found

    @property
    def waits(self) -> bool:
        """Whether the request waits for the answers in its own step."""
        return self.declaration.wait if self.config.wait is None else self.config.wait

    @property
    def calls_by_partition(self) -> bool:
        """Whether the user's function is called for each partition, with its own inputs."""
        is_ranged = self.declaration.backfill_policy is not None
        return len(self.partitions) > 1 or (is_ranged and bool(self.partitions))

    def identities(self, partitions: Sequence[str]) -> list[Identity]:
        """Return the identities of these partitions, or of an asset without partitions."""
        return [
            Identity(
                namespace=self.runner.namespace, asset=self.declaration.name, partition=partition
            )
            for partition in partitions or ("",)
        ]

    @property
    def location(self) -> str | None:
        """Name of the code location."""
        return location_of(self.context.run)

    @property
    def batchor(self) -> BatchorResource:
        """The store's resource."""
        return batchor_resource(self.context.resources)

    @property
    def budget(self) -> BudgetPolicy:
        """The budget of the batch run, and of its account and model per day."""
        return BudgetPolicy(
            run_usd=self.declaration.budget_usd, scope_day_usd=self.batchor.budget_usd_per_day
        )

    @cached_property
    def launch_spec(self) -> LaunchSpec:
        """What this request asks for."""
        run = self.context.run
        spec = asked_by(self.runner.store, run)
        return LaunchSpec.of_run(
            run,
            waiting_selection(self.context, self.declaration.name, spec),
            asked_by=spec,
            is_partitioned=bool(self.partitions),
            in_step=self.waits,
            cancel_on_termination=self.declaration.cancel_on_termination,
            upstream_columns=self.upstream_columns,
        )

    def sensor_status(self, location: str | None) -> SensorStatus:
        """Return how the sensors of the namespace are running in a code location (None: any)."""
        return status_of_sensors(
            self.context.instance,
            location,
            self.runner.store,
            self.runner.namespace,
            self.runner.clock.now(),
        )

    @property
    def is_in_backfill(self) -> bool:
        """Whether the Dagster run belongs to a backfill."""
        return TAG_BACKFILL in self.context.run.tags

    def observe(self, partitions: Sequence[str], metadata: Mapping[str, Any]) -> None:
        """Log observations of some partitions, or of the asset as a whole."""
        for observation in observations(self.declaration.key, partitions, dict(metadata)):
            self.context.log_event(observation)

    def provider_config(self) -> ProviderConfig:
        """Return the core's provider config for the declared model and its account."""
        account = provider_resource(self.context.resources, self.declaration.provider)
        return account.provider_config(
            ModelRequest(
                credentials=self.declaration.provider,
                model=self.declaration.model,
                endpoint=self.declaration.endpoint,
                params=dict(self.declaration.params),
                max_output_tokens=self.declaration.max_output_tokens,
                dimensions=self.declaration.dimensions,
                price=self.declaration.price,
            )
        )


def with_added_metadata(step: Step, added: AddedMetadata, events: Iterable[Any]) -> Iterator[Any]:
    """Pass on a step's events; add the metadata of the user's function to the materializations."""
    for event in events:
        if isinstance(event, dg.MaterializeResult):
            key = step.declaration.key
            several = step.partitions if len(step.partitions) > 1 else ()
            for partition in several or (*step.partitions, "")[:1]:
                metadata = added.of(partition)
                if metadata:
                    step.context.add_asset_metadata(metadata, key, partition if several else None)
        yield event


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the core into Dagster failures with a plain description."""
    try:
        yield
    except BatchorError as exc:
        raise dg.Failure(
            description=str(exc), allow_retries=not isinstance(exc, ConfigurationError)
        ) from exc
