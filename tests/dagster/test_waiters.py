"""Who waits for what, and what happens once somebody no longer does."""

import dagster as dg
import polars as pl
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import BatchorResource, batch_asset
from batchor_dagster.constants import (
    ASSET_JOB,
    TAG_BACKFILL,
    TAG_MAX_RETRIES,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    HoldKind,
)
from batchor_dagster.sensors import materialize_tick
from batchor_dagster.waiting.hold import HoldRequest, HoldState, hold_status, open_or_join
from tests.dagster.world import DAYS, MODEL, ROWS, World, answers_asset, rows_of, while_waiting


def _terminate(world: World, result: dg.ExecuteInProcessResult) -> None:
    """Mark a request's Dagster run as cancelled, as the UI's button does."""
    run = world.instance.get_run_by_id(result.run_id)
    assert run is not None
    world.instance.report_run_canceled(run)


def test_terminated_request_cancels_its_batch(world: World) -> None:
    """The provider would go on working, and charging, for nobody."""
    answers = answers_asset()
    _terminate(world, world.request(answers))
    assert world.materialize_tick(answers) == []
    world.drive(answers)

    (waiter,) = world.waiters
    assert waiter.state is WaiterState.CANCELLED
    assert "was terminated" in (waiter.reason or "")
    assert world.run.state == "cancelled"
    assert world.batches == ["cancelled"]
    assert world.serve(answers) == []


def test_cancelled_partition_may_be_asked_again(world: World) -> None:
    """A partition that was cancelled once would be blocked for ever."""
    answers = answers_asset()
    _terminate(world, world.request(answers))
    world.materialize_tick(answers)
    world.drive(answers)
    world.request(answers)
    world.finish(answers)

    assert world.materialized() == ["d0"]


def test_batch_goes_on_for_whoever_still_waits(world: World) -> None:
    """One user's cancel would take another's answers away."""
    answers = answers_asset()
    first = world.request(answers)
    world.request(answers, tags={"team": "other"})
    _terminate(world, first)
    world.finish(answers)

    assert [w.state for w in world.waiters] == [WaiterState.CANCELLED, WaiterState.SERVED]
    assert world.run.state == "succeeded"
    assert world.materialized() == ["d0"]


def test_joined_requests_outlive_the_first(world: World) -> None:
    """Who asked for the same a minute later would be cancelled together with the first one."""
    answers = answers_asset()
    first = world.request(answers)
    second, third = world.request(answers), world.request(answers)
    _terminate(world, first)
    _terminate(world, second)
    world.finish(answers)

    (waiter,) = world.waiters
    assert (waiter.state, waiter.payload["dagster_run"]) == (WaiterState.SERVED, third.run_id)
    assert world.materialized() == ["d0"]


def test_joined_requests_end_with_the_last(world: World) -> None:
    """A batch that all have cancelled who asked for it would go on."""
    answers = answers_asset()
    for run in [world.request(answers), world.request(answers)]:
        _terminate(world, run)
    world.finish(answers)

    assert [w.state for w in world.waiters] == [WaiterState.CANCELLED]
    assert world.batches == ["cancelled"]


def test_batch_may_outlive_its_request(world: World) -> None:
    """Answers that the user wants to keep would be thrown away with the run that asked."""
    answers = answers_asset(cancel_on_termination=False)
    _terminate(world, world.request(answers))
    world.finish(answers)

    assert [w.state for w in world.waiters] == [WaiterState.CANCELLED]
    assert world.run.state == "succeeded"
    assert world.batches == ["completed"]


@pytest.mark.parametrize("status", [BulkActionStatus.CANCELING, BulkActionStatus.CANCELED])
def test_cancelled_backfill_ends_its_waiters_only(world: World, status: BulkActionStatus) -> None:
    """A cancelled backfill would go on being paid, or take others with it."""
    answers = answers_asset()
    _add_backfill(world, "stopped")
    _add_backfill(world, "goes-on")
    world.request(answers, tags={TAG_BACKFILL: "stopped"})
    world.request(answers, partition="d1", tags={TAG_BACKFILL: "goes-on"})
    _set_status(world, "stopped", status)
    world.finish(answers)

    assert [w.state for w in world.waiters] == [WaiterState.CANCELLED, WaiterState.SERVED]
    assert [run.state for run in world.runs] == ["cancelled", "succeeded"]
    assert world.materialized() == ["d1"]


