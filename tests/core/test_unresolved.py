"""Creates that nobody acknowledged: what becomes of them when even looking does not help."""

from datetime import timedelta
from typing import Any

import pytest

from batchor_core import ChunkPolicy, RetryPolicy, RunControlState, RunState
from batchor_core.executor.recover import MOST_VANISHED
from batchor_core.executor.sweep import LOOKS_AFTER
from tests.core.world import World, check_conserved, check_paid_once, statuses

DROPPED = {"kind": "drop_after_commit", "match": {"route": "batches.create"}}
BLIND = {"kind": "http_error", "status": 503, "match": {"route": "batches.list"}}


def _drop_and_blind(world: World) -> None:
    world.sim.faults({**DROPPED, "times": 1}, BLIND)


def test_wait_goes_on_looking(world: World) -> None:
    """An outage of the list would be taken for proof that nothing was created."""
    _drop_and_blind(world)
    run = world.open(3, on_unresolved="wait")
    for _ in range(20):
        run.advance()
        world.clock.sleep(60)
    assert world.batches() == 1
    world.sim.clear_faults()
    run.wait()
    check_conserved(run, 3)
    check_paid_once(world)


def test_resubmit_sends_again_after_the_settling_time(world: World) -> None:
    """Who prefers answers to certainty would wait for ever; the twin must still be swept."""
    _drop_and_blind(world)
    run = world.open(3, on_unresolved="resubmit")
    run.advance()
    assert world.batches() == 1
    for _ in range(10):
        world.clock.sleep(60)
        run.advance()
    assert world.batches() == 2

    world.sim.clear_faults()
    run.wait()
    assert run.status is RunState.SUCCEEDED
    check_conserved(run, 3)


def test_fail_gives_up_the_chunk_and_nothing_else(world: World) -> None:
    """One doubtful batch would take the answers of all others with it."""
    _drop_and_blind(world)
    run = world.open(4, on_unresolved="fail", chunk_policy=ChunkPolicy(max_requests=2))
    for _ in range(10):
        run.advance()
        world.clock.sleep(60)
    world.sim.clear_faults()
    run.wait()
    assert run.status is RunState.COMPLETED_WITH_FAILURES
    assert statuses(run) == {
        "item-0": "unresolved_submission",
        "item-1": "unresolved_submission",
        "item-2": "ok",
        "item-3": "ok",
    }


def test_late_twin_is_cancelled(world: World) -> None:
    """A batch that the provider shows only after we gave it up would be executed beside ours."""
    world.sim.faults(
        {**DROPPED, "times": 1},
        {"kind": "list_lag_seconds", "seconds": 1000, "times": 1},
    )
    run = world.open(3)
    run.advance()
    while world.batches() < 2:
        world.clock.sleep(60)
        run.advance()
    assert run.wait().status is RunState.SUCCEEDED
    twin = world.sim.state.ledger_report()["batches"]
    assert len(twin) == 2

    world.clock.sleep(LOOKS_AFTER[1].total_seconds())
    world.runner.poll_due(5)
    swept = world.events("submission.swept")
    assert [len(event["twins"]) for event in swept if event["twins"]] == [1]


def test_sweeps_end_after_a_day(world: World) -> None:
    """Every submission that was ever given up would be looked for until the end of time."""
    world.sim.faults(
        {"kind": "drop_before_commit", "match": {"route": "batches.create"}, "times": 1}
    )
    run = world.run(3)
    for after in LOOKS_AFTER:
        world.clock.sleep(after.total_seconds())
        world.runner.poll_due(5)
    assert world.events("submission.swept")[-1]["is_last"]
    assert world.runner.store.due_sweeps("default", world.clock.now(), 10) == []
    assert run.status is RunState.SUCCEEDED


def test_creates_that_always_vanish_pause_the_run(world: World) -> None:
    """A host that never shows its batches would be paid for the same rows again and again."""
    world.sim.faults({"kind": "drop_before_commit", "match": {"route": "batches.create"}})
    run = world.open(2)
    for _ in range(60):
        run.advance()
        if run.control_state is RunControlState.PAUSE:
            break
        world.clock.sleep(60)
    assert run.control_reason is not None
    assert run.control_reason.startswith("creates_vanish")
    assert len(world.events("submission.voided")) == MOST_VANISHED


@pytest.mark.parametrize("status", ["expired", "cancelled"])
def test_unexecuted_requests_cost_no_attempt(world: World, status: str) -> None:
    """Items would fail as tried too often that were never tried at all."""
    run = world.open(5, retry_policy=RetryPolicy(max_attempts=1, delay_s=1))
    if status == "expired":
        world.sim.faults({"kind": "expire", "fraction": 0.4, "times": 1})
        run.wait()
    else:
        run.advance()
        (batch_id,) = run.provider_batch_ids()
        run.plan.provider.cancel(batch_id)
        run.wait()
    assert run.status is RunState.SUCCEEDED
    assert [r.attempt_count for r in run.results()] == [1] * 5
    check_paid_once(world)


def test_fail_holds_even_if_the_process_dies(world: World) -> None:
    """A chunk that was to fail, so that nothing is paid twice, would be sent again."""

    class Crash(BaseException):
        pass

    def die(name: str) -> None:
        if name == "recover.voided":
            raise Crash

    _drop_and_blind(world)
    mortal = world.new_runner(probe=die)
    run = mortal.open(world.job(3, on_unresolved="fail"), run_id="run-1")

    def drive() -> None:
        for _ in range(20):
            run.advance()
            world.clock.sleep(60)

    with pytest.raises(Crash):
        drive()
    world.clock.sleep(200)
    run = world.open(3, on_unresolved="fail")
    drive()
    assert world.batches() == 1
    assert set(statuses(run).values()) == {"unresolved_submission"}
    check_conserved(run, 3)


def test_no_create_outlasts_the_end_that_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still would create a batch after others had given it up."""
    run = world.open(3)
    run.ingest()
    store = world.runner.store
    allow = store.allow_create
    ends = []

    def slowly(*arguments: Any, **options: Any) -> bool:
        may_create = allow(*arguments, **options)
        (submission,) = store.list_submissions("run-1")
        ends.append(submission.create_allowed_until)
        if len(ends) == 1:
            world.clock.sleep(100)  # of the lease's 120 seconds
        return may_create

    monkeypatch.setattr(store, "allow_create", slowly)
    run.advance()
    assert ends[1] - ends[0] == timedelta(seconds=100)
    run.wait()
    check_conserved(run, 3)
    check_paid_once(world)
