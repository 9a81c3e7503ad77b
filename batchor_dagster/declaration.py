"""What a batch asset declares: read by its step, by the sensors and by the advance job."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dagster as dg
from pydantic import BaseModel

from batchor_core import (
    ArtifactPolicy,
    BatchJob,
    ChunkPolicy,
    ConfigurationError,
    RetryPolicy,
    ReusePolicy,
    TimingPolicy,
)
from batchor_core.integration import Items, PromptBuilder, ProviderConfig

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
        output: The output model; None for text.
        max_failure_rate: Share of failed rows (0 to 1) up to which a partition materialises.
        reuse: Whose answers to the very same requests are taken, at no cost: ``partition`` those of
            the partition's previous batch run, ``namespace`` also those of the newest batch runs of
            the same model, ``off`` nobody's.
        cancel_on_termination: Whether a terminated backfill, hold or request cancels the provider
            batches that nobody else waits for.
        wait: Whether the request itself waits for the answers (blocking mode).
        io_type: What the IO manager is given: ``lazy`` frames, or ``eager`` ones.
        partitions_def: The asset's partitions.
    """

    key: dg.AssetKey
    provider: str
    model: str
    output: type[BaseModel] | None = None
    prompt_template: str | None = None
    build_prompt: PromptBuilder | None = None
    system_prompt: str | None = None
    schema_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    endpoint: str | None = None
    dimensions: int | None = None
    keep: Mapping[str, Any] = field(default_factory=dict)
    id_column: str | None = None
    chunks: ChunkPolicy = field(default_factory=ChunkPolicy)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    artifacts: ArtifactPolicy = field(default_factory=ArtifactPolicy)
    on_unresolved: Literal["wait", "resubmit", "fail"] = "wait"
    on_lost: Literal["fail", "resend"] = "fail"
    reuse: Literal["partition", "namespace", "off"] = "partition"
    max_failure_rate: float = 1.0
    cancel_on_termination: bool = True
    wait: bool = False
    io_type: Literal["lazy", "eager"] = "lazy"
    partitions_def: dg.PartitionsDefinition[Any] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigurationError(
                f"max_failure_rate of {self.name!r} is {self.max_failure_rate}: give a share from "
                "0 to 1"
            )

    @property
    def name(self) -> str:
        """The asset key as text, ``a/b``; stored in tags and identities."""
        return self.key.to_user_string()

    def job(
        self,
        items: Items,
        provider_config: ProviderConfig,
        timing: TimingPolicy,
        earlier: Sequence[str],
    ) -> BatchJob:
        """Return the core's recipe for some rows.

        Args:
            items: The rows.
            provider_config: Model and account.
            timing: The clockwork.
            earlier: Ids of the partition's previous batch runs.
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
            reuse=self._reuse_policy(earlier),
            on_unresolved=self.on_unresolved,
            on_lost=self.on_lost,
            timing=timing,
        )

    def _reuse_policy(self, earlier: Sequence[str]) -> ReusePolicy:
        if self.reuse == "off":
            return ReusePolicy(source="off")
        source: Literal["predecessor", "namespace"] = (
            "namespace" if self.reuse == "namespace" else "predecessor"
        )
        return ReusePolicy(source=source, run_ids=tuple(earlier))


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
