"""A stored job, bound to its provider and model: what every step of the cycle works with."""

from dataclasses import dataclass, replace

import pyarrow as pa
from pydantic import BaseModel

from batchor_core.errors import ConfigurationError
from batchor_core.job import StoredJob
from batchor_core.model.records import RunRecord, ScopeLimits
from batchor_core.planning.arrow_mapper import ModelColumns
from batchor_core.planning.chunking import ChunkLimits
from batchor_core.planning.prices import Price, batch_price
from batchor_core.planning.result_schema import (
    ResultDeclaration,
    build_result_schema,
    embedding_field,
)
from batchor_core.planning.schema_compiler import (
    AnswerValidator,
    CompiledSchema,
    compile_schema,
)
from batchor_core.providers.protocol import BatchProvider, RequestEncoder
from batchor_core.providers.registry import ProviderConfig, ProviderFactory, connect


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Everything about a run that does not change while it is driven.

    Attributes:
        provider: The account's adapter.
        scope: The queue whose limits the run shares.
        encoder: Turns prompts into request lines.
        output: The output model; None for text.
        schema: The compiled output model.
        validator: Validates answers; None for text.
        columns: Turns valid answers into Arrow; None for text.
        kept: Schema of the kept columns.
        result_schema: Schema of the result table.
        price: Batch price of the model; None where unknown.
    """

    job: StoredJob
    provider: BatchProvider
    scope: str
    encoder: RequestEncoder
    output: type[BaseModel] | None
    schema: CompiledSchema | None
    validator: AnswerValidator | None
    columns: ModelColumns | None
    kept: pa.Schema
    result_schema: pa.Schema
    price: Price | None

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors that are asked for; None where answers are texts."""
        return self.job.provider_config.embedding_dimensions

    @property
    def output_schema(self) -> pa.Schema | None:
        """The columns that answers are parsed into; None for plain text."""
        if self.columns is not None:
            return self.columns.schema
        return None if self.dimensions is None else pa.schema([embedding_field(self.dimensions)])

    @property
    def vocabulary(self) -> str | None:
        """The model by whose vocabulary tokens are counted; None where none is published."""
        config = self.job.provider_config
        return config.model if config.provider == "openai" else None

    @property
    def limits(self) -> ChunkLimits:
        """The bounds of one chunk."""
        return ChunkLimits.of(self.job.chunk_policy, self.provider.limits)

    @property
    def scope_limits(self) -> ScopeLimits:
        """The user's limits of the scope."""
        return ScopeLimits(**self.job.provider_config.enqueue_limit.model_dump())

    @property
    def reserved_output_tokens(self) -> int:
        """Output tokens reserved per item."""
        bound = self.job.provider_config.output_token_bound
        return self.job.assumed_output_tokens if bound is None else bound

    def cost(
        self, input_tokens: int, cached_tokens: int, output_tokens: int, cache_write_tokens: int = 0
    ) -> float | None:
        """Return US dollars, or None where the price is unknown."""
        if self.price is None:
            return None
        return self.price.cost(input_tokens, cached_tokens, output_tokens, cache_write_tokens)


def check_host(run: RunRecord, provider: BatchProvider) -> None:
    """Make sure that a run's batches are looked for where they were made.

    At another host none of them is known, and all would be given up as lost.

    Raises:
        ConfigurationError: This process reaches another host.
    """
    if run.account.startswith(f"{provider.name}:{provider.host}:"):
        return
    raise ConfigurationError(
        f"run {run.run_id!r} was started at {run.account.rpartition(':')[0]}, but this process "
        f"reaches {provider.name}:{provider.host}: set the provider's base URL as it was then"
    )


def bind(
    job: StoredJob,
    output: type[BaseModel] | None,
    connect: ProviderFactory = connect,
) -> RunPlan:
    """Bind a stored job.

    Args:
        job: The stored job.
        output: Its output model.
        connect: Makes the adapter.

    Raises:
        SchemaNotSupportedError: The model cannot be expressed for this provider.
        ResultSchemaError: Two columns of the result table would have one name.
        MissingCredentialsError: There is no key.
    """
    config = job.provider_config
    kept = job.kept()
    keep = dict(zip(kept.names, kept.types, strict=True))
    result_schema = build_result_schema(
        ResultDeclaration(
            keep=keep, output=output, embedding_dimensions=config.embedding_dimensions
        )
    )
    provider = connect(config)
    schema = compile_schema(output, provider.dialect, name=job.schema_name) if output else None
    encoder = provider.encoder(system_prompt=job.system_prompt, schema=schema)
    return RunPlan(
        job=job,
        provider=provider,
        scope=provider.scope,
        encoder=encoder,
        output=output,
        schema=schema,
        validator=AnswerValidator(output, schema) if output and schema else None,
        columns=ModelColumns(output) if output else None,
        kept=kept,
        result_schema=result_schema,
        price=price_of(config),
    )


def price_of(config: ProviderConfig) -> Price | None:
    """Return the batch price of a model: the one that the user states, else the known one."""
    price = batch_price(config.provider, config.model, config.price)
    factor = config.cache_write_factor
    if price is None or factor is None:
        return price
    return replace(price, cache_write_usd=price.input_usd * factor)
