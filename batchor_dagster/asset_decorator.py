"""``@batch_asset``: a partitioned asset whose rows are answered by a batch API."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Literal, get_type_hints

import dagster as dg
from pydantic import BaseModel

from batchor_core import ArtifactPolicy, ChunkPolicy, ConfigurationError, RetryPolicy
from batchor_core.integration import (
    Dialect,
    PromptBuilder,
    PromptTemplate,
    ResultDeclaration,
    arrow_type,
    build_result_schema,
    compile_schema,
)
from batchor_dagster.connections import BATCHOR_RESOURCE, location_of, open_runner
from batchor_dagster.constants import TAG_ASSET, TAG_BATCH_RUN
from batchor_dagster.declaration import BatchAssetDeclaration, attach
from batchor_dagster.hold import is_hold
from batchor_dagster.materialise import has_failed_verdict, materialise
from batchor_dagster.request import request
from batchor_dagster.step import Step, explained

_DIALECTS = {
    "openai": Dialect.OPENAI,
    "anthropic": Dialect.ANTHROPIC,
    "gemini": Dialect.GEMINI,
}
"""Of the usual resource keys: output models are held against the provider at definition time. Under
any other key that is done when the first request spools its rows."""


def batch_asset(
    *,
    model: str,
    output: type[BaseModel] | None = None,
    provider: str = "openai",
    prompt_template: str | None = None,
    build_prompt: PromptBuilder | None = None,
    system_prompt: str | None = None,
    schema_name: str | None = None,
    params: Mapping[str, Any] | None = None,
    max_output_tokens: int | None = None,
    endpoint: str | None = None,
    dimensions: int | None = None,
    keep: Mapping[str, Any] | None = None,
    id_column: str | None = None,
    chunks: ChunkPolicy | None = None,
    retries: RetryPolicy | None = None,
    artifacts: ArtifactPolicy | None = None,
    on_unresolved: Literal["wait", "resubmit", "fail"] = "wait",
    on_lost: Literal["fail", "resend"] = "fail",
    reuse: Literal["partition", "namespace", "off"] = "partition",
    max_failure_rate: float = 1.0,
    cancel_on_termination: bool = True,
    wait: bool = False,
    io_type: Literal["lazy", "eager"] = "lazy",
    key: dg.AssetKey | str | Sequence[str] | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    deps: Iterable[Any] | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    group_name: str | None = None,
    description: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    owners: Sequence[str] | None = None,
    kinds: AbstractSet[str] | None = None,
    io_manager_key: str | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    code_version: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare an asset whose rows are answered by an LLM through a provider's batch API.

    The decorated function gets its upstream assets, resources, config and (optionally, first) the
    context as any asset's function does, and returns the rows: a Polars frame or lazy frame, an
    Arrow table, or ``BatchItem``s. Materialising the asset submits them and ends within seconds
    without a materialisation; the sensors of ``build_batch_sensors`` materialise the partition
    when the provider has answered, in the same backfill.

    The stored table has one row per input row, in input order: ``item_id``, the kept columns, the
    output model's fields (or ``output_text``), and the ``batch_*`` columns.

    Args:
        model: The provider's model, as ``gpt-4.1-mini``.
        output: A Pydantic model that every answer has to satisfy, importable at module level.
        provider: Resource key of an ``OpenAIBatchResource``, ``AnthropicBatchResource`` or
            ``GeminiBatchResource``.
        prompt_template: As ``"Summarise: {text}"``; without it and ``build_prompt`` the rows'
            column ``prompt`` is sent (and ``system_prompt``, where there is such a column).
        build_prompt: Makes the prompt of an item.
        system_prompt: Instructions for every row.
        schema_name: The output schema's name at the provider; default: the model's.
        params: Further fields of each request's body, as ``{"temperature": 0}``.
        max_output_tokens: Upper bound of an answer; Anthropic wants one.
        endpoint: As ``chat`` or ``embeddings``; default: the provider's usual one.
        dimensions: Length of embedding vectors; default: the model's own, where known.
        keep: Columns of the rows that the stored table keeps, with their types.
        id_column: The column that holds unique ids; default: the row number.
        chunks: How large one provider batch may become.
        retries: How often a row is sent again.
        artifacts: What is kept of what was sent and received.
        on_unresolved: What becomes of a batch whose existence cannot be settled.
        on_lost: What becomes of rows whose answers the provider has lost: ``fail``, or ``resend``,
            which pays for them again.
        reuse: Whose answers to the very same requests are taken, at no cost, in place of asking
            again: ``partition`` (default) those of the partition's previous batch run, so that
            materialising it again asks what has changed or failed; ``namespace`` also those of the
            newest batch runs of the same model; ``off`` nobody's.
        max_failure_rate: Share of failed rows up to which a partition still materialises; one
            with rows but without a single answer never does.
        cancel_on_termination: Whether cancelling the backfill, or terminating its hold or the
            request, cancels provider batches that nobody else waits for.
        wait: Wait for the answers in the request itself, holding its worker: for small jobs, for
            the command line and for tests.
        io_type: ``lazy`` hands the IO manager a LazyFrame, ``eager`` a DataFrame.
        key: The asset's key; all that follow are passed on to ``dagster.asset``.
        name: See ``dagster.asset``.
        key_prefix: See ``dagster.asset``.
        ins: See ``dagster.asset``.
        deps: See ``dagster.asset``.
        partitions_def: See ``dagster.asset``.
        group_name: See ``dagster.asset``.
        description: Default: the function's docstring.
        metadata: See ``dagster.asset``.
        tags: See ``dagster.asset``.
        owners: See ``dagster.asset``.
        kinds: Default: ``llm`` and the provider's name.
        io_manager_key: See ``dagster.asset``.
        automation_condition: See ``dagster.asset``.
        freshness_policy: See ``dagster.asset``.
        retry_policy: Dagster's own, for the request's step; rows are retried by ``retries``.
        code_version: See ``dagster.asset``.
        op_tags: See ``dagster.asset``.
        pool: See ``dagster.asset``.

    Raises:
        SchemaNotSupportedError: The output model cannot be expressed for the provider.
        ResultSchemaError: Two columns of the stored table would have one name.
        ConfigurationError: Other arguments contradict each other.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        asset_key = _asset_key(function, key, name, key_prefix)
        declaration = BatchAssetDeclaration(
            key=asset_key,
            provider=provider,
            model=model,
            output=output,
            prompt_template=prompt_template,
            build_prompt=build_prompt,
            system_prompt=system_prompt,
            schema_name=schema_name,
            params=dict(params or {}),
            max_output_tokens=max_output_tokens,
            endpoint=endpoint,
            dimensions=dimensions,
            keep=dict(keep or {}),
            id_column=id_column,
            chunks=chunks or ChunkPolicy(),
            retries=retries or RetryPolicy(),
            artifacts=artifacts or ArtifactPolicy(),
            on_unresolved=on_unresolved,
            on_lost=on_lost,
            reuse=reuse,
            max_failure_rate=max_failure_rate,
            cancel_on_termination=cancel_on_termination,
            wait=wait,
            io_type=io_type,
            partitions_def=partitions_def,
        )
        _check(declaration)
        return dg.asset(
            key=asset_key,
            ins=ins,
            deps=deps,
            partitions_def=partitions_def,
            group_name=group_name,
            description=description or inspect.getdoc(function),
            metadata=metadata,
            tags=tags,
            owners=owners,
            kinds=kinds if kinds is not None else {"llm", *({provider} & _DIALECTS.keys())},
            io_manager_key=io_manager_key,
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            retry_policy=retry_policy,
            code_version=code_version,
            op_tags=op_tags,
            pool=pool,
            output_required=False,
        )(_compute_function(function, declaration))

    return decorate


def _check(declaration: BatchAssetDeclaration) -> None:
    """Refuse at definition time what could never work."""
    if declaration.prompt_template is not None:
        if declaration.build_prompt is not None:
            raise ConfigurationError("give build_prompt or prompt_template, not both")
        PromptTemplate(declaration.prompt_template)
    dialect = _DIALECTS.get(declaration.provider)
    if declaration.output is not None and dialect is not None:
        compile_schema(declaration.output, dialect, name=declaration.schema_name)
    keep = {name: arrow_type(dtype) for name, dtype in declaration.keep.items()}
    build_result_schema(
        ResultDeclaration(
            keep=keep,
            output=declaration.output,
            embedding_dimensions=declaration.dimensions,
        )
    )


def _asset_key(
    function: Callable[..., Any],
    key: dg.AssetKey | str | Sequence[str] | None,
    name: str | None,
    key_prefix: str | Sequence[str] | None,
) -> dg.AssetKey:
    if key is not None:
        if name is not None or key_prefix is not None:
            raise ConfigurationError("give key, or name and key_prefix, not both")
        return dg.AssetKey.from_coercible(key)
    prefix = [key_prefix] if isinstance(key_prefix, str) else list(key_prefix or ())
    return dg.AssetKey([*prefix, name or function.__name__])


def _compute_function(
    function: Callable[..., Any], declaration: BatchAssetDeclaration
) -> Callable[..., Iterator[dg.MaterializeResult[Any]]]:
    """Return the step's function: the user's parameters behind a context, and our body."""
    parameters = list(inspect.signature(function).parameters.values())
    hints = get_type_hints(function, include_extras=True)
    takes_context = bool(parameters) and parameters[0].name in ("context", "_context", "_")
    inputs = parameters[1:] if takes_context else parameters
    names = {p.name for p in inputs}

    def compute(
        context: dg.AssetExecutionContext, **arguments: Any
    ) -> Iterator[dg.MaterializeResult[Any]]:
        def read_items() -> Any:
            theirs = {name: value for name, value in arguments.items() if name in names}
            return function(context, **theirs) if takes_context else function(**theirs)

        yield from _run_step(context, declaration, read_items)

    first = inspect.Parameter(
        "context",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        annotation=dg.AssetExecutionContext,
    )
    typed = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in inputs]
    # As parameters, since Dagster takes required_resource_keys only without resource parameters.
    resource: Any = dg.ResourceParam
    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=resource[Any])
        for name in (BATCHOR_RESOURCE, declaration.provider)
        if name not in names
    ]
    signature = inspect.Signature([first, *typed, *ours])
    compute.__signature__ = signature  # type: ignore[attr-defined]  # Dagster reads it
    compute.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    compute.__name__ = function.__name__
    compute.__doc__ = function.__doc__
    attach(compute, declaration)
    return compute


def _run_step(
    context: dg.AssetExecutionContext,
    declaration: BatchAssetDeclaration,
    read_items: Callable[[], Any],
) -> Iterator[dg.MaterializeResult[Any]]:
    tags = context.run.tags
    if is_hold(tags):
        context.log.warning("this run only keeps a backfill open: there is nothing to do")
        return
    declaration = replace(declaration, key=context.asset_key)  # it may have a prefix by now
    with explained(), open_runner(context.resources, location_of(context.run)) as runner:
        step = Step(context=context, declaration=declaration, runner=runner, read_items=read_items)
        if tags.get(TAG_ASSET) != declaration.name or _is_asked_again(step):
            yield from request(step)
        else:
            yield from materialise(step, tags[TAG_BATCH_RUN])


def _is_asked_again(step: Step) -> bool:
    """Whether somebody re-executes a materialise run after its verdict: a new request, then."""
    return step.context.run.parent_run_id is not None and has_failed_verdict(step)
