"""What was paid for is used until it was handed over, whatever is said of reuse."""

from contextlib import nullcontext
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster.constants import TAG_PARTITION_RANGE_END, TAG_PARTITION_RANGE_START
from batchor_dagster.resources import BatchParquetIOManager
from tests.dagster.world import ROWS, World, answers_asset, failure, while_waiting

ALL = {"ops": {"answers": {"config": {"refresh": "all"}}}}
WAYS = [
    pytest.param({"reuse": "off"}, {}, id="reuse off"),
    pytest.param({}, {"run_config": ALL}, id="refresh all"),
]


class FullDisk(BatchParquetIOManager):
    """An IO manager that cannot store anything."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        raise OSError("no space left on device")


def executed(world: World) -> int:
    """How many rows the provider was paid for."""
    return int(world.sim.ledger().executed())


def use_full_disk(world: World, *, full: bool) -> None:
    """Fill the disk, or make room."""
    kind = FullDisk if full else BatchParquetIOManager
    world.resources["io_manager"] = kind(base_path=str(world.folder / "out"))


@pytest.mark.parametrize(("options", "request_options"), WAYS)
def test_technical_failure_is_not_paid_again(
    world: World, options: dict[str, Any], request_options: dict[str, Any]
) -> None:
    """Three failures of a full disk would cost the whole batch once more."""
    answers = answers_asset(**options)
    use_full_disk(world, full=True)
    world.request(answers, **request_options)
    world.finish(answers)
    assert [waiter.state for waiter in world.waiters] == [WaiterState.FAILED]
    use_full_disk(world, full=False)
    world.request(answers, **request_options)
    world.finish(answers)
    assert executed(world) == ROWS
    assert world.table()["batch_reused"].all()
    # Once they are handed over, who asks again gets other ones.
    world.request(answers, **request_options)
    world.finish(answers)
    assert executed(world) == 2 * ROWS


@pytest.mark.parametrize("wait", [False, True])
def test_verdict_is_asked_anew(world: World, wait: bool) -> None:
    """Answers that were judged and found wanting would be judged again and again."""
    answers = answers_asset(reuse="off", max_failure_rate=0.0, wait=wait)
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "row 2;"}})

    with while_waiting(world, world.provider_works) if wait else nullcontext():
        world.request(answers)
    world.finish(answers)
    assert [waiter.state for waiter in world.waiters] == [WaiterState.FAILED]
    before = executed(world)
    world.sim.clear_faults()
    world.request(answers, run_config={"ops": {"answers": {"config": {"wait": False}}}})
    world.finish(answers)
    assert executed(world) - before == ROWS
    assert world.materialized() == ["d0"]


def test_cancelled_work_is_not_paid_again(world: World) -> None:
    """What a cancelled batch had answered already would be paid twice by who thinks again."""
    answers = answers_asset(reuse="off")
    world.request(answers)
    world.provider_works()
    (waiter,) = world.waiters
    world.store.end_waiter(waiter.waiter_id, WaiterState.CANCELLED, "the backfill was cancelled")
    world.drive(answers)
    world.request(answers)
    world.finish(answers)
    assert executed(world) == ROWS
    assert world.materialized() == ["d0"]


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_partition_of_a_range_that_was_stored_is_asked_anew(world: World) -> None:
    """One failed partition would keep its neighbours from getting other answers for ever."""
    answers = answers_asset(
        reuse="off", max_failure_rate=0.0, backfill_policy=dg.BackfillPolicy.single_run()
    )
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "d1 row 2;"}})
    tags = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d2"}
    world.request(answers, partition=None, tags=tags)
    world.finish(answers)
    assert sorted(filter(None, world.materialized())) == ["d0", "d2"]
    world.sim.clear_faults()
    before = executed(world)
    world.request(answers, partition=None, tags=tags)
    world.finish(answers)
    assert executed(world) - before == 3 * ROWS


def test_full_disk_in_the_step_is_not_paid_again(world: World) -> None:
    """A request that waits would lose its answers with the step."""
    answers = answers_asset(reuse="off", wait=True)
    use_full_disk(world, full=True)
    with while_waiting(world, world.provider_works):
        result = world.request(answers)
    assert "no space left" in failure(result)
    use_full_disk(world, full=False)
    assert world.request(answers).success
    assert executed(world) == ROWS
    assert isinstance(world.table(), pl.DataFrame)
