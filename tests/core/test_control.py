"""Pause, resume and cancel at every stage of a run; waiting with a limit."""

import pytest

from batchor_core import Run
from batchor_core.errors import RunPausedError, WaitTimeoutError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.model.states import RunControlState, SubmissionState
from batchor_core.testing.http_counting import CountingProxy
from tests.core.world import Verdict, World, check_conserved, check_paid_once, statuses

CREATE = {"route": "batches.create"}
IMPATIENT = TimingPolicy(lease_s=120, create_timeout_s=0.3, settle_s=180, poll_s=30)
THREES = ChunkPolicy(max_requests=3)


def works(world: World) -> int:
    """Provider batches that still work."""
    batches = world.sim.state.ledger_report()["batches"].values()
    done = {"completed", "cancelled", "failed", "expired"}
    return sum(batch["status"] not in done for batch in batches)


def check_cancelled(world: World, run: Run, count: int) -> None:
    """The run is over, all rows are accounted for, and nothing is left working."""
    assert run.status == "cancelled"
    check_conserved(run, count)
    check_paid_once(world)
    assert works(world) == 0


class TestCancel:
    def test_before_anything_was_sent(self, world: World) -> None:
        """A run cancelled in time would still cost something."""
        run = world.open()
        run.ingest().cancel("not wanted")
        run.wait()
        assert set(statuses(run).values()) == {"run_cancelled"}
        assert run.results()[0].error == {"code": "run_cancelled", "message": "not wanted"}
        assert world.batches() == 0
        check_cancelled(world, run, 6)

    def test_before_anything_was_read(self, world: World) -> None:
        """A run without rows yet could never be closed."""
        run = world.open().cancel()
        run.wait()
        assert run.results() == []
        check_cancelled(world, run, 0)

    def test_half_read(self, world: World) -> None:
        """The rows read so far would be lost, or the tail be read after all."""
        runner = world.new_runner(probe=_raise_at("ingest.committed"))
        run = runner.open(world.job(9, chunk_policy=THREES), run_id="run-1")
        with pytest.raises(_StopError):
            run.advance()
        run.cancel().wait()
        assert set(statuses(run).values()) == {"run_cancelled"}
        check_cancelled(world, run, 3)

    def test_while_batches_work(self, world: World) -> None:
        """What was answered and paid for by then would be thrown away."""
        run = world.open(10)
        run.advance()
        world.clock.sleep(50)
        run.cancel().wait()
        paid = world.sim.ledger().executed()
        assert 0 < paid < 10
        assert run.counts().ok == paid
        assert list(statuses(run).values()).count("run_cancelled") == 10 - paid
        assert run.summary().usage.output_tokens > 0
        check_cancelled(world, run, 10)

    def test_when_batches_have_ended(self, world: World) -> None:
        """Answers that wait at the provider would not be collected."""
        run = world.open(6, chunk_policy=THREES)
        run.advance()
        world.clock.sleep(200)
        run.cancel().wait()
        assert set(statuses(run).values()) == {"ok"}
        check_cancelled(world, run, 6)

    def test_while_retries_wait(self, world: World) -> None:
        """Rows to be retried would vanish, or what their first try cost."""
        world.sim.faults(kind="invalid_json_answer", match={"prompt": "number 1;"})
        run = world.open(structured_output=Verdict, retry_policy=RetryPolicy(delay_s=5000))
        while not run.counts().retrying:
            run.advance()
            world.clock.sleep(30)
        run.cancel().wait()
        assert statuses(run)["item-1"] == "run_cancelled"
        assert run.results()[1].attempt_count == 1
        rows = run.results_frame().collect()
        billed = world.sim.ledger().summary()["billed"]
        assert rows["batch_output_tokens"].sum() == billed["output_tokens"]
        check_cancelled(world, run, 6)

    def test_with_retries_packed(self, world: World) -> None:
        """Rows of a later round would be counted twice or not at all."""
        world.sim.faults(kind="line_error", status=500, match={"prompt": "number 1;"})
        run = world.open(retry_policy=RetryPolicy(delay_s=1, max_attempts=5))
        while len(run.provider_batch_ids()) < 2:
            run.advance()
            world.clock.sleep(30)
        run.cancel().wait()
        assert statuses(run)["item-1"] in {"run_cancelled", "batch_cancelled", "server_error"}
        check_cancelled(world, run, 6)

    @pytest.mark.parametrize("kind", ["drop_after_commit", "drop_before_commit"])
    def test_with_an_unsettled_create(self, world: World, kind: str) -> None:
        """A batch that we do not know of would go on working, and be paid for."""
        world.sim.faults(kind=kind, times=1, match=CREATE)
        run = world.open(timing=IMPATIENT)
        run.advance()
        run.cancel().wait()
        assert world.batches() == (1 if kind == "drop_after_commit" else 0)
        check_cancelled(world, run, 6)

    def test_with_an_intent_only(self, world: World) -> None:
        """An intent that never came to a call would hold the run open."""
        runner = world.new_runner(probe=_raise_at("submit.intended"))
        run = runner.open(world.job(), run_id="run-1")
        with pytest.raises(_StopError):
            run.advance()
        run.cancel().wait()
        assert world.batches() == 0
        check_cancelled(world, run, 6)

    def test_with_room_missing_in_the_queue(self, world: World) -> None:
        """Chunks that wait for room would be sent although nobody wants them."""
        world.sim.faults(kind="http_error", status=429, match=CREATE)
        run = world.open(9, chunk_policy=THREES)
        run.advance()
        run.cancel().wait()
        assert world.batches() == 0
        check_cancelled(world, run, 9)

    def test_wins_over_pause_and_resume_for_good(self, world: World) -> None:
        """A late resume would bring a cancelled run back to life."""
        run = world.open()
        run.advance()
        run.pause().cancel().resume().pause()
        assert run.control_state is RunControlState.CANCEL
        run.wait()
        check_cancelled(world, run, 6)

    def test_a_cancel_call_that_fails_is_repeated(self, world: World) -> None:
        """One failed call would leave the batch working to its end."""
        run = world.open()
        run.advance()
        world.sim.faults(kind="http_error", status=500, times=2, match={"route": "batches.cancel"})
        run.cancel().wait()
        assert world.sim.ledger().executed() < 6
        check_cancelled(world, run, 6)

    def test_asks_once_a_poll_interval(self, world: World) -> None:
        """A batch that keeps its status would be asked for without a pause, for minutes."""
        world.sim.faults(kind="http_error", status=409, match={"route": "batches.cancel"})
        with CountingProxy(world.sim.openai_base_url) as proxy:
            run = world.open(config={"base_url": f"{proxy.base_url}/v1"})
            run.advance()
            run.cancel()
            asked = []
            for _ in range(3):
                for _ in range(4):  # impatient: time stands still
                    run.advance()
                    asked.append(proxy.count("POST", "/cancel"))
                world.clock.sleep(30)
            assert asked == [1] * 4 + [2] * 4 + [3] * 4
            assert proxy.count("GET", run.provider_batch_ids()[0]) == 3
            run.wait()
        assert run.counts().ok == 6  # what it executed all the same
        assert world.kinds().count("submission.cancel_asked") == 1
        check_cancelled(world, run, 6)

    def test_of_a_finished_run_changes_nothing(self, world: World) -> None:
        """Results would be declared invalid after the fact."""
        run = world.run()
        run.cancel().wait()
        assert run.status == "succeeded"
        assert run.control_state is RunControlState.RUN