@pytest.mark.parametrize("kind", [HoldKind.QUEUED, HoldKind.SUSPENDED])
@pytest.mark.parametrize("by_dagster", [True, False])
def test_backfill_that_dagster_gives_up_keeps_what_was_paid(
    world: World, kind: HoldKind, by_dagster: bool
) -> None:
    """A deployment without one of a backfill's assets would cancel its batches."""
    instance = world.instance
    _add_backfill(world, "failed")
    opened = open_or_join(
        HoldRequest(
            instance=instance,
            run=_launched_run("failed"),
            asset_keys=[dg.AssetKey("answers")],
            partition_keys=["d0"],
            kind=kind,
        )
    )
    assert opened.hold is not None
    answers = answers_asset()
    world.request(answers, tags={TAG_BACKFILL: "failed"})
    (waiter,) = world.waiters
    world.store.update_waiter(waiter, payload={**waiter.payload, "hold": opened.hold.run_id})
    _set_status(world, "failed", BulkActionStatus.FAILING)
    if by_dagster:
        hold = instance.get_run_by_id(opened.hold.run_id)
        assert hold is not None
        instance.report_run_canceled(hold)
    world.finish(answers)

    assert hold_status(instance, opened.hold.run_id).state is not HoldState.OPEN
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]
    assert world.batches == ["completed"]
    assert world.materialized() == ["d0"]


def test_materialize_run_carries_the_backfill(world: World) -> None:
    """Dagster would not see that the backfill's partition was materialized."""
    answers = answers_asset()
    _add_backfill(world, "mine")
    world.request(answers, tags={TAG_BACKFILL: "mine"})
    world.drive(answers)
    (request,) = world.materialize_tick(answers)

    assert request.tags[TAG_BACKFILL] == "mine"
    assert request.tags[TAG_MAX_RETRIES] == "0"  # Dagster's own would ask, and pay, anew
    assert request.partition_key == "d0"


def test_removed_asset_ends_its_waiters(world: World) -> None:
    """An asset that is gone would be polled, and asked to materialize, for ever."""
    answers = answers_asset()
    world.request(answers)

    @batch_asset(model=MODEL)
    def another() -> pl.DataFrame:
        return rows_of("d0")

    assert world.materialize_tick(another) == []
    world.drive(another)

    (waiter,) = world.waiters
    assert waiter.state is WaiterState.CANCELLED
    assert waiter.reason == "asset 'answers' is not defined any more"
    assert world.run.state == "cancelled"


def _pair() -> list[dg.AssetsDefinition]:
    """Return two batch assets and one that needs both."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def left(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(f"left {context.partition_key}")

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def right(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(f"right {context.partition_key}")

    @dg.asset(partitions_def=DAYS)
    def both(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([left, right], how="diagonal")

    return [left, right, both]


def test_shared_descendant_goes_with_the_last_when_all_are_ready_at_once(world: World) -> None:
    """What needs two batch assets would never run, or run with yesterday's half."""
    assets = _pair()
    world.request(*assets)
    world.drive(*assets)
    world.serve(*assets)

    assert world.materialized("left") == world.materialized("right") == ["d0"]
    assert world.materialized("both") == ["d0"]
    assert world.table("both").height == 6


@pytest.mark.parametrize("first", ["left", "right"])
def test_shared_descendant_waits_for_the_slower(world: World, first: str) -> None:
    """It would run before its other half is there."""
    assets = _pair()
    world.request(*assets)
    (slow,) = [w.run_id for w in world.waiters if w.asset != first]
    world.store.set_control(slow, RunControlState.PAUSE, "by hand")  # it is collected, not finished
    world.drive(*assets)
    world.serve(*assets)
    assert world.materialized(first) == ["d0"]
    assert world.materialized("both") == []

    world.store.set_control(slow, RunControlState.RUN, None)
    world.finish(*assets)
    assert world.materialized("both") == ["d0"]


