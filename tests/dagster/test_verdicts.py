"""When a partition materializes, when it fails, and what is tried again."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import batch_asset
from batchor_dagster.constants import TAG_BACKFILL, TAG_RUN_KEY, TAG_WAITER
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import MAX_ATTEMPTS, LaunchState, launches_of
from tests.dagster.world import MODEL, ROWS, World, answers_asset, failure, rows_of

REFUSED = {"kind": "line_error", "status": 400, "message": "Simulated refusal."}


def test_partition_without_a_single_answer_fails_with_its_error_codes(world: World) -> None:
    """An empty table would look like a good day, and nobody would know why it is empty."""
    answers = answers_asset(max_failure_rate=1.0)
    world.sim.faults(**REFUSED)
    world.request(answers)
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    result = world.launch(request, answers)

    assert not result.success
    assert f"{ROWS} of {ROWS} rows failed (100.0%, at most 100.0% may)" in failure(result)
    assert f"invalid_request_error ({ROWS})" in failure(result)
    assert world.materialized() == []


def test_one_row_in_three_is_too_many_unless_it_is_said(world: World) -> None:
    """A team that never heard of the option would build on a table full of holes."""
    answers = answers_asset()
    world.sim.faults(match={"prompt": "row 1;"}, **REFUSED)
    world.request(answers)
    failed = [failure(result) for result in world.finish(answers) if not result.success]

    assert len(failed) == 1
    assert "1 of 3 rows failed (33.3%, at most 10.0% may)" in failed[0]
    assert world.materialized() == []


def test_partition_without_rows_materializes(world: World) -> None:
    """A day on which nothing happened would fail, although nothing went wrong."""

    @batch_asset(model=MODEL, max_failure_rate=0)
    def answers() -> pl.DataFrame:
        return rows_of("d0", 0)

    assert world.request(answers, partition=None).success
    assert all(result.success for result in world.finish(answers))
    assert world.materialized() == [None]
    assert world.table(partition=None).height == 0


def test_verdict_is_final(world: World) -> None:
    """A partition that can only fail again would start a Dagster run every few seconds."""
    answers = answers_asset()
    world.sim.faults(**REFUSED)
    world.request(answers)
    results = world.finish(answers)

    assert [result.success for result in results].count(False) == 1
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "rows failed" in (waiter.reason or "")
    (launch,) = launches_of(waiter, LaunchSpec.of_waiter(waiter))
    assert (launch.state, launch.attempt) == (LaunchState.FAILED, 0)
    assert world.materialize_tick(answers) == []


def test_failed_partition_may_be_asked_again(world: World) -> None:
    """A partition that failed once would be blocked for ever."""
    answers = answers_asset()
    world.sim.faults(**REFUSED)
    world.request(answers)
    world.finish(answers)
    world.sim.clear_faults()
    world.request(answers)
    world.finish(answers)

    assert world.materialized() == ["d0"]


@pytest.mark.parametrize(("most", "is_materialized"), [(0.34, True), (0.33, False), (0.0, False)])
def test_failure_rate_decides(world: World, most: float, *, is_materialized: bool) -> None:
    """A partition full of holes would materialize, or one bad row would stop all."""
    answers = answers_asset(max_failure_rate=most)
    world.sim.faults(match={"prompt": "row 1;"}, **REFUSED)
    world.request(answers)
    world.finish(answers)

    assert world.materialized() == (["d0"] if is_materialized else [])
    state = WaiterState.SERVED if is_materialized else WaiterState.FAILED
    assert [waiter.state for waiter in world.waiters] == [state]
    if is_materialized:
        assert world.table()["batch_status"].to_list() == ["ok", "failed", "ok"]


def test_waiting_asset_gives_its_verdict_itself(world: World) -> None:
    """A blocking run would end green without answers."""
    answers = answers_asset(max_failure_rate=0)
    world.sim.faults(match={"prompt": "row 1;"}, **REFUSED)
    world.request(answers)
    world.drive(answers)
    result = world.request(answers)  # the answers are there: this run delivers them itself

    assert not result.success
    assert "1 of 3 rows failed" in failure(result)
    assert world.waiters[-1].state is WaiterState.FAILED


def test_batch_run_cancelled_by_hand_fails_its_partition(world: World) -> None:
    """The partition would wait for ever for answers that do not come."""
    answers = answers_asset()
    world.request(answers)
    world.store.set_control(world.run.run_id, RunControlState.CANCEL, "too dear")
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    result = world.launch(request, answers)

    assert f"batch run {world.run.run_id!r} was cancelled: too dear" in failure(result)
    assert world.materialize_tick(answers) == []
    assert [waiter.state for waiter in world.waiters] == [WaiterState.FAILED]
    assert world.batches == ["cancelled"]


def test_other_failure_is_tried_again_and_succeeds(world: World) -> None:
    """A full disk or a lost worker would cost the partition, although its answers are there."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    (first,) = world.materialize_tick(answers)
    with _broken_outputs(world):
        assert not world.launch(first, answers).success
    (second,) = world.materialize_tick(answers)

    assert second.run_key != first.run_key
    assert world.launch(second, answers).success
    assert world.materialize_tick(answers) == []
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]


def test_other_failure_is_tried_a_few_times_only(world: World) -> None:
    """A broken IO manager would start a Dagster run every few seconds for ever."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    keys: list[Any] = []
    with _broken_outputs(world):
        while requests := world.materialize_tick(answers):
            keys += [request.run_key for request in requests]
            for request in requests:
                world.launch(request, answers)

    assert len(set(keys)) == len(keys) == MAX_ATTEMPTS
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert waiter.reason == f"its Dagster run failed {MAX_ATTEMPTS} times"


def test_materialize_run_that_goes_on_is_left_alone(world: World) -> None:
    """A slow materialization would be started again with every tick."""
    answers = answers_asset()
    world.request(answers)
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    _record_running(world, request)

    assert world.materialize_tick(answers) == []
    assert [waiter.state for waiter in world.waiters] == [WaiterState.OPEN]


def test_each_of_two_who_asked_is_served(world: World) -> None:
    """The second backfill would never see its partition materialize."""
    answers = answers_asset()
    world.request(answers)
    world.request(answers, tags={TAG_BACKFILL: "other"})
    world.drive(answers)
    requests = world.materialize_tick(answers)

    waiters = {request.tags[TAG_WAITER] for request in requests}
    assert waiters == {waiter.waiter_id for waiter in world.waiters}
    assert len({request.run_key for request in requests}) == 2


def test_unpartitioned_asset_is_counted_as_a_whole(world: World) -> None:
    """Dagster shows a partition's row count elsewhere than that of an asset."""

    @batch_asset(model=MODEL)
    def answers() -> pl.DataFrame:
        return pl.DataFrame({"prompt": ["x", "y"]})

    world.request(answers, partition=None)
    (result,) = world.finish(answers)[-1:]

    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["dagster/row_count"].value == 2
    assert "dagster/partition_row_count" not in metadata


@contextmanager
def _broken_outputs(world: World) -> Iterator[None]:
    """A file lies where the outputs' folder should be."""
    out = world.folder / "out"
    out.write_text("in the way")
    try:
        yield
    finally:
        out.unlink()


def _record_running(world: World, request: dg.RunRequest) -> None:
    """Leave the record of a Dagster run that was launched and has not ended."""
    world.instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            run_id=str(uuid.uuid4()),
            status=dg.DagsterRunStatus.STARTED,
            tags={**request.tags, TAG_RUN_KEY: str(request.run_key)},
        )
    )
