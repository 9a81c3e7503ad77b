"""What a batch asset declares: read by its step, by the sensors and by the advance job."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import BaseModel

from batchor_core import (
    ArtifactPolicy,
    BatchJob,
    BudgetPolicy,
    ChunkPolicy,
    ConfigurationError,
    RetryPolicy,
    ReusePolicy,
    TimingPolicy,
    TokenPrice,
)
from batchor_core.integration import (
    Items,
    PromptBuilder,
    ProviderConfig,
    ResultDeclaration,
    arrow_type,
    build_result_schema,
    output_model_of,
)
from batchor_dagster.asset.checks import ALL_CHECKS, BatchChecks, CheckThreshold
from batchor_dagster.constants import CheckName

_DECLARATION = "batchor_declaration"
"""Attribute of a step's function. An asset's metadata would not do: Dagster will refuse values
there that it cannot serialise."""


@dataclass(frozen=True, kw_only=True)
class BatchAssetDeclaration:
    """The recipe of one batch asset, without its rows and without credentials.

    Attributes:
        key: The asset.
        provider: Resource key of the provider's resource.
        model: As ``gpt-4.1-mini``.
        endpoint: As ``chat`` or ``embeddings``; None for the provider's usual one.
        dimensions: Length of embedding vectors; None for texts, or where the model tells.
        price: What the model's tokens cost; None for the known prices.
        output: The output model, or the JSON Schema of one; None for text.
        max_failure_rate: Share of failed rows (0 to 1) up to which a partition materializes.
        reuse: Whose answers to the very same requests are taken, at no cost: ``partition`` those of
            the partition's previous batch run, ``namespace`` also those of the newest batch runs of
            the same model, ``off`` none that were materialized.
        budget_usd: What one batch run may cost, in US dollars, its retries included; None is no
            bound.
        cancel_on_termination: Whether a terminated backfill, hold or request cancels the provider
            batches that nobody else waits for.
        max_wait_hours: How long a batch run may go without any progress before its waiters fail.
        wait: Whether the request itself waits for the answers (blocking mode).
        io_type: What the IO manager is given: ``lazy`` frames, or ``eager`` ones.
        checks: Its asset checks; None for none.
        column_lineage: Where stored columns come from; None for what is plain.
        partitions_def: The asset's partitions.
        backfill_policy: Of how many partitions one Dagster run of a backfill takes care; None for
            one. With it, inputs are loaded as a dict by partition.
    """

    key: dg.AssetKey
    provider: str
    model: str
    output: type[BaseModel] | Mapping[str, Any] | None = None
    prompt_template: str | None = None
    build_prompt: PromptBuilder | None = None
    system_prompt: str | None = None
    schema_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    endpoint: str | None = None
    dimensions: int | None = None
    price: TokenPrice | None = None
    keep: Mapping[str, Any] = field(default_factory=dict)
    id_column: str | None = None
    chunks: ChunkPolicy = field(default_factory=ChunkPolicy)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    artifacts: ArtifactPolicy = field(default_factory=ArtifactPolicy)
    on_unresolved: Literal["wait", "resubmit", "fail"] = "wait"
    on_lost: Literal["fail", "resend"] = "fail"
    reuse: Literal["partition", "namespace", "off"] = "partition"
    max_failure_rate: float = 1.0
    budget_usd: float | None = None
    cancel_on_termination: bool = True
    max_wait_hours: float = 30.0
    wait: bool = False
    io_type: Literal["lazy", "eager"] = "lazy"
    checks: BatchChecks | None = ALL_CHECKS
    column_lineage: Mapping[str, Sequence[dg.TableColumnDep]] | None = None
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    backfill_policy: dg.BackfillPolicy | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigurationError(
                f"max_failure_rate of {self.name!r} is {self.max_failure_rate}: give a share from "
                "0 to 1"
            )
        if self.budget_usd is not None and not 0 < self.budget_usd < math.inf:
            raise ConfigurationError(
                f"budget_usd of {self.name!r} is {self.budget_usd}: give US dollars above 0"
            )

    @property
    def name(self) -> str:
        """The asset key as text, ``a/b``; stored in tags and identities."""
        return self.key.to_user_string()

    @property
    def active_checks(self) -> dict[CheckName, CheckThreshold]:
        """The thresholds of its asset checks."""
        if self.checks is None:
            return {}
        return self.checks.active(has_output=self.output is not None, budget_usd=self.budget_usd)

    @property
    def has_fixed_schema(self) -> bool:
        """Whether ``result_schema`` is what is stored: a model may decide how long vectors are."""
        return self.endpoint != "embeddings" or self.dimensions is not None

    def result_schema(self) -> pa.Schema:
        """Return the stored table's schema.

        Raises:
            ResultSchemaError: Two columns would have one name, or a column cannot be stored.
        """
        vectors = 1 if self.endpoint == "embeddings" else None
        return build_result_schema(
            ResultDeclaration(
                keep={name: arrow_type(dtype) for name, dtype in self.keep.items()},
                output=output_model_of(self.output, self.schema_name),
                embedding_dimensions=self.dimensions or vectors,
            )
        )

    def job(
        self,
        items: Items,
        provider_config: ProviderConfig,
        timing: TimingPolicy,
        reuse: ReusePolicy,
        budget: BudgetPolicy,
    ) -> BatchJob:
        """Return the core's recipe for some rows.

        Args:
            items: The rows.
            provider_config: Model and account.
            timing: The clockwork.
            reuse: Whose answers are taken.
            budget: What it may cost.
        """
        return BatchJob(
            items=items,
            provider_config=provider_config,
            build_prompt=self.build_prompt,
            prompt_template=self.prompt_template,
            system_prompt=self.system_prompt,
            structured_output=self.output,
            schema_name=self.schema_name,
            keep=self.keep,
            id_column=self.id_column,
            chunk_policy=self.chunks,
            retry_policy=self.retries,
            artifact_policy=self.artifacts,
            reuse=reuse,
            on_unresolved=self.on_unresolved,
            on_lost=self.on_lost,
            budget=budget,
            timing=timing,
        )


def attach(compute: Callable[..., Any], declaration: BatchAssetDeclaration) -> None:
    """Make a declaration known to whoever gets the asset that this function computes."""
    setattr(compute, _DECLARATION, declaration)


def declarations_of(assets: Iterable[object]) -> dict[str, BatchAssetDeclaration]:
    """Return the declarations of the batch assets among some definitions, by asset name."""
    found = {}
    for definition in assets:
        if not isinstance(definition, dg.AssetsDefinition) or not definition.is_executable:
            continue
        node = definition.node_def
        compute = node.compute_fn if isinstance(node, dg.OpDefinition) else None
        declaration = getattr(getattr(compute, "decorated_fn", None), _DECLARATION, None)
        if declaration is not None:
            # Key and partitions may have been changed since, as load_assets_from_modules does.
            declaration = replace(
                declaration, key=definition.key, partitions_def=definition.partitions_def
            )
            found[declaration.name] = declaration
    return found