def test_descendants_that_were_not_selected_do_not_run(world: World) -> None:
    """A user who materializes one asset would find others materialized too."""
    left, right, both = _pair()
    world.request(left)
    world.finish(left, right, both)

    assert world.materialized("left") == ["d0"]
    assert world.materialized("both") == []


def test_one_tick_launches_a_bounded_number_of_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand finished partitions would hold the sensor daemon for minutes."""
    assert materialize_tick.RUN_REQUESTS_PER_TICK == 50
    monkeypatch.setattr(materialize_tick, "RUN_REQUESTS_PER_TICK", 2)
    answers = answers_asset()
    for day in ("d0", "d1", "d2"):
        world.request(answers, partition=day)
    world.drive(answers)

    first = world.materialize_tick(answers)
    assert [request.partition_key for request in first] == ["d0", "d1"]
    for request in first:
        world.launch(request, answers)
    assert [request.partition_key for request in world.materialize_tick(answers)] == ["d2"]


def test_namespaces_do_not_see_each_other(world: World) -> None:
    """Two code locations on one store would end each other's waiters as removed assets."""
    answers = answers_asset()
    world.request(answers)
    mine = world.resources["batchor"]
    world.resources["batchor"] = BatchorResource(state=mine.state, poll_s=0.001, namespace="theirs")

    @batch_asset(model=MODEL)
    def another() -> pl.DataFrame:
        return rows_of("d0")

    assert world.materialize_tick(another) == []
    world.provider_works()
    assert world.advance_tick(another) == []
    assert [w.state for w in world.waiters] == [WaiterState.OPEN]
    world.resources["batchor"] = mine
    world.finish(answers)
    assert world.materialized() == ["d0"]


def _launched_run(backfill_id: str) -> dg.DagsterRun:
    """A Dagster run of a code location, for which a hold can be opened."""
    location = RegisteredCodeLocationOrigin(location_name="location")
    origin = RemoteRepositoryOrigin(code_location_origin=location, repository_name="repository")
    return dg.DagsterRun(
        job_name=ASSET_JOB,
        tags={TAG_BACKFILL: backfill_id, "dagster/partition": "d0"},
        remote_job_origin=RemoteJobOrigin(repository_origin=origin, job_name=ASSET_JOB),
    )


def _set_status(world: World, backfill_id: str, status: BulkActionStatus) -> None:
    backfill = world.instance.get_backfill(backfill_id)
    assert backfill is not None
    world.instance.update_backfill(backfill.with_status(status))


def _add_backfill(world: World, backfill_id: str) -> None:
    world.instance.add_backfill(
        PartitionBackfill(
            backfill_id=backfill_id,
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=1.0,
            asset_selection=[dg.AssetKey("answers")],
            partition_names=["d0"],
        )
    )


def _ranged_pair(policy: dg.BackfillPolicy) -> list[dg.AssetsDefinition]:
    """Return two batch assets and one that needs both, asked for in ranges."""

    def answering(name: str) -> dg.AssetsDefinition:
        @batch_asset(model=MODEL, name=name, partitions_def=DAYS, backfill_policy=policy)
        def asset(context: dg.AssetExecutionContext) -> pl.DataFrame:
            return rows_of(f"{name} {context.partition_key}")

        return asset

    @dg.asset(partitions_def=DAYS, backfill_policy=policy)
    def both(
        left: dict[str, pl.DataFrame], right: dict[str, pl.DataFrame]
    ) -> dict[str, pl.DataFrame]:
        return {day: pl.concat([left[day], right[day]], how="diagonal") for day in left}

    return [answering("left"), answering("right"), both]


RANGE = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d4"}
ranged_assets = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")