class TestPause:
    def test_stops_sending_and_resume_goes_on(self, world: World) -> None:
        """A pause would not keep money from being spent."""
        run = world.open()
        run.ingest().pause("budget")
        with pytest.raises(RunPausedError, match="budget"):
            run.wait()
        assert world.batches() == 0
        run.resume().wait()
        assert run.status == "succeeded"
        check_conserved(run, 6)

    def test_stops_reading(self, world: World) -> None:
        """A paused run would read its input to the end."""
        run = world.open().pause()
        assert not run.advance().did
        assert run.record.total_items == 0
        run.resume().wait()
        check_conserved(run, 6)

    def test_goes_on_collecting(self, world: World) -> None:
        """Results would expire at the provider while the run is paused."""
        world.sim.faults(kind="line_error", status=500, match={"prompt": "number 1;"}, times=1)
        run = world.open()
        run.advance()
        run.pause()
        for _ in range(6):
            run.advance()
            world.clock.sleep(30)
        counts = run.counts()
        assert (counts.ok, counts.retrying) == (5, 1)
        assert run.status == "running"
        assert run.advance().next_due is None
        run.resume().wait()
        check_conserved(run, 6)

    def test_settles_unknown_creates(self, world: World) -> None:
        """A batch that was created before the pause would stay unknown until the resume."""
        world.sim.faults(kind="drop_after_commit", times=1, match=CREATE)
        run = world.open(timing=IMPATIENT)
        run.advance()
        run.pause()
        run.advance()
        states = [s.state for s in world.runner.store.list_submissions("run-1")]
        assert states == [SubmissionState.ACTIVE]
        run.resume().wait()
        assert world.batches() == 1

    def test_between_two_chunks_stops_the_second(self, world: World) -> None:
        """A pause would only be seen by the next cycle, after everything was sent."""
        runner = world.new_runner(
            probe=lambda name: name == "submit.activated" and run.pause() and None
        )
        run = runner.open(world.job(9, chunk_policy=THREES), run_id="run-1")
        run.advance()
        assert world.batches() == 1
        run.resume()


class TestWait:
    def test_gives_up_in_time(self, world: World) -> None:
        """A caller with a limit would wait for hours."""
        run = world.open()
        with pytest.raises(WaitTimeoutError, match="run-1"):
            run.wait(45)
        assert 45 <= world.clock.monotonic() < 80
        run.wait()
        assert run.status == "succeeded"

    def test_run_and_wait_gives_up_in_time(self, world: World) -> None:
        """A caller with a limit would wait for hours."""
        with pytest.raises(WaitTimeoutError):
            world.runner.run_and_wait(world.job(), run_id="run-1", timeout_s=10)
        assert world.run().status == "succeeded"
        assert world.batches() == 1

    def test_a_deadline_bounds_what_is_begun(self, world: World) -> None:
        """A cycle with a time box would send everything it has."""
        clock = world.clock
        runner = world.new_runner(
            probe=lambda name: clock.sleep(10) if name == "submit.activated" else None
        )
        run = runner.open(world.job(9, chunk_policy=THREES), run_id="run-1")
        progress = run.advance(15)
        assert world.batches() == 2
        assert progress.next_due is not None
        assert progress.next_due <= clock.now()  # there is more to do at once
        run.advance(15)
        assert world.batches() == 3
        run.wait()
        check_conserved(run, 9)

    def test_start_returns_when_all_is_sent(self, world: World) -> None:
        """Starting a run would block until the provider is done."""
        run = world.runner.start(world.job(9, chunk_policy=THREES), run_id="run-1")
        assert run.status == "running"
        assert run.counts().in_flight == 9
        assert world.clock.monotonic() == 0


class _StopError(Exception):
    pass


def _raise_at(stop: str):  # type: ignore[no-untyped-def]
    def probe(name: str) -> None:
        if name == stop:
            raise _StopError(name)

    def once(name: str) -> None:
        nonlocal stop
        try:
            probe(name)
        except _StopError:
            stop = ""
            raise

    return once
