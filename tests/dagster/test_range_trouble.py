"""Ranges in trouble: partitions that are asked for again while others of their range are served."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core import ChunkPolicy
from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import batch_asset
from batchor_dagster.constants import META_BATCH_RUN
from batchor_dagster.sensors import materialize_tick
from batchor_dagster.step import request as request_module
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import launches_of
from tests.dagster.test_ranges import SINGLE_RUN, ask, changed, ranged
from tests.dagster.world import MODEL, ROWS, World, failure, rows_of, while_waiting

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
A_CHUNK_EACH = ChunkPolicy(max_requests=ROWS)


def spoil(world: World, day: str) -> None:
    """Let the provider refuse all rows of a partition."""
    for number in range(ROWS):
        match = {"prompt": f"{day} row {number};"}
        world.sim.faults({"kind": "line_error", "status": 400, "match": match})


def test_what_is_left_of_a_range_is_still_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition would pass for materialized since another one was, under the same run key."""
    monkeypatch.setattr(materialize_tick, "RUNS_PER_BACKFILL", 1)
    spoil(world, "d1")
    before, after = (make(max_failure_rate=0.5) for make in (ranged, changed))
    ask(world, before, "d0", "d2")
    world.drive(before)
    (first,) = world.materialize_tick(before)
    assert world.launch(first, before).success
    ask(world, after, "d0", "d1")
    world.finish(after)
    assert "d2" in world.materialized()


def test_verdict_stays_with_its_partition(world: World) -> None:
    """The failure of one partition would be noted of others, which were never tried."""
    spoil(world, "d1")
    before, after = (make(max_failure_rate=0.5) for make in (ranged, changed))
    ask(world, before, "d0", "d3")
    world.drive(before)
    first, queued, _ = world.materialize_tick(before)
    assert world.launch(first, before).success
    world.request(after, partition="d0")
    world.materialize_tick(after)
    assert not world.launch(queued, after).success
    waiter = world.waiters[0]
    launches = launches_of(waiter, LaunchSpec.of_waiter(waiter))
    states = {key: launch.state for launch in launches for key in launch.partitions}
    assert states["d2"] == states["d3"] == "open"
    world.finish(after)
    assert {"d2", "d3"} <= set(world.materialized())


def test_queued_run_does_not_bring_back_old_answers(world: World) -> None:
    """A partition would show what was asked before the prompt was changed."""
    before, after = ranged(), changed()
    ask(world, before, "d0", "d2")
    world.drive(before)
    (old,) = world.materialize_tick(before)
    world.request(after, partition="d1")
    world.finish(after)
    assert "asked for again meanwhile" in failure(world.launch(old, after))
    records = world.instance.fetch_materializations(dg.AssetKey("answers"), limit=100).records
    newest = next(r for r in records if r.partition_key == "d1").asset_materialization
    assert newest.metadata[META_BATCH_RUN].value == world.runs[-1].run_id


def test_waiting_range_leaves_the_rest_to_the_sensors(world: World) -> None:
    """Paid partitions would be lost because somebody has asked for another one anew."""
    before, after = ranged(wait=True, chunks=A_CHUNK_EACH), changed(chunks=A_CHUNK_EACH)

    def take_over() -> None:
        assert world.request(after, partition="d1").success
        while "cancelled" not in world.batches:
            world.sim.advance_time(1)
        world.provider_works()

    with while_waiting(world, take_over):
        result = ask(world, before, "d0", "d3")
    assert "the sensors materialize all of them" in failure(result)
    world.finish(after)
    assert {"d0", "d1", "d2", "d3"} <= set(world.materialized())
    assert WaiterState.OPEN not in {waiter.state for waiter in world.waiters}


def test_cancelled_request_does_not_hide_older_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill that is cancelled before it sends anything would make the next one pay again."""
    answers = ranged()
    ask(world, answers, "d0", "d1")
    world.finish(answers)
    with monkeypatch.context() as patched:
        patched.setattr(request_module, "_open_hold", lambda *_: False)  # it was cancelled
        ask(world, answers, "d0", "d1")
        world.finish(answers)
    ask(world, answers, "d0", "d1")
    world.finish(answers)
    assert world.sim.ledger().executed() == 2 * ROWS


def test_what_is_not_to_be_cancelled_goes_on(world: World) -> None:
    """An asset that wants its answers in any case would lose those that nobody waits for."""
    answers = ranged(cancel_on_termination=False, chunks=A_CHUNK_EACH)
    ask(world, answers, "d0", "d3")
    world.request(answers, partition="d1")
    world.store.end_waiter(
        world.waiters[0].waiter_id, WaiterState.CANCELLED, "terminated", keeps_work=True
    )
    world.finish(answers)
    assert world.batches == ["completed"] * 4


def test_cancelled_range_keeps_what_others_want(world: World) -> None:
    """A cancelled backfill would be answered to its end because of one of its partitions."""
    answers = ranged(chunks=A_CHUNK_EACH)
    ask(world, answers, "d0", "d3")
    world.request(answers, partition="d1")
    world.store.end_waiter(world.waiters[0].waiter_id, WaiterState.CANCELLED, "terminated")
    world.finish(answers)
    assert sorted(world.batches) == ["cancelled"] * 3 + ["completed"]
    assert world.materialized() == ["d1"]


def test_request_behind_a_paused_run_says_so(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """A partition would wait for ever, and nothing would tell for what."""
    ask(world, ranged(), "d0", "d2")
    world.store.set_control(world.run.run_id, RunControlState.PAUSE, "insufficient quota")
    world.request(changed(), partition="d1")
    assert (
        f"batch run {world.runs[0].run_id} is paused: insufficient quota" in capfd.readouterr().err
    )


def test_context_is_the_partition_s_alone(world: World) -> None:
    """Every partition would ask for the rows of the whole range."""
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-10")
    seen: list[tuple[Any, ...]] = []

    @dg.asset(partitions_def=days, backfill_policy=SINGLE_RUN)
    def tickets(context: dg.AssetExecutionContext) -> dict[str, pl.DataFrame]:
        return {day: rows_of(day) for day in context.partition_keys}

    @batch_asset(model=MODEL, partitions_def=days, backfill_policy=SINGLE_RUN)
    def answers(context: dg.AssetExecutionContext, tickets: pl.DataFrame) -> pl.DataFrame:
        one = dg.PartitionKeyRange(context.partition_key, context.partition_key)
        assert context.partition_key_range == context.asset_partition_key_range == one
        assert context.asset_partition_key_range_for_output() == one
        assert context.asset_partition_key_range_for_input("tickets") == one
        windows = {
            str(context.partition_time_window),
            str(context.asset_partitions_time_window_for_output()),
            str(context.asset_partitions_time_window_for_input("tickets")),
        }
        keys = [
            context.partition_key,
            context.asset_partition_key_for_output(),
            context.asset_partition_key_for_input("tickets"),
            *context.partition_keys,
            *context.asset_partition_keys_for_output(),
            *context.asset_partition_keys_for_input("tickets"),
        ]
        seen.append((windows, set(keys)))
        return tickets

    result = ask(world, tickets, "2026-01-02", "2026-01-04", others=[answers])
    assert result.success, failure(result)
    assert [keys for _, keys in seen] == [{"2026-01-02"}, {"2026-01-03"}, {"2026-01-04"}]
    assert all(len(windows) == 1 for windows, _ in seen)
