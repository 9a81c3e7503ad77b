"""``BatchAssetComponent``: a batch asset in YAML."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import dagster as dg
from pydantic import InstanceOf

from batchor_core import ConfigurationError
from batchor_core.integration import Items
from batchor_dagster.asset.options import BatchAssetOptions, options_in
from batchor_dagster.asset.translator import BatchAssetTranslatorData, DagsterBatchorTranslator
from batchor_dagster.asset_decorator import batch_asset
from batchor_dagster.components.fields import field
from batchor_dagster.components.option_fields import OptionFields, options_of, resolver
from batchor_dagster.components.partitions import Partitions, read_partitions
from batchor_dagster.components.policies import (
    Backfills,
    StepRetries,
    read_backfill_policy,
    read_step_retries,
)
from batchor_dagster.components.scaffolders import BatchAssetScaffolder
from batchor_dagster.components.sources import (
    AssetSource,
    FileSource,
    Source,
    SqlSource,
    read_source,
)

(_MODEL,) = (option for option in options_in(BatchAssetOptions) if option.is_required)


@dg.scaffold_with(BatchAssetScaffolder)
class BatchAssetComponent(dg.Component, OptionFields, dg.Resolvable):
    """An asset whose rows are answered by an LLM through a provider's batch API.

    It declares in YAML what ``@batch_asset`` declares in Python. The project's ``BatchorComponent``
    provides the store, the accounts and the sensors.

    A subclass may override ``execute``, to choose the rows, and ``get_asset_spec``, to set key,
    tags and the like.
    """

    asset: Annotated[
        dg.ResolvedAssetSpec,
        dg.Resolver.default(
            description="The asset: key, group_name, description, owners, tags, kinds, "
            "automation_condition, deps, …; default kinds: llm and the provider."
        ),
    ]
    source: Annotated[
        InstanceOf[AssetSource] | InstanceOf[FileSource] | InstanceOf[SqlSource],
        field(
            Source, "Where the rows come from: an upstream asset, files, or a query.", read_source
        ),
    ]
    llm_model: Annotated[str, resolver(_MODEL)]
    io_manager_key: str | None = None
    partitions: Annotated[
        dg.PartitionsDefinition[Any] | None,
        field(
            Partitions | str,
            "hourly, daily, weekly, monthly, static or dynamic; or a Python object "
            "(package.module:name).",
            read_partitions,
        ),
    ] = None
    backfill_policy: Annotated[
        dg.BackfillPolicy | None,
        field(
            Backfills,
            "How many partitions of a backfill share a Dagster run: single_run or multi_run; "
            "default: each has one of its own.",
            read_backfill_policy,
        ),
    ] = None
    retry_policy: Annotated[
        dg.RetryPolicy | None,
        field(StepRetries, "Dagster's retries of the request's step.", read_step_retries),
    ] = None
    op_tags: Annotated[
        Mapping[str, Any] | None, field(dict[str, Any], "Tags of the asset's op.")
    ] = None
    pool: str | None = None

    def execute(self, context: dg.AssetExecutionContext, rows: Items) -> Items:  # noqa: ARG002 (for overriding)
        """Return the rows to ask for a partition; override to choose or to make them.

        A request calls it once for each partition.

        Args:
            context: The request's.
            rows: The rows of the source: a frame of an upstream asset, or an item source of files
                or a query.

        Returns:
            A Polars frame, an Arrow table, ``BatchItem``s or an item source; here ``rows``.
        """
        return rows

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        """Return the asset's spec; override for conventions of your own."""
        return data.spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 (Dagster's)
        """Return the asset as ``Definitions``."""
        return dg.Definitions(assets=[self.build_asset()])

    def build_asset(self) -> dg.AssetsDefinition:
        """Return the batch asset that this component declares."""
        spec = self.asset
        if self.partitions is not None and spec.partitions_def is not None:
            raise ConfigurationError("give partitions, or asset.partitions_def, not both")
        declare = batch_asset(
            **options_of(self),
            model=self.llm_model,
            io_manager_key=self.io_manager_key,
            backfill_policy=self.backfill_policy,
            retry_policy=self.retry_policy,
            op_tags=self.op_tags,
            pool=self.pool,
            partitions_def=self.partitions or spec.partitions_def,
            ins={"rows": self.source.asset_in} if isinstance(self.source, AssetSource) else None,
            key=spec.key,
            deps=spec.deps,
            group_name=spec.group_name,
            description=spec.description or f"Rows answered by {self.llm_model}.",
            metadata=spec.metadata,
            tags={key: tag for key, tag in spec.tags.items() if not key.startswith(_KIND_TAG)},
            owners=spec.owners,
            kinds=spec.kinds or None,
            automation_condition=spec.automation_condition,
            freshness_policy=spec.freshness_policy,
            code_version=spec.code_version,
            translator=_ComponentTranslator(self),
        )
        return declare(self._function())

    def _function(self) -> Callable[..., Items]:
        rows_of = self.source
        if isinstance(rows_of, AssetSource):

            def from_asset(context: dg.AssetExecutionContext, rows: Any) -> Items:
                return self.execute(context, rows)

            from_asset.__annotations__["rows"] = rows_of.annotation
            return from_asset

        def from_source(context: dg.AssetExecutionContext) -> Items:
            key = context.partition_key if context.has_partition_key else None
            return self.execute(context, rows_of.open(key, self.id_column))

        return from_source


_KIND_TAG = "dagster/kind/"


class _ComponentTranslator(DagsterBatchorTranslator):
    def __init__(self, component: BatchAssetComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        return self._component.get_asset_spec(data)
