"""Column lineage: from which upstream columns the columns of a stored table come."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa

from batchor_core.integration import PromptTemplate
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.constants import META_COLUMN_LINEAGE

_ITEM_ID = "item_id"
_OWN_PREFIX = "batch_"


UpstreamColumns = Mapping[str, Sequence[str]]
"""Columns of upstream frames, by asset name. Stored as JSON."""


def upstream_columns(
    context: dg.AssetExecutionContext,
    declaration: BatchAssetDeclaration,
    arguments: Mapping[str, Any],
) -> UpstreamColumns:
    """Return which columns of the only upstream frame the declaration uses.

    A request stores them for its materialize run, which does not load its inputs.

    Args:
        context: The step's.
        declaration: The asset's.
        arguments: The arguments of the user's function, by parameter.

    Returns:
        Empty if the declaration has a ``column_lineage``, or not exactly one input is a frame.
    """
    if declaration.column_lineage is not None:
        return {}
    frames = _frame_columns(context, arguments)
    if len(frames) != 1:
        return {}
    ((key, columns),) = frames.items()
    named = {source for sources in _sources(declaration).values() for source in sources}
    return {key.to_user_string(): [column for column in columns if column in named]}


def with_lineage(
    context: dg.AssetExecutionContext,
    declaration: BatchAssetDeclaration,
    columns: UpstreamColumns,
    events: Iterable[Any],
) -> Iterator[Any]:
    """Pass on a step's events; add column lineage to the materializations.

    Args:
        context: The step's.
        declaration: The asset's.
        columns: What ``upstream_columns`` returned in the request.
        events: The step's events.
    """
    frames = {dg.AssetKey.from_user_string(name): theirs for name, theirs in columns.items()}
    for event in events:
        if isinstance(event, dg.MaterializeResult):
            lineage = column_lineage(declaration, frames)
            if lineage is not None:
                context.add_asset_metadata({META_COLUMN_LINEAGE: lineage}, declaration.key)
        yield event


def column_lineage(
    declaration: BatchAssetDeclaration, frames: Mapping[dg.AssetKey, Collection[str]]
) -> dg.TableColumnLineage | None:
    """Return the declared lineage, or one by column names if there is one upstream frame.

    By names, kept columns and the id come from the frame's columns of these names, and the answers
    from the columns that the prompt template names. What the user's function does in between is not
    considered.

    Args:
        declaration: The asset's.
        frames: The columns of each upstream frame.
    """
    if declaration.column_lineage is not None:
        return _lineage(declaration.column_lineage)
    if len(frames) != 1:
        return None
    ((key, columns),) = frames.items()
    return _lineage(
        {
            name: [dg.TableColumnDep(key, source) for source in theirs if source in columns]
            for name, theirs in _sources(declaration).items()
        }
    )


def _sources(declaration: BatchAssetDeclaration) -> dict[str, list[str]]:
    """Return for each stored column the names of the upstream columns it may come from."""
    sources = {name: [name] for name in declaration.keep}
    sources |= {name: _prompt_columns(declaration) for name in _answer_columns(declaration)}
    sources[_ITEM_ID] = [declaration.id_column] if declaration.id_column else []
    return sources


def _lineage(
    deps_by_column: Mapping[str, Collection[dg.TableColumnDep]],
) -> dg.TableColumnLineage | None:
    known = {name: list(deps) for name, deps in deps_by_column.items() if deps}
    return dg.TableColumnLineage(known) if known else None


def _prompt_columns(declaration: BatchAssetDeclaration) -> list[str]:
    if declaration.prompt_template is None:
        return []
    return list(PromptTemplate(declaration.prompt_template).columns)


def _answer_columns(declaration: BatchAssetDeclaration) -> list[str]:
    others = {_ITEM_ID, *declaration.keep}
    names = declaration.result_schema().names
    return [name for name in names if name not in others and not name.startswith(_OWN_PREFIX)]


def _frame_columns(
    context: dg.AssetExecutionContext, arguments: Mapping[str, Any]
) -> dict[dg.AssetKey, list[str]]:
    inputs = {name: value for name, value in arguments.items() if name in context.op_def.ins}
    found = {context.asset_key_for_input(n): _columns_of(value) for n, value in inputs.items()}
    return {key: columns for key, columns in found.items() if columns is not None}


def _columns_of(value: object) -> list[str] | None:
    """Return the columns of a frame, or of the first in a dict; None for other values."""
    match value:
        case pl.DataFrame():
            return value.columns
        case pl.LazyFrame():
            try:
                return value.collect_schema().names()
            except (OSError, pl.exceptions.PolarsError):  # only the lineage needs it here
                return None
        case pa.Table():
            return list(value.column_names)
        case Mapping() if value:
            return _columns_of(next(iter(value.values())))
    return None
