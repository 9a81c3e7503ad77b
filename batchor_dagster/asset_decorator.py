"""``@batch_asset``: a partitioned asset whose rows are answered by a batch API."""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from keyword import iskeyword
from typing import Any, ParamSpec, TypeVar

import dagster as dg

from batchor_core import ConfigurationError
from batchor_core.integration import Dialect, PromptTemplate, compile_schema
from batchor_dagster.asset.checks import check_specs
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.metadata import definition_metadata
from batchor_dagster.asset.options import (
    AssetKeywords,
    BatchAssetOptions,
    documented,
    options,
    options_in,
    refuse_unknown,
)
from batchor_dagster.asset.translator import BatchAssetTranslatorData, DagsterBatchorTranslator
from batchor_dagster.resources.connections import BATCHOR_RESOURCE
from batchor_dagster.step.compute import compute_function, is_request
from batchor_dagster.step.inputs import loaded_on_demand
from batchor_dagster.step.user_function import UserFunction

_DIALECTS = {
    "openai": Dialect.OPENAI,
    "anthropic": Dialect.ANTHROPIC,
    "gemini": Dialect.GEMINI,
}
"""Under these resource keys an output model is checked against the provider when the asset is
defined; under any other key, when the first request spools its rows."""


P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")


@options
class BatchAssetArguments(BatchAssetOptions, AssetKeywords):
    """The keywords of ``batch_asset``."""

    translator: DagsterBatchorTranslator | None = None


def _takes(arguments: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Give a function the keywords of a dataclass, for type checkers, editors and ``help``."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        keywords = inspect.signature(arguments).parameters

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if args:
                raise ConfigurationError(
                    "@batch_asset takes keywords alone, as @batch_asset(model=…)"
                )
            refuse_unknown(kwargs, keywords)
            return function(arguments(*args, **kwargs))

        annotation = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # for ``help``
            list(keywords.values()), return_annotation=annotation
        )
        return call

    return decorate