@ranged_assets
def test_shared_descendant_runs_where_both_halves_are_good(world: World) -> None:
    """One bad partition of one half would keep all others from running, again and again."""
    assets = _ranged_pair(dg.BackfillPolicy.single_run())
    for number in range(ROWS):
        prompt = f"Judge left d2 row {number};"
        world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": prompt}})
    world.request(*assets, partition=None, tags=RANGE)
    world.finish(*assets)

    assert sorted(map(str, world.materialized("right"))) == ["d0", "d1", "d2", "d3", "d4"]
    assert sorted(map(str, world.materialized("left"))) == ["d0", "d1", "d3", "d4"]
    assert sorted(map(str, world.materialized("both"))) == ["d0", "d1", "d3", "d4"]
    assert {w.asset: w.state for w in world.waiters} == {
        "left": WaiterState.FAILED,
        "right": WaiterState.SERVED,
    }


@pytest.mark.parametrize("bad", ["left", "right"])
def test_half_that_failed_before_the_other_was_ready(world: World, bad: str) -> None:
    """The good half would be materialized three times, with what cannot run."""
    assets = _pair()
    for number in range(ROWS):
        prompt = f"Judge {bad} d0 row {number};"
        world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": prompt}})
    world.request(*assets)
    (slow,) = [w.run_id for w in world.waiters if w.asset != bad]
    world.store.set_control(slow, RunControlState.PAUSE, "by hand")
    world.drive(*assets)
    world.serve(*assets)
    world.store.set_control(slow, RunControlState.RUN, None)
    world.finish(*assets)

    assert world.materialized("right" if bad == "left" else "left") == ["d0"]
    assert world.materialized("both") == []


@ranged_assets
def test_shared_descendant_of_ranges_that_were_split(world: World) -> None:
    """It would run before its halves are there, and once with each of them."""
    assets = _ranged_pair(dg.BackfillPolicy.single_run())
    world.request(assets[0], partition="d2")  # in work by itself already
    world.request(*assets, partition=None, tags=RANGE)
    world.finish(*assets)

    assert [world.materialized("both").count(f"d{n}") for n in range(5)] == [1] * 5
    assert [world.materialized("right").count(f"d{n}") for n in range(5)] == [1] * 5
    assert world.table("both", "d2").height == 2 * ROWS


@pytest.mark.parametrize("failures", [1, 9])
def test_what_fails_downstream_is_tried_again_without_the_asset(
    world: World, failures: int
) -> None:
    """A slip downstream would store the same answers three times, or never be made good."""
    answers, left = answers_asset(), [failures]

    @dg.asset(partitions_def=DAYS)
    def flaky(answers: pl.DataFrame) -> pl.DataFrame:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("a slip")
        return answers

    world.request(answers, flaky)
    results = world.finish(answers, flaky)

    assert [result.success for result in results] == [False] * min(failures, 3) + [True] * (
        failures < 3
    )
    assert world.materialized() == ["d0"]
    assert world.materialized("flaky") == ["d0"] * (failures < 3)
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]


@ranged_assets
def test_bad_partition_is_asked_again_while_others_are_served(world: World) -> None:
    """Whoever mends it would get the same failure until the last of its range is stored."""
    answers = answers_asset(backfill_policy=dg.BackfillPolicy.single_run())
    for number in range(ROWS):
        prompt = f"Judge d1 row {number};"
        world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": prompt}})
    world.request(answers, partition=None, tags=RANGE)
    world.drive(answers)
    requests = world.materialize_tick(answers)
    (bad,) = [r for r in requests if r.partition_key == "d1"]
    assert not world.launch(bad, answers).success
    world.sim.clear_faults()
    assert world.request(answers, partition="d1").success
    assert len(world.runs) == 2
    world.finish(answers)
    assert sorted(map(str, world.materialized())) == ["d0", "d1", "d2", "d3", "d4"]


def test_step_that_is_tried_again_has_one_waiter(world: World) -> None:
    """The sensors would materialize once more for the waiter of the first try."""
    failed: list[int] = []

    class Manager(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            if not failed:
                failed.append(1)
                raise dg.RetryRequested(max_retries=1)

        def load_input(self, context: dg.InputContext) -> None: ...

    world.resources["io_manager"] = Manager()
    with while_waiting(world, world.provider_works):
        answers = answers_asset(wait=True)
        result = world.request(answers)
    assert result.success
    assert failed
    world.finish(answers)
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]
    assert world.materialized() == ["d0"]
