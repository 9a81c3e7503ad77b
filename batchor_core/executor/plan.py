"""A stored job, bound to its provider and model: what every step of the cycle works with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from batchor_core.job import StoredJob
from batchor_core.model.records import ScopeLimits
from batchor_core.planning.arrow_mapper import ModelColumns
from batchor_core.planning.chunking import ChunkLimits
from batchor_core.planning.prices import Price, batch_price
from batchor_core.planning.result_schema import (
    ResultDeclaration,
    build_result_schema,
)
from batchor_core.planning.schema_compiler import (
    AnswerValidator,
    CompiledSchema,
    Dialect,
    compile_schema,
)
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.openai.requests import ResponsesEncoder
from batchor_core.providers.protocol import BatchProvider, RequestEncoder


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
        return self.job.provider_config.max_output_tokens or self.job.assumed_output_tokens

    def cost(self, input_tokens: int, cached_tokens: int, output_tokens: int) -> float | None:
        """Return US dollars, or None where the price is unknown."""
        if self.price is None:
            return None
        return self.price.cost(input_tokens, cached_tokens, output_tokens)


ProviderFactory = Callable[[Any], OpenAIProvider]


def bind(
    job: StoredJob,
    output: type[BaseModel] | None,
    connect: ProviderFactory = OpenAIProvider,
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
    schema = compile_schema(output, Dialect.OPENAI, name=job.schema_name) if output else None
    kept = job.kept()
    keep = dict(zip(kept.names, kept.types, strict=True))
    result_schema = build_result_schema(ResultDeclaration(keep=keep, output=output))
    provider = connect(job.provider_config)
    encoder = ResponsesEncoder(
        job.provider_config,
        host=provider.host,
        system_prompt=job.system_prompt,
        text_format=_text_format(schema) if schema else None,
    )
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
        price=batch_price(job.provider_config.provider, job.provider_config.model),
    )


def _text_format(schema: CompiledSchema) -> dict[str, Any]:
    return {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": True}
