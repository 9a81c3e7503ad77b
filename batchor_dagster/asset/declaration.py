"""What a batch asset declares: read by its step, by the sensors and by the advance job."""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self, cast

import dagster as dg
import pyarrow as pa

from batchor_core import (
    BatchJob,
    BudgetPolicy,
    ConfigurationError,
    ReusePolicy,
    TimingPolicy,
)
from batchor_core.integration import (
    Items,
    ProviderConfig,
    ResultDeclaration,
    arrow_type,
    build_result_schema,
    output_model_of,
)
from batchor_dagster.asset.checks import CheckThreshold
from batchor_dagster.asset.options import BatchAssetOptions, options
from batchor_dagster.constants import CheckName

_DECLARATION = "batchor_declaration"
_FUNCTION = "batchor_function"
"""Attributes of a step's function. An asset's metadata would not do: Dagster will refuse values
there that it cannot serialise."""


@options
class BatchAssetDeclaration(BatchAssetOptions):
    """The recipe of one batch asset, without its rows and without credentials.

    Attributes:
        key: The asset.
        partitions_def: The asset's partitions.
        backfill_policy: Of how many partitions one Dagster run of a backfill takes care; None for
            one. With it, inputs are loaded as a dict by partition.
    """

    key: dg.AssetKey
    partitions_def: dg.PartitionsDefinition[Any] | None = None
    backfill_policy: dg.BackfillPolicy | None = None

    def __post_init__(self) -> None:
        self._check_provider()
        self._check_number(
            "max_failure_rate", 0 <= self.max_failure_rate <= 1, "a share from 0 to 1"
        )
        self._check_number("max_wait_hours", 0 < self.max_wait_hours < math.inf, "hours above 0")
        if self.budget_usd is not None:
            self._check_number("budget_usd", 0 < self.budget_usd < math.inf, "US dollars above 0")

    def _check_provider(self) -> None:
        key: object = self.provider
        if not isinstance(key, str):
            raise ConfigurationError(
                f"provider of {self.name!r} is an object ({type(key).__name__}): give the key that "
                "it has among the resources of your definitions, as provider='openai'"
            )
        if not key.isidentifier():
            valid = re.sub(r"\W", "_", key)
            raise ConfigurationError(
                f"provider of {self.name!r} is {key!r}, which Dagster does not take as a resource "
                f"key: name the resource {valid!r}, here and in your definitions"
            )

    def _check_number(self, option: str, is_right: bool, wanted: str) -> None:
        if not is_right:
            raise ConfigurationError(
                f"{option} of {self.name!r} is {getattr(self, option)}: give {wanted}"
            )

    @property
    def name(self) -> str:
        """The asset key as text, ``a/b``; stored in tags and identities."""
        return self.key.to_user_string()

    def named(self, key: dg.AssetKey, partitions_def: dg.PartitionsDefinition[Any] | None) -> Self:
        """Return it under the key and with the partitions that its asset has by now.

        Both may change after it was declared, as with ``load_assets_from_modules(key_prefix=…)``.
        """
        changed: Self = replace(cast("Any", self), key=key, partitions_def=partitions_def)
        return changed

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


def attach(
    compute: Callable[..., Any], declaration: BatchAssetDeclaration, function: Callable[..., Any]
) -> None:
    """Make a declaration, and the user's function, known to whoever gets the asset.

    Args:
        compute: What the asset's step runs.
        declaration: Of the asset.
        function: What was decorated.
    """
    setattr(compute, _DECLARATION, declaration)
    setattr(compute, _FUNCTION, function)


def declarations_of(assets: Iterable[object]) -> dict[str, BatchAssetDeclaration]:
    """Return the declarations of the batch assets among some definitions, by asset name."""
    found = {}
    for definition in assets:
        declaration = _attached(definition, _DECLARATION)
        if declaration is not None:
            assert isinstance(definition, dg.AssetsDefinition)
            declaration = declaration.named(definition.key, definition.partitions_def)
            found[declaration.name] = declaration
    return found


def function_of(asset: object) -> Callable[..., Any] | None:
    """Return the function that was decorated; None for what is no batch asset."""
    found: Callable[..., Any] | None = _attached(asset, _FUNCTION)
    return found


def _attached(definition: object, name: str) -> Any:
    if not isinstance(definition, dg.AssetsDefinition) or not definition.is_executable:
        return None
    node = definition.node_def
    compute = node.compute_fn if isinstance(node, dg.OpDefinition) else None
    return getattr(getattr(compute, "decorated_fn", None), name, None)
