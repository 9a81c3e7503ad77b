"""``@batch_asset``: a partitioned asset whose rows are answered by a batch API."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Literal

import dagster as dg
from pydantic import BaseModel

from batchor_core import (
    ArtifactPolicy,
    ChunkPolicy,
    ConfigurationError,
    RetryPolicy,
    TokenPrice,
)
from batchor_core.integration import (
    Dialect,
    PromptBuilder,
    PromptTemplate,
    compile_schema,
)
from batchor_dagster.asset.checks import ALL_CHECKS, BatchChecks, check_specs
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.metadata import definition_metadata
from batchor_dagster.asset.translator import BatchAssetTranslatorData, DagsterBatchorTranslator
from batchor_dagster.step.compute import compute_function, is_request
from batchor_dagster.step.inputs import loaded_on_demand

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
    output: type[BaseModel] | Mapping[str, Any] | None = None,
    provider: str = "openai",
    prompt_template: str | None = None,
    build_prompt: PromptBuilder | None = None,
    system_prompt: str | None = None,
    schema_name: str | None = None,
    params: Mapping[str, Any] | None = None,
    max_output_tokens: int | None = None,
    endpoint: str | None = None,
    dimensions: int | None = None,
    price: TokenPrice | None = None,
    keep: Mapping[str, Any] | None = None,
    id_column: str | None = None,
    chunks: ChunkPolicy | None = None,
    retries: RetryPolicy | None = None,
    artifacts: ArtifactPolicy | None = None,
    on_unresolved: Literal["wait", "resubmit", "fail"] = "wait",
    on_lost: Literal["fail", "resend"] = "fail",
    reuse: Literal["partition", "namespace", "off"] = "partition",
    max_failure_rate: float = 1.0,
    budget_usd: float | None = None,
    cancel_on_termination: bool = True,
    wait: bool = False,
    io_type: Literal["lazy", "eager"] = "lazy",
    checks: BatchChecks | None = ALL_CHECKS,
    column_lineage: Mapping[str, Sequence[dg.TableColumnDep]] | None = None,
    key: dg.AssetKey | str | Sequence[str] | None = None,
    name: str | None = None,
    key_prefix: str | Sequence[str] | None = None,
    ins: Mapping[str, dg.AssetIn] | None = None,
    deps: Iterable[Any] | None = None,
    partitions_def: dg.PartitionsDefinition[Any] | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
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
    translator: DagsterBatchorTranslator | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare an asset whose rows are answered by an LLM through a provider's batch API.

    The decorated function gets its upstream assets, resources, config and (optionally, first) the
    context as any asset's function does, and returns the rows: a Polars frame or lazy frame, an
    Arrow table, or ``BatchItem``s. Materializing the asset submits them and ends within seconds
    without a materialization; the sensors of ``build_batch_sensors`` materialize the partition
    when the provider has answered, in the same backfill.

    The stored table has one row per input row, in input order: ``item_id``, the kept columns, the
    output model's fields (or ``output_text``), and the ``batch_*`` columns.

    Args:
        model: The provider's model, as ``gpt-4.1-mini``.
        output: What every answer has to satisfy: a Pydantic model, importable at module level, or a
            JSON Schema.
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
        price: What the model's tokens cost; default: what is known. A budget needs one.
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
            materializing it again asks what has changed or failed; ``namespace`` also those of the
            newest batch runs of the same model; ``off`` none that were materialized.
        max_failure_rate: Share of failed rows up to which a partition still materializes; one
            with rows but without a single answer never does.
        budget_usd: What one batch run may cost, in US dollars, its retries included. Rows that are
            too much for it as a whole are not sent, and the request fails; a batch run that comes
            to its bound on the way is paused.
        cancel_on_termination: Whether cancelling the backfill, or terminating its hold or the
            request, cancels provider batches that nobody else waits for.
        wait: Wait for the answers in the request itself, holding its worker: for small jobs, for
            the command line and for tests.
        io_type: ``lazy`` hands the IO manager a LazyFrame, ``eager`` a DataFrame.
        checks: The asset checks that come with it, with their thresholds; None for none.
        column_lineage: From which upstream columns stored columns come. By default that is taken
            from the names where exactly one upstream input is a frame: kept columns and the id
            from its columns of these names, the answers from what the prompt template names; an
            empty mapping says nothing.
        key: The asset's key; all that follow are passed on to ``dagster.asset``.
        name: See ``dagster.asset``.
        key_prefix: See ``dagster.asset``.
        ins: See ``dagster.asset``.
        deps: See ``dagster.asset``.
        partitions_def: See ``dagster.asset``.
        backfill_policy: How many partitions one Dagster run of a backfill asks for: the function is
            still called for each of them, and their rows share provider batches. The inputs' IO
            managers have to load several partitions as a dict, and the asset's own has to take one,
            as ``BatchParquetIOManager`` does. Recommended from a hundred partitions on.
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
        translator: Customises key, group, tags, owners and the like of many assets alike.

    Raises:
        SchemaNotSupportedError: The output model cannot be expressed for the provider.
        ResultSchemaError: Two columns of the stored table would have one name.
        ConfigurationError: Other arguments contradict each other.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        spec = dg.AssetSpec(
            key=_asset_key(function, key, name, key_prefix),
            deps=deps,
            partitions_def=partitions_def,
            group_name=group_name,
            description=description or inspect.getdoc(function),
            metadata=metadata,
            tags=tags,
            owners=owners,
            kinds=set(kinds) if kinds is not None else {"llm", *({provider} & _DIALECTS.keys())},
            automation_condition=automation_condition,
            freshness_policy=freshness_policy,
            code_version=code_version,
        )
        declaration = BatchAssetDeclaration(
            key=spec.key,
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
            price=price,
            keep=dict(keep or {}),
            id_column=id_column,
            chunks=chunks or ChunkPolicy(),
            retries=retries or RetryPolicy(),
            artifacts=artifacts or ArtifactPolicy(),
            on_unresolved=on_unresolved,
            on_lost=on_lost,
            reuse=reuse,
            max_failure_rate=max_failure_rate,
            budget_usd=budget_usd,
            cancel_on_termination=cancel_on_termination,
            wait=wait,
            io_type=io_type,
            backfill_policy=backfill_policy,
            checks=checks,
            column_lineage=column_lineage,
            partitions_def=partitions_def,
        )
        _check(declaration)
        schema = declaration.result_schema() if declaration.has_fixed_schema else None
        spec = spec.replace_attributes(
            metadata={**definition_metadata(model, schema), **spec.metadata}
        )
        data = BatchAssetTranslatorData(declaration=declaration, spec=spec)
        spec = (translator or DagsterBatchorTranslator()).get_asset_spec(data)
        declaration = replace(declaration, key=spec.key, partitions_def=spec.partitions_def)

        compute = compute_function(function, declaration)
        arguments: dict[str, Any] = {
            **_arguments_of(spec),
            "ins": ins,
            "io_manager_key": io_manager_key,
            "retry_policy": retry_policy,
            "op_tags": op_tags,
            "pool": pool,
            "output_required": False,
            "check_specs": check_specs(spec.key, declaration.active_checks, spec.partitions_def),
        }
        made: dg.AssetsDefinition = dg.asset(**arguments)(compute)
        arguments["ins"] = loaded_on_demand(
            made, ins or {}, is_request, as_partitions=backfill_policy is not None
        )
        if backfill_policy is not None:  # in beta: Dagster warns of it
            arguments["backfill_policy"] = backfill_policy
        asset: dg.AssetsDefinition = dg.asset(**arguments)(compute)
        return asset

    return decorate


def _arguments_of(spec: dg.AssetSpec) -> dict[str, Any]:
    """Return what a spec says, as arguments of ``dagster.asset``, which takes no spec."""
    kind_tags = {f"dagster/kind/{kind}" for kind in spec.kinds}
    return {
        "key": spec.key,
        "deps": list(spec.deps),
        "partitions_def": spec.partitions_def,
        "group_name": spec.group_name,
        "description": spec.description,
        "metadata": spec.metadata,
        "tags": {key: value for key, value in spec.tags.items() if key not in kind_tags},
        "owners": list(spec.owners),
        "kinds": spec.kinds,
        "automation_condition": spec.automation_condition,
        "freshness_policy": spec.freshness_policy,
        "code_version": spec.code_version,
    }


def _check(declaration: BatchAssetDeclaration) -> None:
    """Refuse at definition time what could never work."""
    if declaration.prompt_template is not None:
        if declaration.build_prompt is not None:
            raise ConfigurationError("give build_prompt or prompt_template, not both")
        PromptTemplate(declaration.prompt_template)
    dialect = _DIALECTS.get(declaration.provider)
    if declaration.output is not None and dialect is not None:
        compile_schema(declaration.output, dialect, name=declaration.schema_name)
    names = declaration.result_schema().names
    unknown = [name for name in declaration.column_lineage or {} if name not in names]
    if unknown:
        raise ConfigurationError(
            f"column_lineage names {', '.join(map(repr, unknown))}, but the stored table has only "
            f"{', '.join(map(repr, names))}"
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