@_takes(BatchAssetArguments)
def batch_asset(
    arguments: BatchAssetArguments,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declare an asset whose rows are answered by an LLM through a provider's batch API.

    The decorated function takes upstream assets, resources, config and (optionally, first) the
    context, as any asset's function does. It returns the rows: a Polars or pandas frame, a lazy
    frame, an Arrow table, a list of dicts, or ``BatchItem``s. A Dagster run of the asset, the
    request, submits them and ends within seconds, without a materialization. When the provider has
    answered, the sensors of ``build_batch_sensors`` launch a materialize run in the same backfill.

    The stored table has one row per input row, in input order: ``item_id``, the kept columns, the
    output model's fields (or ``output_text``), and the ``batch_*`` columns.

    The keywords are those of ``BatchAssetOptions``, which describes each, and those of
    ``dagster.asset``. ``translator`` sets key, group, tags, owners and the like of many assets by
    one convention.

    Raises:
        SchemaNotSupportedError: The output model cannot be expressed for the provider.
        ResultSchemaError: Two columns of the stored table would have one name.
        ConfigurationError: There is no such option, or options contradict each other.
    """

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        theirs = UserFunction(function=function, ins=_loaded(arguments.ins))
        spec = _spec(arguments, theirs)
        declaration = BatchAssetDeclaration(
            key=spec.key,
            partitions_def=spec.partitions_def,
            backfill_policy=arguments.backfill_policy,
            **{
                option.name: getattr(arguments, option.name)
                for option in options_in(BatchAssetOptions)
            },
        )
        _check(declaration)
        schema = declaration.result_schema() if declaration.has_fixed_schema else None
        spec = spec.replace_attributes(
            metadata={**definition_metadata(declaration.model, schema), **spec.metadata}
        )
        data = BatchAssetTranslatorData(declaration=declaration, spec=spec)
        spec = (arguments.translator or DagsterBatchorTranslator()).get_asset_spec(data)
        declaration = declaration.named(spec.key, spec.partitions_def)
        return _asset(arguments, theirs, spec, declaration)

    return decorate


batch_asset.__doc__ = documented(batch_asset.__doc__, options_in(BatchAssetOptions))


def _loaded(ins: Mapping[str, dg.AssetIn] | None) -> frozenset[str]:
    """Return the names of the inputs that Dagster loads: those that are not ``Nothing``."""
    return frozenset(
        name
        for name, each in (ins or {}).items()
        if not getattr(each.dagster_type, "is_nothing", False)
    )


def _spec(arguments: BatchAssetArguments, function: UserFunction) -> dg.AssetSpec:
    """Return the asset spec that the keywords describe."""
    kinds = arguments.kinds
    if kinds is None:
        kinds = {"llm", *(key for key in _DIALECTS if key == arguments.provider)}
    return dg.AssetSpec(
        key=_asset_key(arguments, function),
        deps=arguments.deps,
        partitions_def=arguments.partitions_def,
        group_name=arguments.group_name,
        description=arguments.description or function.doc,
        metadata=arguments.metadata,
        tags=arguments.tags,
        owners=arguments.owners,
        kinds=set(kinds),
        automation_condition=arguments.automation_condition,
        freshness_policy=arguments.freshness_policy,
        code_version=arguments.code_version,
    )


def _asset(
    given: BatchAssetArguments,
    function: UserFunction,
    spec: dg.AssetSpec,
    declaration: BatchAssetDeclaration,
) -> dg.AssetsDefinition:
    """Return the asset definition, whose step requests or materializes."""
    ins = given.ins or {}
    compute = compute_function(function, declaration)
    key = _with_valid_names(spec.key)
    arguments: dict[str, Any] = {
        **_arguments_of(spec),
        "key": key,
        "ins": ins,
        "io_manager_key": given.io_manager_key,
        "retry_policy": given.retry_policy,
        "op_tags": given.op_tags,
        "pool": given.pool,
        "output_required": False,
        "required_resource_keys": function.resource_keys | {BATCHOR_RESOURCE, declaration.provider},
        "check_specs": check_specs(key, declaration.active_checks, spec.partitions_def),
    }
    made: dg.AssetsDefinition = dg.asset(**arguments)(compute)
    loaded = loaded_on_demand(
        made, ins, spec.deps, is_request, as_partitions=given.backfill_policy is not None
    )
    arguments |= {
        "ins": loaded,
        "deps": [dep for dep in spec.deps if dep.asset_key not in _keys_of(loaded)],
    }
    if given.backfill_policy is not None:
        arguments["backfill_policy"] = given.backfill_policy  # in beta: Dagster warns of it
    made = dg.asset(**arguments)(compute)
    if key == spec.key:
        return made
    return made.with_attributes(asset_key_replacements={key: spec.key})


def _with_valid_names(key: dg.AssetKey) -> dg.AssetKey:
    """Return a key from which Dagster can make names of an op and its outputs; usually the same.

    Dagster refuses the names that it makes from some keys. The asset is defined under this key and
    gets its own key afterwards, as with ``load_assets_from_modules(key_prefix=…)``.
    """
    name = key.to_python_identifier()
    if re.fullmatch(r"[A-Za-z0-9_]+", name) and not iskeyword(name):
        return key
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name)
    token = hashlib.blake2b(key.to_string().encode(), digest_size=4).hexdigest()
    return dg.AssetKey(f"{plain}_{token}")


def _keys_of(ins: Mapping[str, dg.AssetIn]) -> set[dg.AssetKey]:
    return {each.key for each in ins.values() if isinstance(each.key, dg.AssetKey)}


def _arguments_of(spec: dg.AssetSpec) -> dict[str, Any]:
    """Return an asset spec as arguments of ``dagster.asset``, which takes no spec."""
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
    """Refuse at definition time a declaration that could never work."""
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


def _asset_key(arguments: BatchAssetArguments, function: UserFunction) -> dg.AssetKey:
    key, name, prefix = arguments.key, arguments.name, arguments.key_prefix
    if key is not None:
        if name is not None or prefix is not None:
            raise ConfigurationError("give key, or name and key_prefix, not both")
        return dg.AssetKey.from_coercible(key)
    parts = [prefix] if isinstance(prefix, str) else list(prefix or ())
    return dg.AssetKey([*parts, name or function.name])
