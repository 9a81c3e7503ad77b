"""The declaration of a batch asset, for its step, the sensors and ``batchor_advance``."""

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
"""Attributes of a step's function. An asset's metadata cannot hold these objects: Dagster wants
values there that it can serialise."""


@options
class BatchAssetDeclaration(BatchAssetOptions):
    """The options of one batch asset, with its key and partitions.

    It has neither rows nor credentials.

    Attributes:
        key: The asset's key.
        partitions_def: The asset's partitions.
        backfill_policy: How many partitions share a Dagster run of a backfill; None: each has one
            of its own. With a policy, inputs are loaded as dicts by partition.
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
        """Return a copy with the key and partitions that the asset has now.

        Both may change after the declaration, as with ``load_assets_from_modules(key_prefix=…)``.
        """
        changed: Self = replace(cast("Any", self), key=key, partitions_def=partitions_def)
        return changed

    @property
    def active_checks(self) -> dict[CheckName, CheckThreshold]:
        """The asset's checks with their thresholds."""
        if self.checks is None:
            return {}
        return self.checks.active(has_output=self.output is not None, budget_usd=self.budget_usd)

    @property
    def has_fixed_schema(self) -> bool:
        """Whether ``result_schema`` is exact: the length of vectors may be up to the model."""
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
        """Return the core's job for some rows.

        Args:
            items: The rows.
            provider_config: Model and account.
            timing: The intervals of the batch run.
            reuse: The earlier batch runs whose answers are reused.
            budget: The budget of the batch run, and of its account per day.
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
    """Attach a declaration and the decorated function to an asset's step function.

    Args:
        compute: The step function.
        declaration: The asset's declaration.
        function: The decorated function.
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
    """Return the decorated function of a batch asset; None for any other object."""
    found: Callable[..., Any] | None = _attached(asset, _FUNCTION)
    return found


def _attached(definition: object, name: str) -> Any:
    if not isinstance(definition, dg.AssetsDefinition) or not definition.is_executable:
        return None
    node = definition.node_def
    compute = node.compute_fn if isinstance(node, dg.OpDefinition) else None
    return getattr(getattr(compute, "decorated_fn", None), name, None)
