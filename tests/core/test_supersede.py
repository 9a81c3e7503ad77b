"""The same run id with another job: refused, or superseded without paying twice."""

import pytest

from batchor_core import FingerprintMismatchError, RunControlState, RunState
from tests.core.world import World, check_conserved, check_paid_once, items


def _changed(count: int) -> list[object]:
    """Rows of which all but the first have another prompt."""
    return [
        *items(1),
        *[type(i)(item_id=i.item_id, payload=f"{i.payload}!") for i in items(count)[1:]],
    ]


def test_other_rows_are_refused_by_default(world: World) -> None:
    """A run would silently answer rows that nobody has any more."""
    world.open(4).advance()
    with pytest.raises(FingerprintMismatchError, match="other input rows or prompts"):
        world.open(_changed(4))


def test_superseding_cancels_collects_and_then_sends(world: World) -> None:
    """The old batches would go on answering rows beside the new ones."""
    first = world.open(4)
    first.advance()
    second = world.open(_changed(4), on_change="supersede")
    assert second.run_id == "run-1.2"
    assert world.batches() == 1

    second.wait()

    first.refresh()
    assert first.status is RunState.CANCELLED
    assert first.control_reason == "superseded by run-1.2"
    assert second.status is RunState.SUCCEEDED
    check_conserved(second, 4)
    check_paid_once(world)


def test_the_same_change_again_goes_on_with_the_successor(world: World) -> None:
    """A restarted command would supersede its own run, over and over."""
    world.open(4).advance()
    world.open(_changed(4), on_change="supersede").wait()
    again = world.open(_changed(4), on_change="supersede")

    assert again.run_id == "run-1.2"
    assert again.is_finished
    assert world.batches() == 2


def test_a_further_change_gets_a_further_successor(world: World) -> None:
    """The second change would be lost, or end in an id that exists already."""
    world.open(4).advance()
    world.open(_changed(4), on_change="supersede")
    third = world.open(5, on_change="supersede")
    # The second was never read to its end: nothing of it was sent, so it simply begins again.
    assert third.run_id == "run-1.2"
    third.wait()
    check_conserved(third, 5)


def test_finished_run_is_superseded_at_once(world: World) -> None:
    """A new version of the input would wait for something that is over."""
    world.run(3)
    second = world.open(_changed(3), on_change="supersede").wait()
    assert (second.run_id, second.status) == ("run-1.2", RunState.SUCCEEDED)


def test_successor_waits_while_its_predecessor_cannot_be_cancelled(world: World) -> None:
    """Rows that the old batches still answer would be paid for at the same time."""
    world.open(4).advance()
    world.sim.faults({"kind": "http_error", "status": 503, "match": {"route": "batches.cancel"}})
    second = world.open(_changed(4), on_change="supersede")
    for _ in range(4):
        second.advance()
    assert world.batches() == 1
    assert second.counts().ready == 4

    world.sim.clear_faults()
    second.wait()
    assert second.status is RunState.SUCCEEDED


def test_pausing_a_successor_leaves_its_predecessor_ending(world: World) -> None:
    """A pause would keep batches working that nobody wants."""
    world.open(4).advance()
    second = world.open(_changed(4), on_change="supersede")
    second.pause("by hand")
    for _ in range(6):
        second.advance()
        world.clock.sleep(31)
    assert world.runner.get_run("run-1").status is RunState.CANCELLED
    assert second.control_state is RunControlState.PAUSE
    assert world.batches() == 1
