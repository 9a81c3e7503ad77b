"""The step of a batch asset: the user's function behind our body."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_type_hints

import dagster as dg

from batchor_core.integration import Items
from batchor_dagster.asset.checks import with_all_checks
from batchor_dagster.asset.declaration import BatchAssetDeclaration, attach
from batchor_dagster.asset.lineage import UpstreamColumns, upstream_columns, with_lineage
from batchor_dagster.asset.run_config import BatchRunConfig
from batchor_dagster.constants import TAG_ASSET, TAG_BATCH_RUN
from batchor_dagster.resources.connections import BATCHOR_RESOURCE, location_of, open_runner
from batchor_dagster.step.materialize import has_failed_verdict, materialize, stored_columns
from batchor_dagster.step.partition_view import StepInputs
from batchor_dagster.step.request import request
from batchor_dagster.step.step import Step, explained
from batchor_dagster.waiting.hold import is_hold

_CONFIG = "config"  # as Dagster calls it


@dataclass(frozen=True)
class UserFunction:
    """The decorated function, as far as its parameters tell."""

    function: Callable[..., Any]

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """Its parameters without the context, with their annotations resolved."""
        known = [*inspect.signature(self.function).parameters.values()]
        hints = get_type_hints(self.function, include_extras=True)
        return [
            p.replace(annotation=hints.get(p.name, p.annotation))
            for p in known[1 if self.takes_context else 0 :]
        ]

    @cached_property
    def annotations(self) -> dict[str, Any]:
        """The annotations of its parameters; None for one that has none."""
        empty = inspect.Parameter.empty
        return {p.name: None if p.annotation is empty else p.annotation for p in self.parameters}

    @cached_property
    def takes_context(self) -> bool:
        """Whether its first parameter is the context."""
        names = list(inspect.signature(self.function).parameters)
        return bool(names) and names[0] in ("context", "_context", "_")

    def call(self, context: dg.AssetExecutionContext, arguments: Mapping[str, Any]) -> Items:
        """Call it with the context, where it takes one, and its own of the arguments."""
        theirs = {name: value for name, value in arguments.items() if name in self.annotations}
        rows: Items = self.function(*((context,) if self.takes_context else ()), **theirs)
        return rows


def compute_function(
    function: Callable[..., Any], declaration: BatchAssetDeclaration
) -> Callable[..., Iterator[Any]]:
    """Return the step's function: the user's parameters behind a context, and our body."""
    theirs = UserFunction(function)

    def compute(context: dg.AssetExecutionContext, **arguments: Any) -> Iterator[Any]:
        inputs = StepInputs(context, arguments, theirs.annotations)

        def read(partition: str | None) -> Items:
            if partition is None:
                return theirs.call(context, arguments)
            return theirs.call(inputs.context(partition), inputs.of(partition))

        given = arguments.get(_CONFIG)
        config = given if isinstance(given, BatchRunConfig) else BatchRunConfig()
        named = replace(declaration, key=context.asset_key)  # it may have a prefix by now
        columns = upstream_columns(context, named, arguments)
        events = _run_step(context, named, read, config, columns)
        yield from with_all_checks(context, events)

    signature = inspect.Signature([_CONTEXT, *theirs.parameters, *_ours(theirs, declaration)])
    compute.__signature__ = signature  # type: ignore[attr-defined]  # Dagster reads it
    compute.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    compute.__name__ = function.__name__
    compute.__doc__ = function.__doc__
    attach(compute, declaration)
    return compute


_CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dg.AssetExecutionContext
)


def _ours(function: UserFunction, declaration: BatchAssetDeclaration) -> list[inspect.Parameter]:
    """Return the parameters that our body needs."""
    # Resources as parameters: Dagster takes required_resource_keys only without such parameters.
    resource: Any = dg.ResourceParam
    wanted: dict[str, Any] = dict.fromkeys((BATCHOR_RESOURCE, declaration.provider), resource[Any])
    wanted[_CONFIG] = BatchRunConfig
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
        for name, annotation in wanted.items()
        if name not in function.annotations
    ]


def is_request(context: dg.AssetExecutionContext) -> bool:
    """Whether a step of a batch asset asks for answers, and so needs its inputs.

    A materialize run does not. Nor does a hold, which has nothing to do at all.
    """
    tags = context.run.tags
    if is_hold(tags):
        return False
    if tags.get(TAG_ASSET) != context.asset_key.to_user_string():
        return True
    return context.run.parent_run_id is not None and _is_asked_again(context)


def _run_step(
    context: dg.AssetExecutionContext,
    declaration: BatchAssetDeclaration,
    read: Callable[[str | None], Items],
    config: BatchRunConfig,
    columns: UpstreamColumns,
) -> Iterator[Any]:
    tags = context.run.tags
    if is_hold(tags):
        context.log.warning("this run only keeps a backfill open: there is nothing to do")
        return
    with explained(), open_runner(context.resources, location_of(context.run)) as runner:
        step = Step(
            context=context,
            declaration=declaration,
            runner=runner,
            read=read,
            config=config,
            upstream_columns=columns,
        )
        if is_request(context):
            yield from with_lineage(context, declaration, columns, request(step))
        else:
            stored = stored_columns(step)
            events = materialize(step, tags[TAG_BATCH_RUN])
            yield from with_lineage(context, declaration, stored, events)


def _is_asked_again(context: dg.AssetExecutionContext) -> bool:
    """Whether somebody re-executes a materialize run after its verdict: a new request, then."""
    with open_runner(context.resources, location_of(context.run)) as runner:
        return has_failed_verdict(context.run.tags, runner.store)
