"""A batch asset in YAML."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import BaseModel, ConfigDict, InstanceOf

from batchor_core import (
    ArtifactPolicy,
    ChunkPolicy,
    ConfigurationError,
    RetryPolicy,
    TokenPrice,
)
from batchor_core.integration import Items
from batchor_dagster.asset.checks import ALL_CHECKS, BatchChecks
from batchor_dagster.asset.translator import BatchAssetTranslatorData, DagsterBatchorTranslator
from batchor_dagster.asset_decorator import batch_asset
from batchor_dagster.components.fields import field, read_output, read_text, read_verbatim
from batchor_dagster.components.partitions import Partitions, read_partitions
from batchor_dagster.components.policies import (
    Backfills,
    Checks,
    StepRetries,
    read_backfill_policy,
    read_checks,
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


@dg.scaffold_with(BatchAssetScaffolder)
class BatchAssetComponent(dg.Component, dg.Model, dg.Resolvable):
    """An asset whose rows are answered by an LLM through a provider's batch API.

    What ``@batch_asset`` declares in Python, in YAML. The store, the providers' accounts and the
    sensors are those of the project: a ``BatchorComponent`` brings them.

    A subclass may override ``execute`` (which rows are asked) and ``get_asset_spec`` (what the
    asset looks like in Dagster).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

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
    llm_model: Annotated[str, field(str, "The provider's model, as gpt-4.1-mini.", read_text)]
    provider: Annotated[
        str, field(str, "Resource key of the provider's account, as openai.", read_text)
    ] = "openai"
    prompt_template: Annotated[
        str | None,
        field(str, "As 'Summarise: {text}'; without it the column prompt is sent.", read_text),
    ] = None
    system_prompt: Annotated[str | None, field(str, "Instructions for every row.", read_text)] = (
        None
    )
    output: Annotated[
        type[BaseModel] | Mapping[str, Any] | None,
        field(
            str | dict[str, Any],
            "What every answer has to satisfy: a Pydantic model (package.module:Class), or a JSON "
            "Schema; without it answers are texts.",
            read_output,
        ),
    ] = None
    schema_name: Annotated[
        str | None, field(str, "Name of the output schema at the provider.", read_text)
    ] = None
    params: Annotated[
        Mapping[str, Any] | None,
        field(dict[str, Any], "Further fields of each request's body, as temperature."),
    ] = None
    max_output_tokens: Annotated[
        int | None, field(int, "Upper bound of an answer; Anthropic wants one.")
    ] = None
    endpoint: Annotated[
        str | None,
        field(str, "As chat or embeddings; default: the provider's usual one.", read_text),
    ] = None
    dimensions: Annotated[int | None, field(int, "Length of embedding vectors.")] = None
    price: Annotated[
        InstanceOf[TokenPrice] | None,
        field(TokenPrice, "Of the model, where it is not known or is not the usual one."),
    ] = None
    keep: Annotated[
        Mapping[str, str] | None,
        field(
            dict[str, str],
            "Columns of the rows that the stored table keeps, with their types: string, int64, "
            "float64, bool, date, timestamp[us], …",
            read_verbatim,
        ),
    ] = None
    id_column: Annotated[
        str | None, field(str, "Column with unique ids; default: the row number.", read_text)
    ] = None
    chunks: Annotated[
        InstanceOf[ChunkPolicy] | None,
        field(ChunkPolicy, "How large one provider batch may become."),
    ] = None
    retries: Annotated[
        InstanceOf[RetryPolicy] | None, field(RetryPolicy, "How often a row is sent again.")
    ] = None
    artifacts: Annotated[
        InstanceOf[ArtifactPolicy] | None,
        field(ArtifactPolicy, "What is kept of what was sent and received."),
    ] = None
    on_unresolved: Literal["wait", "resubmit", "fail"] = "wait"
    on_lost: Literal["fail", "resend"] = "fail"
    reuse: Literal["partition", "namespace", "off"] = "partition"
    max_failure_rate: float = 1.0
    budget_usd: float | None = None
    checks: Annotated[
        BatchChecks | None,
        field(
            Checks | Literal[False],
            "Bounds of the asset checks: rows_answered, failure_rate, invalid_output_rate, "
            "cost_usd; null switches one off, false all of them.",
            read_checks,
        ),
    ] = ALL_CHECKS
    cancel_on_termination: bool = True
    wait: bool = False
    io_type: Literal["lazy", "eager"] = "lazy"
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
        """Return the rows that are asked for a partition; override to choose or to make them.

        Called once for each partition, when it is requested.

        Args:
            context: Of the request's step.
            rows: What the source holds: a frame of an upstream asset, or an item source of a file
                or query.

        Returns:
            A Polars frame, an Arrow table, ``BatchItem``s or an item source; here ``rows``.
        """
        return rows

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        """Return what the asset looks like in Dagster; override for conventions of your own."""
        return data.spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002 (Dagster's)
        """Return the asset."""
        return dg.Definitions(assets=[self.build_asset()])

    def build_asset(self) -> dg.AssetsDefinition:
        """Return the batch asset that this component declares."""
        spec = self.asset
        if self.partitions is not None and spec.partitions_def is not None:
            raise ConfigurationError("give partitions, or asset.partitions_def, not both")
        declare = batch_asset(
            **{name: getattr(self, name) for name in _SAME_NAMES},
            model=self.llm_model,
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

        def from_elsewhere(context: dg.AssetExecutionContext) -> Items:
            key = context.partition_key if context.has_partition_key else None
            return self.execute(context, rows_of.open(key, self.id_column))

        return from_elsewhere


_KIND_TAG = "dagster/kind/"

_SAME_NAMES = (
    "provider",
    "prompt_template",
    "system_prompt",
    "output",
    "schema_name",
    "params",
    "max_output_tokens",
    "endpoint",
    "dimensions",
    "price",
    "keep",
    "id_column",
    "chunks",
    "retries",
    "artifacts",
    "on_unresolved",
    "on_lost",
    "reuse",
    "max_failure_rate",
    "budget_usd",
    "backfill_policy",
    "checks",
    "cancel_on_termination",
    "wait",
    "io_type",
    "io_manager_key",
    "retry_policy",
    "op_tags",
    "pool",
)
"""Fields that are keywords of ``batch_asset``."""


class _ComponentTranslator(DagsterBatchorTranslator):
    def __init__(self, component: BatchAssetComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        return self._component.get_asset_spec(data)
