"""Build the function that Dagster executes as the step of a batch asset."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dagster as dg

from batchor_core.integration import Items
from batchor_dagster.asset.checks import with_all_checks
from batchor_dagster.asset.declaration import BatchAssetDeclaration, attach
from batchor_dagster.asset.lineage import upstream_columns, with_lineage
from batchor_dagster.constants import TAG_ASSET, TAG_WAITER
from batchor_dagster.resources.connections import location_of, open_runner
from batchor_dagster.step.added_metadata import AddedMetadata, RowsContext
from batchor_dagster.step.materialize import has_failed_verdict, materialize
from batchor_dagster.step.partition_view import StepInputs
from batchor_dagster.step.request import request
from batchor_dagster.step.rows import rows_of
from batchor_dagster.step.step import Step, explained, with_added_metadata
from batchor_dagster.step.user_function import CONFIG, UserFunction
from batchor_dagster.waiting.hold import is_hold
from batchor_dagster.waiting.launch_spec import LaunchSpec


def compute_function(
    function: UserFunction, declaration: BatchAssetDeclaration
) -> Callable[..., Iterator[Any]]:
    """Return the step's function: it takes the user's inputs, and requests or materializes.

    Resources are no parameters of it, so that an input may have the name of a resource.
    """

    def compute(context: dg.AssetExecutionContext, **arguments: Any) -> Iterator[Any]:
        added = AddedMetadata()
        given = context.resources.original_resource_dict  # as Dagster gives them to parameters
        resources = {key: given[key] for key in function.resource_keys}
        inputs = StepInputs(context, arguments, function.annotations, added.add)
        named = declaration.named(context.asset_key, declaration.partitions_def)

        def read(partition: str | None) -> Items:
            if partition is None:
                theirs, seen = arguments, RowsContext(context, added.add)
            else:
                theirs, seen = inputs.of(partition), inputs.context(partition)
            return rows_of(function.call(seen, {**theirs, **resources}), named.name)

        step_with = partial(
            Step,
            context=context,
            declaration=named,
            read=read,
            config=arguments[CONFIG],
            upstream_columns=upstream_columns(context, named, arguments),
            added_metadata=added,
        )
        events = _run_step(context, step_with)
        yield from with_all_checks(context, events)

    signature = inspect.Signature([_CONTEXT, *function.inputs, _config(function)])
    compute.__signature__ = signature  # type: ignore[attr-defined]  # Dagster reads it
    compute.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    compute.__name__ = declaration.key.path[-1]
    compute.__doc__ = function.doc
    attach(compute, declaration, function.function)
    return compute


_CONTEXT = inspect.Parameter(
    "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=dg.AssetExecutionContext
)


def _config(function: UserFunction) -> inspect.Parameter:
    return inspect.Parameter(
        CONFIG, inspect.Parameter.KEYWORD_ONLY, annotation=function.config_type
    )


def is_request(context: dg.AssetExecutionContext) -> bool:
    """Whether a step of a batch asset is a request, which needs its inputs.

    It is none in a materialize run of the asset (unless a user re-executes one after its verdict),
    nor in a hold.
    """
    tags = context.run.tags
    if is_hold(tags):
        return False
    if tags.get(TAG_ASSET) != context.asset_key.to_user_string():
        return True
    return context.run.parent_run_id is not None and _is_asked_again(context)


def _run_step(context: dg.AssetExecutionContext, step_with: Callable[..., Step]) -> Iterator[Any]:
    tags = context.run.tags
    if is_hold(tags):
        context.log.warning("this run only keeps a backfill open: there is nothing to do")
        return
    with explained(), open_runner(context.resources, location_of(context.run)) as runner:
        step = step_with(runner=runner)
        if is_request(context):
            events, columns, added = request(step), step.upstream_columns, step.added_metadata
        else:
            waiter = runner.store.get_waiter(tags[TAG_WAITER])
            events = materialize(step, waiter)
            columns = LaunchSpec.of_waiter(waiter).upstream_columns
            added = AddedMetadata.of_payload(waiter.payload)
        said = with_added_metadata(step, added, events)
        yield from with_lineage(context, step.declaration, columns, said)


def _is_asked_again(context: dg.AssetExecutionContext) -> bool:
    """Whether a re-executed materialize run had a verdict: it is a new request then."""
    with open_runner(context.resources, location_of(context.run)) as runner:
        return has_failed_verdict(context.run.tags, runner.store)
