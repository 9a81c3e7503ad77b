"""What materializing a batch asset does, before and after its answers are there."""

import os
import signal

import polars as pl

from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import BatchorResource, batch_asset
from batchor_dagster.constants import TAG_BACKFILL
from tests.dagster.world import (
    MODEL,
    ROWS,
    Verdict,
    World,
    answers_asset,
    events,
    failure,
    rows_of,
    while_waiting,
)


def test_request_submits_and_materializes_nothing(world: World) -> None:
    """A request would hold a worker, or claim answers that are not there."""
    answers = answers_asset()
    result = world.request(answers)

    assert result.success
    assert events(result) == ["ASSET_OBSERVATION"]
    assert world.batches == ["in_progress"]
    (seen,) = world.observations()
    assert seen["batchor/progress_batch_run"] == world.run.run_id
    assert seen["batchor/progress_rows_in_flight"] == seen["batchor/progress_rows"] == ROWS


def test_the_sensors_materialize_what_was_requested(world: World) -> None:
    """Answers would be paid for and never be handed over."""
    answers = answers_asset()
    world.request(answers)
    world.finish(answers)

    assert world.materialized() == ["d0"]
    assert world.table()["batch_status"].to_list() == ["ok"] * ROWS
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]
    assert world.sim.ledger().paid_twice() == []


def test_second_request_attaches(world: World) -> None:
    """Impatient clicks would be paid each time."""
    answers = answers_asset()
    world.request(answers)
    again = world.request(answers)

    assert events(again) == ["ASSET_OBSERVATION"]
    assert world.batches == ["in_progress"]
    assert [waiter.run_id for waiter in world.waiters] == [world.run.run_id]
    world.finish(answers)
    assert world.materialized() == ["d0"]


def test_request_with_other_rows_supersedes_the_first(world: World) -> None:
    """Answers to yesterday's rows would be taken for answers to today's."""
    rows = [rows_of("d0")]

    @batch_asset(model=MODEL)
    def answers() -> pl.DataFrame:
        return rows[-1]

    world.request(answers, partition=None)
    rows.append(rows_of("d0", 5))
    again = world.request(answers, partition=None)

    assert again.success
    first, second = world.runs
    assert second.predecessor == first.run_id
    assert first.control_reason == f"superseded by {second.run_id}"
    assert {waiter.run_id for waiter in world.waiters} == {second.run_id}
    world.finish(answers)
    assert world.batches == ["cancelled", "completed"]
    assert world.materialized() == [None]  # both who asked get today's answers
    assert world.table(partition=None).height == 5
    assert world.sim.ledger().paid_twice() == []


def test_successor_sends_nothing_before_its_predecessor_has_ended(world: World) -> None:
    """Rows that the old batches still answer would be paid for at the same time."""
    rows = [rows_of("d0")]

    @batch_asset(model=MODEL)
    def answers() -> pl.DataFrame:
        return rows[-1]

    world.request(answers, partition=None)
    world.sim.faults({"kind": "http_error", "status": 503, "match": {"route": "batches.cancel"}})
    rows.append(rows_of("d0", 5))
    world.request(answers, partition=None)

    assert world.batches == ["in_progress"]
    world.sim.clear_faults()
    world.finish(answers)
    assert world.batches[-1] == "completed"


def test_request_during_a_cancellation_takes_its_place(world: World) -> None:
    """Who changed his mind about a cancellation would have to try again and again."""
    answers = answers_asset()
    world.request(answers)
    world.store.set_control(world.run.run_id, RunControlState.CANCEL, "by hand")
    world.request(answers)

    assert [run.predecessor is None for run in world.runs] == [True, False]
    world.finish(answers)
    assert set(world.materialized()) == {"d0"}


