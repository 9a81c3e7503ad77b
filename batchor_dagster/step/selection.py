"""Find the selected assets downstream of a request, which its materialize run has to run."""

from collections.abc import Collection, Iterable
from typing import Any

import dagster as dg

from batchor_core.errors import StoreError
from batchor_core.integration import OrchestratorStore
from batchor_dagster.asset.declaration import declarations_of
from batchor_dagster.constants import TAG_WAITER
from batchor_dagster.waiting.launch_spec import LaunchSpec


def asked_by(store: OrchestratorStore, run: dg.DagsterRun) -> LaunchSpec | None:
    """Return the launch specification that a materialize run serves; None for other runs."""
    waiter_id = run.tags.get(TAG_WAITER)
    if waiter_id is None:
        return None
    try:
        return LaunchSpec.of_waiter(store.get_waiter(waiter_id))
    except StoreError:  # the waiter is in another store, or the store was made anew
        return None


def waiting_selection(
    context: dg.AssetExecutionContext, asset: str, spec: LaunchSpec | None
) -> dict[str, tuple[str, ...]]:
    """Return the asset and the selected assets downstream, each with the batch assets upstream.

    Dagster skips the downstream assets in the request, and a backfill never asks for them again: so
    the materialize run has to select them.

    Args:
        context: The request's.
        asset: The waiting asset.
        spec: The launch specification that this Dagster run serves, if it is a materialize run. It
            names shared downstream assets, which this run does not select.
    """
    inherited = {
        name: above
        for name, above in (spec.selection if spec else {}).items()
        if asset in (name, *above)
    }
    own = _selected(context, asset)
    return {asset: inherited.pop(asset, own.pop(asset)), **own, **inherited}


def _selected(context: dg.AssetExecutionContext, asset: str) -> dict[str, tuple[str, ...]]:
    """Return the assets that this Dagster run selects, the asset itself first, then in order."""
    layer = context.job_def.asset_layer
    graph = layer.asset_graph
    selected = set(context.run.asset_selection or layer.selected_asset_keys)
    batch_assets = {found.key for found in declarations_of(graph.assets_defs).values()} & selected
    above: dict[dg.AssetKey, set[str]] = {key: set() for key in selected}
    for batch_asset in sorted(batch_assets):
        for key in _downstream(graph, batch_asset, selected):
            above[key].add(batch_asset.to_user_string())
    found = {
        key.to_user_string(): tuple(sorted(above[key]))
        for key in graph.toposorted_asset_keys
        if key in selected
    }
    mine = {name: names for name, names in found.items() if asset in names}
    return {asset: found[asset], **mine}


def _downstream(
    graph: Any, key: dg.AssetKey, selected: Collection[dg.AssetKey]
) -> Iterable[dg.AssetKey]:
    """Return the selected assets downstream of an asset, without the asset itself."""
    found = [key]
    for each in found:
        # A multi-asset that cannot be subset waits as a whole.
        together = graph.get(each).execution_set_entity_keys if each != key else ()
        children = graph.get(each).child_keys
        for other in sorted({*children, *together} & set(selected), key=str):
            if other not in found:
                found.append(other)
    return found[1:]
