"""What is downstream of several batch assets runs once, when all of them are there for it."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster import batch_asset
from tests.dagster.world import DAYS, MODEL, World, rows_of


def batch(name: str, **options: Any) -> dg.AssetsDefinition:
    """A batch asset."""

    @batch_asset(**{"name": name, "model": MODEL, "partitions_def": DAYS, **options})
    def answered(context: dg.AssetExecutionContext) -> pl.DataFrame:
        key = context.partition_key if context.has_partition_key else "all"
        return rows_of(f"{name}-{key}")

    return answered


def below(name: str, *deps: str, ran: list[str], fails: bool = False) -> dg.AssetsDefinition:
    """A plain asset."""

    @dg.asset(name=name, deps=list(deps), partitions_def=DAYS)
    def plain() -> None:
        ran.append(name)
        if fails:
            raise RuntimeError(name)

    return plain


def ask(world: World, *assets: Any, **options: Any) -> dg.Definitions:
    """Ask for all assets at once."""
    definitions = world.definitions(*assets)
    world.launch_job(definitions, asset_selection=[asset.key for asset in assets], **options)
    return definitions


def test_shared_asset_runs_once_with_the_last(world: World) -> None:
    """It would run without one of its inputs, or twice."""
    ran: list[str] = []
    a, b = batch("a"), batch("b")
    own, shared = below("own", "a", ran=ran), below("shared", "a", "b", ran=ran)
    world.finish(ask(world, a, b, own, shared))
    assert sorted(ran) == ["own", "shared"]
    assert [w.state for w in world.waiters] == [WaiterState.SERVED] * 2


def test_chain_and_branch_meet(world: World) -> None:
    """An asset that needs a batch asset of the second level would run before it is answered."""
    ran: list[str] = []
    a, b, c = batch("a"), batch("b"), batch("c", deps=["b"])
    shared = below("shared", "a", "c", ran=ran)
    last = below("last", "shared", "b", ran=ran)
    definitions = ask(world, a, b, c, shared, last)
    for result in world.finish(definitions):
        assert result.success
    assert ran == ["shared", "last"]
    assert world.materialized("c") == ["d0"]


@pytest.mark.parametrize("executed_again", ["failed", "all"])
def test_executed_again_after_a_failure(world: World, executed_again: str) -> None:
    """What is downstream would never run: the failed attempt would hold it up for ever."""
    ran: list[str] = []
    poor = [batch("a", budget_usd=1e-9), batch("b")]
    rich = [batch("a"), batch("b")]
    others = [below("own", "a", ran=ran), below("shared", "a", "b", ran=ran)]
    before = world.definitions(*poor, *others)
    keys = [asset.key for asset in [*poor, *others]]
    first = world.launch_job(before, asset_selection=keys)
    assert not first.success
    world.finish(before)
    after = world.definitions(*rich, *others)
    again = keys if executed_again == "all" else [keys[0], *keys[2:]]
    parent = {"dagster/root_run_id": first.run_id, "dagster/parent_run_id": first.run_id}
    world.launch_job(after, asset_selection=again, tags=parent)
    world.finish(after)
    assert sorted(ran) == ["own", "shared"]


def test_failed_batch_asset_holds_back_what_it_shares(world: World) -> None:
    """A shared asset would run with what was stored of a failed one long ago."""
    ran: list[str] = []
    a, b = batch("a"), batch("b")
    for number in range(3):
        world.sim.faults(
            {"kind": "line_error", "status": 400, "match": {"prompt": f"b-d0 row {number};"}}
        )
    world.finish(ask(world, a, b, below("own", "a", ran=ran), below("s", "a", "b", ran=ran)))
    assert ran == ["own"]
    assert [w.state for w in world.waiters] == [WaiterState.SERVED, WaiterState.FAILED]


def test_what_failed_downstream_holds_back_too(world: World) -> None:
    """A shared asset would run on an old version of something between."""
    ran: list[str] = []
    between = below("between", "a", ran=ran, fails=True)
    shared = below("shared", "between", "b", ran=ran)
    world.finish(ask(world, batch("a"), batch("b"), between, shared))
    assert set(ran) == {"between"}


def test_batch_asset_without_partitions_in_a_partitioned_request(world: World) -> None:
    """What needs both would never run, or for no partition."""
    ran: list[str] = []
    both = below("shared", "a", "whole", ran=ran)
    world.finish(ask(world, batch("a"), batch("whole", partitions_def=None), both))
    assert ran == ["shared"]
    assert world.materialized("shared") == ["d0"]


@pytest.mark.parametrize("second", ["plain", "batch"])
def test_multi_asset_that_cannot_be_subset(world: World, second: str) -> None:
    """Its op is skipped in the request, so that its other key would never be made."""
    made: list[str] = []
    other = batch("b") if second == "batch" else below("b", ran=made)

    @dg.multi_asset(
        specs=[
            dg.AssetSpec("k1", deps=["a"], partitions_def=DAYS),
            dg.AssetSpec("k2", deps=["b"], partitions_def=DAYS),
        ]
    )
    def pair() -> Iterator[dg.MaterializeResult[Any]]:
        made.append("pair")
        yield dg.MaterializeResult(asset_key="k1")
        yield dg.MaterializeResult(asset_key="k2")

    definitions = world.definitions(batch("a"), other, pair)
    keys = [dg.AssetKey(name) for name in ("a", "b", "k1", "k2")]
    world.launch_job(definitions, asset_selection=keys)
    world.finish(definitions)
    assert made.count("pair") == 1
    assert world.materialized("k1") == world.materialized("k2") == ["d0"]


def test_equal_requests_are_served_together(world: World) -> None:
    """A condition that asks every two minutes would have a partition made a thousand times."""
    a = batch("a")
    for _ in range(4):
        world.request(a)
    world.finish(a)
    assert len(world.waiters) == 1
    assert world.materialized("a") == ["d0"]


@pytest.mark.parametrize("reuse", ["off", "predecessor"])
def test_batch_below_is_not_asked_again(world: World, reuse: str) -> None:
    """A sibling that fails would have it answered, and paid for, again and again."""
    ran: list[str] = []
    a, b = batch("a"), batch("b", deps=["a"], reuse=reuse)
    definitions = ask(world, a, b, below("bad", "a", ran=ran, fails=True))
    world.drive(definitions)
    (first,) = world.materialize_tick(definitions)
    world.launch(first, definitions)
    world.drive(definitions)
    for request in world.materialize_tick(definitions):  # the second attempt comes last
        if request.tags["batchor/asset"] == "b":
            world.launch(request, definitions)
    world.finish(definitions)
    assert ran == ["bad"] * 3
    assert world.materialized("a") == ["d0"]
    assert world.materialized("b") == ["d0"]
    assert len(world.batches) == 2


def test_tick_dies_before_shared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What became ready at that moment would never run."""
    ran: list[str] = []
    definitions = ask(world, batch("a"), batch("b"), below("shared", "a", "b", ran=ran))
    world.drive(definitions)
    for request in world.materialize_tick(definitions):
        world.launch(request, definitions)
    real = type(world.store).update_waiter

    def dying(self: Any, *args: Any, **values: Any) -> None:
        real(self, *args, **values)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(world.store), "update_waiter", dying)
    for _ in range(4):  # behind each commit
        with suppress(KeyboardInterrupt):
            world.materialize_tick(definitions)
    monkeypatch.undo()
    world.finish(definitions)
    assert ran == ["shared"]


def test_step_that_delivers_last(world: World) -> None:
    """No sensor serves the waiter of such a step, so that nobody would run what it shares."""
    ran: list[str] = []
    definitions = ask(world, batch("a"), batch("b"), below("shared", "a", "b", ran=ran))
    step = world.instance.add_run(
        dg.DagsterRun(job_name="j", run_id="step", status=dg.DagsterRunStatus.STARTED)
    )
    theirs = next(waiter for waiter in world.waiters if waiter.asset == "b")
    own = {"in_step": True, "dagster_run": step.run_id}
    world.store.update_waiter(theirs, payload={**theirs.payload, **own})
    world.finish(definitions)
    assert (world.materialized("a"), ran) == (["d0"], [])
    world.store.end_waiter(theirs.waiter_id, WaiterState.SERVED, None)  # as the step does
    world.instance.report_run_canceled(step)
    world.finish(definitions)
    assert ran == ["shared"]
    assert [w.state for w in world.waiters] == [WaiterState.SERVED] * 2