def test_finished_run_is_materialized_at_once(world: World) -> None:
    """Without a daemon there would be no way to get at the answers."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    again = world.request(answers)

    assert "ASSET_MATERIALIZATION" in events(again)
    assert len(world.batches) == 1
    assert world.waiters[-1].state is WaiterState.SERVED


def test_delivered_partition_is_asked_anew(world: World) -> None:
    """Whoever wants other answers would get the old ones for ever."""
    answers = answers_asset(reuse="off")
    world.request(answers)
    world.finish(answers)
    again = world.request(answers)

    assert events(again) == ["ASSET_OBSERVATION"]
    assert len(world.runs) == 2
    assert world.batches == ["completed", "in_progress"]


def test_materializing_again_asks_what_has_changed(world: World) -> None:
    """A partition that is materialized again would be paid for again."""
    rows = [rows_of("d0", 4)]

    @batch_asset(model=MODEL)
    def answers() -> pl.DataFrame:
        return rows[-1]

    world.request(answers, partition=None)
    world.finish(answers)
    first = world.table(partition=None)
    rows.append(rows_of("d0", 6))
    assert world.request(answers, partition=None).success
    world.finish(answers)

    second = world.table(partition=None)
    assert world.sim.ledger().executed() == 6
    assert second["output_text"].to_list()[:4] == first["output_text"].to_list()
    assert second["batch_reused"].to_list() == [True] * 4 + [False] * 2
    assert world.materialized() == [None, None]


def test_unchanged_partition_needs_no_batch(world: World) -> None:
    """A request whose answers are all there would wait for a batch that never comes."""
    answers = answers_asset()
    world.request(answers)
    world.finish(answers)
    assert world.request(answers).success
    world.finish(answers)

    assert world.batches == ["completed"]
    assert world.materialized() == ["d0", "d0"]
    assert world.table()["batch_reused"].all()


def test_waiting_asset_materializes_in_its_own_request(world: World) -> None:
    """Small jobs and tests would need a daemon."""
    answers = answers_asset(wait=True)
    with while_waiting(world, world.provider_works):
        result = world.request(answers)

    assert "ASSET_MATERIALIZATION" in events(result), failure(result)
    assert world.table().height == ROWS
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]
    assert world.materialize_tick(answers) == []


def test_interrupted_wait_cancels_its_batch(world: World) -> None:
    """Stopping the run would leave the provider working for nobody."""
    answers = answers_asset(wait=True)
    with while_waiting(world, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = world.request(answers)

    assert not result.success
    states = [waiter.state for waiter in world.waiters]
    assert states == [WaiterState.CANCELLED], failure(result)
    world.drive(answers)
    assert world.run.state == "cancelled"
    assert world.batches == ["cancelled"]


def test_materialize_sensor_leaves_a_waiting_request_alone(world: World) -> None:
    """A partition would be materialized twice: by its request, and by the sensor."""
    answers = answers_asset(wait=True)
    asked: list[object] = []

    def finish_behind_its_back() -> None:
        world.provider_works()
        asked.extend(world.materialize_tick(answers))

    with while_waiting(world, finish_behind_its_back):
        assert world.request(answers).success
    assert asked == []


def test_partition_without_rows_has_the_full_schema(world: World) -> None:
    """A day without tickets would fail, or break whoever reads its columns."""

    @batch_asset(model=MODEL, output=Verdict)
    def answers() -> pl.DataFrame:
        return rows_of("d0", 0)

    result = world.request(answers, partition=None)
    world.finish(answers)

    assert result.success
    table = world.table(partition=None)
    assert table.height == 0
    assert {"item_id", "label", "score", "batch_status"} <= set(table.columns)
    assert table.schema["score"] == pl.Int64
    assert world.batches == []


def test_unusable_rows_fail_the_request_and_leave_nothing(world: World) -> None:
    """A broken input would leave a run that blocks its partition, or be sent in part."""

    @batch_asset(model=MODEL, id_column="id")
    def answers() -> pl.DataFrame:
        return pl.DataFrame({"id": ["a", "a"], "prompt": ["x", "y"]})

    result = world.request(answers, partition=None)

    assert not result.success
    assert "'a'" in failure(result)
    assert world.batches == []
    assert world.waiters == []
    _assert_no_leftovers(world)


def test_error_of_the_users_function_is_the_users(world: World) -> None:
    """The user would read our words about an error in their code."""

    @batch_asset(model=MODEL)
    def answers() -> pl.DataFrame:
        raise LookupError("no such table")

    result = world.request(answers, partition=None)

    assert not result.success
    assert "no such table" in failure(result)
    assert world.store.list_runs() == []


def test_model_that_no_other_process_finds_is_refused(world: World) -> None:
    """The batch would be paid, and its answers could never be read."""

    class Local(Verdict):
        pass

    answers = answers_asset(output=Local)
    result = world.request(answers)

    assert not result.success
    assert "cannot be imported" in failure(result)
    assert world.batches == []
    assert world.waiters == []


def test_waiting_asset_may_use_a_local_model(world: World) -> None:
    """A notebook or a test would need a module of its own for each model."""

    class Local(Verdict):
        pass

    with while_waiting(world, world.provider_works):
        assert world.request(answers_asset(output=Local, wait=True)).success


def test_request_whose_backfill_is_unknown_goes_on_without_a_hold(world: World) -> None:
    """A hold that cannot be opened would cost the request."""
    result = world.request(answers_asset(), tags={TAG_BACKFILL: "nobody-knows"})

    assert result.success
    assert world.batches == ["in_progress"]


def test_changed_settings_of_the_account_do_not_lose_the_run(world: World) -> None:
    """A rotated key or another namespace's resource would strand what is in flight."""
    answers = answers_asset()
    world.request(answers)
    before = world.resources["openai"]
    world.resources["openai"] = before.model_copy(update={"api_key": "sk-test-rotated-77aa"})
    world.resources["batchor"] = BatchorResource(
        state=str(world.folder / "state.sqlite3"), poll_s=0.001, settle_s=1
    )
    world.finish(answers)

    assert world.materialized() == ["d0"]


def _assert_no_leftovers(world: World) -> None:
    """Nothing of a run that was never sent stays behind but its closed record."""
    claimed = {run.run_id for run in world.runs}
    for run in world.store.list_runs():
        if run.run_id not in claimed:
            assert run.state == "cancelled"
            assert not (world.folder / "artifacts" / "runs" / run.run_id).exists()
