"""The store's contract about what is asked of it again and again, while many runs wait."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from batchor_core.errors import RunNotFoundError
from batchor_core.executor.due import HEAVY_STEPS, due_steps
from batchor_core.model.policies import TimingPolicy
from batchor_core.model.records import Heartbeat, SubmissionRecord
from batchor_core.model.states import RunControlState, RunState, SubmissionState, WaiterState
from batchor_core.store.orchestration import OrchestratorStore, WaiterRequest
from batchor_core.store.protocol import Poll
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    LEASE_S,
    RunDriver,
    member,
    new_run,
    outcomes,
    submission_of,
    waiter_request,
)

SCOPE = "openai/api.openai.com/1/m"
ACCOUNT = "openai/api.openai.com/1"


def _submitted(driver: RunDriver) -> SubmissionRecord:
    return driver.submit(driver.seal(2))


def _ask_to_cancel(driver: RunDriver, seconds: float) -> None:
    later = driver.clock.now() + timedelta(seconds=seconds)
    driver.store.note_cancel(_submitted(driver).submission_id, next_cancel_at=later)


def _put_off(driver: RunDriver, seconds: float) -> None:
    submission = driver.bring(driver.seal(), SubmissionState.ENDED)
    driver.store.put_off_collect(
        driver.lease,
        submission.submission_id,
        until=driver.clock.now() + timedelta(seconds=seconds),
        missing=False,
        reason="503",
    )


_STAGES: dict[str, Callable[[RunDriver], object]] = {
    "sealed": lambda driver: driver.seal(),
    "intended": lambda driver: driver.intend(driver.seal()),
    "active": _submitted,
    "ended": lambda driver: driver.end(_submitted(driver).submission_id),
    "void": lambda driver: driver.bring(driver.seal(), SubmissionState.VOID),
    "cancelling": lambda driver: driver.store.note_poll(
        _submitted(driver).submission_id,
        provider_status="cancelling",
        provider_counts=None,
        next_poll_at=driver.clock.now(),
    ),
    "asked to cancel": lambda driver: _ask_to_cancel(driver, 9000),
    "asked to cancel long ago": lambda driver: _ask_to_cancel(driver, 30),
    "put off": lambda driver: _put_off(driver, 9000),
    "put off long ago": lambda driver: _put_off(driver, 30),
    "retries": lambda driver: driver.collect(driver.seal(2), outcomes(ok=1, retry=1)),
    "done": lambda driver: driver.collect(driver.seal(2), outcomes(ok=2)),
}


class DueWorkContract:
    """What every store promises about finding what is to be done."""

    def test_waiting_runs_are_not_due(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A tick would load all that waits for a provider, to find that nothing is to be done."""
        driver = claimed(store, clock)
        submission = driver.submit(driver.seal())
        driver.store.finish_ingestion(driver.lease, "f")
        store.release_lease(driver.lease)
        clock.advance(3600)
        assert store.due_work("default", clock.now(), 10) == []
        driver.end(submission.submission_id)
        (work,) = store.due_work("default", clock.now(), 10)
        assert work == store.open_work("run_a")

    @pytest.mark.parametrize("control", list(RunControlState))
    @pytest.mark.parametrize("name", [*_STAGES, "half read"])
    def test_nothing_due_is_left_out(
        self, store: OrchestratorStore, clock: ManualClock, name: str, control: RunControlState
    ) -> None:
        """A batch run would wait for ever, since no tick would find it."""
        driver = claimed(store, clock)
        if name != "half read":
            _STAGES[name](driver)
            store.finish_ingestion(driver.lease, "f")
        store.release_lease(driver.lease)
        if control is not RunControlState.RUN:
            store.set_control("run_a", control, "user")
        clock.advance(3600)
        work = store.open_work("run_a")
        timing = TimingPolicy.model_validate({})
        steps = {
            due.step
            for due in due_steps(work, timing, clock.now())
            if due.step in HEAVY_STEPS and due.at <= clock.now()
        }
        heavy = store.due_work("default", clock.now(), 10)
        sending = store.due_work("default", clock.now(), 10, scope=SCOPE)
        assert [w.run.run_id for w in heavy] == ["run_a"] * bool(steps - {"submit"})
        assert [w.run.run_id for w in sending] == ["run_a"] * ("submit" in steps)
        assert store.due_work("default", clock.now(), 10, scope="other") == []
        assert store.due_work("other", clock.now(), 10) == []

    def test_ingestion_that_was_cut_short_is_due(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A claimed run would never be read to its end."""
        driver = claimed(store, clock)
        assert store.due_work("default", clock.now(), 10) == []  # somebody holds its lease
        clock.advance(LEASE_S)
        (work,) = store.due_work("default", clock.now(), 10)
        assert work.run.run_id == driver.run_id

    def test_what_nobody_claimed_is_not_due(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Rows of a request that died would be sent, and paid, for nobody."""
        driver = RunDriver(store, clock)
        driver.seal()
        store.finish_ingestion(driver.lease, "f")
        store.release_lease(driver.lease)
        assert store.due_work("default", clock.now(), 10, scope=SCOPE) == []
        assert store.count_open_runs("default") == {}

    def test_back_offs_and_predecessors_are_waited_for(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would be launched with every tick although it may not send."""
        drivers = [ready(store, clock, name) for name in ("run_a", "run_b")]
        for driver in drivers:
            store.release_lease(driver.lease)
        until = clock.now() + timedelta(seconds=60)
        store.remember_limits(SCOPE, store.scope_limits(SCOPE), until)
        assert store.due_work("default", clock.now(), 10, scope=SCOPE) == []
        clock.advance(60)
        assert run_ids(store, clock, scope=SCOPE) == ["run_a", "run_b"]
        store.supersede_run("run_a", new_run("run_c"))
        store.claim("run_c", [member("c")], waiter_request("c"))
        lease = store.acquire_lease("run_c", "o", LEASE_S)
        assert lease is not None
        store.finish_ingestion(lease, "f")
        store.release_lease(lease)
        assert run_ids(store, clock) == ["run_a"]  # is cancelled; run_c waits for its end

    def test_limits_and_exceptions(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A tick would launch what is going, or more than it may, or always the same first."""
        for name in ("run_a", "run_b", "run_c"):
            driver = claimed(store, clock, name)
            driver.end(driver.submit(driver.seal()).submission_id)
            store.finish_ingestion(driver.lease, "f")
            store.release_lease(driver.lease)
        assert run_ids(store, clock) == ["run_a", "run_b", "run_c"]
        assert [w.run.run_id for w in store.due_work("default", clock.now(), 2)] == [
            "run_a",
            "run_b",
        ]
        assert run_ids(store, clock, but=["run_a"]) == ["run_b", "run_c"]
        store.set_control("run_b", RunControlState.PAUSE, "cannot: 100 % lost")
        assert run_ids(store, clock, but_paused="cannot: 100 %") == ["run_a", "run_c"]
        assert run_ids(store, clock, but_paused="cannot: 1__ %") == ["run_a", "run_b", "run_c"]

    def test_declarations_take_turns(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A small asset's results would be collected after those of ten thousand partitions."""
        for name, digest in (("run_a", "big"), ("run_b", "big"), ("run_c", "small")):
            store.create_run(new_run(name, declaration_digest=digest))
            driver = claimed(store, clock, name)
            driver.end(driver.submit(driver.seal()).submission_id)
            store.release_lease(driver.lease)
        assert run_ids(store, clock) == ["run_a", "run_c", "run_b"]

    def test_open_runs_are_counted(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A tick would not know in which scopes something may be sent."""
        for name in ("run_a", "run_b", "run_c"):
            ready(store, clock, name)
        store.set_control("run_b", RunControlState.PAUSE, "user")
        assert store.count_open_runs("default") == {
            (SCOPE, RunControlState.RUN): 2,
            (SCOPE, RunControlState.PAUSE): 1,
        }
        assert store.count_open_runs("other") == {}
        driver = RunDriver(store, clock, "run_d")
        driver.submit(driver.seal())
        driver.intend(driver.seal())
        driver.end(driver.submit(driver.seal()).submission_id)
        assert store.live_batches([SCOPE, "other"]) == {SCOPE: 2}

    def test_pauses_are_told_in_order(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A pause would never be told, or told with every tick."""
        for name in ("run_a", "run_b", "run_c"):
            ready(store, clock, name)
        for name in ("run_b", "run_a", "run_c"):
            store.set_control(name, RunControlState.PAUSE, f"reason of {name}")
        store.set_control("run_c", RunControlState.RUN, None)
        first = store.pauses_since("default", 0, 1)
        assert [event.run_id for event in first] == ["run_b"]
        rest = store.pauses_since("default", first[-1].sequence, 10)
        assert [event.run_id for event in rest] == ["run_a"]
        assert store.pauses_since("default", rest[-1].sequence, 10) == []
        store.set_control("run_b", RunControlState.PAUSE, "another reason")
        again = store.pauses_since("default", rest[-1].sequence, 10)
        assert [event.data["reason"] for event in again] == ["another reason"]

    def test_setbacks_let_others_go_first(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run that fails, or kills its process, would stand in front of all others for ever."""
        for name in ("run_a", "run_b"):
            driver = claimed(store, clock, name)
            driver.end(driver.submit(driver.seal()).submission_id)
            store.finish_ingestion(driver.lease, "f")
            store.release_lease(driver.lease)
        rests = []
        for number in range(9):
            assert store.begin_advance("run_a") == number
            assert run_ids(store, clock) == ["run_b"]
            rests.append(0)
            while "run_a" not in run_ids(store, clock):
                clock.advance(60)
                rests[-1] += 1
            assert run_ids(store, clock) == ["run_b", "run_a"]
        assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        store.begin_advance("run_a")
        store.end_advance("run_a")
        assert run_ids(store, clock) == ["run_a", "run_b"]
        store.begin_advance("run_a")
        store.set_control("run_a", RunControlState.CANCEL, "user")
        assert run_ids(store, clock) == ["run_a", "run_b"]
        with pytest.raises(RunNotFoundError, match="run_gone"):
            store.begin_advance("run_gone")

    def test_setbacks_hold_up_sending_as_well(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run that fails while it sends would be launched with every tick."""
        driver = ready(store, clock, "run_a")
        store.release_lease(driver.lease)
        store.begin_advance("run_a")
        assert run_ids(store, clock, scope=SCOPE) == []
        clock.advance(60)
        assert run_ids(store, clock, scope=SCOPE) == ["run_a"]

    def test_runs_that_stand_still_are_found(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run that nobody can bring to its end would keep its backfill open for ever."""
        start = clock.now()
        still, moving = claimed(store, clock, "run_still"), claimed(store, clock, "run_moving")
        chunk, submission = still.seal(), moving.submit(moving.seal())
        clock.advance(100)
        assert store.unmoved_runs("default", clock.now(), 10) == {
            "run_still": start,
            "run_moving": start,
        }
        assert store.unmoved_runs("default", start, 10) == {}
        still.intend(chunk)  # a try is no move
        moving.end(submission.submission_id)
        ended_at = clock.now()
        clock.advance(1)
        assert store.unmoved_runs("default", ended_at, 10) == {"run_still": start}
        assert list(store.unmoved_runs("default", clock.now(), 1)) == ["run_still"]
        assert store.unmoved_runs("other", clock.now(), 10) == {}
        store.set_control("run_still", RunControlState.PAUSE, "user")
        later = clock.now()
        clock.advance(1)
        assert store.unmoved_runs("default", clock.now(), 10) == {
            "run_moving": ended_at,
            "run_still": later,
        }

    def test_many_at_once(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """One query a run would be made, or more than a database takes in one."""
        lease = RunDriver(store, clock).lease
        store.create_run(new_run("run_b"))
        names = [f"run_{number}" for number in range(1100)]
        assert store.leased([*names, "run_a", "run_b"]) == {"run_a"}
        assert set(store.get_runs(["run_b", *names, "run_a"])) == {"run_a", "run_b"}
        assert store.get_runs(["run_b"])["run_b"] == store.get_run("run_b")
        clock.advance(LEASE_S)
        assert store.leased([lease.run_id]) == set()


class HeartbeatContract:
    """What every store promises about signs of life."""

    def test_last_heartbeats_are_kept(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Nobody could tell whether anything will carry on what is asked for."""
        assert store.heartbeats("default") == {}
        store.note_heartbeat("default", "one", 30)
        first = clock.now()
        clock.advance(5)
        store.note_heartbeat("default", "two", 60)
        store.note_heartbeat("other", "one", 1)
        assert store.heartbeats("default") == {
            "one": Heartbeat(name="one", at=first, every_s=30),
            "two": Heartbeat(name="two", at=clock.now(), every_s=60),
        }
        clock.advance(5)
        store.note_heartbeat("default", "one", 20)
        beat = store.heartbeats("default")["one"]
        assert (beat.at, beat.every_s) == (clock.now(), 20)


class ManyPollsContract:
    """What every store promises about polling many submissions together."""

    def test_polls_are_noted_together(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Ten thousand polls that see nothing new would take ten thousand transactions."""
        driver = RunDriver(store, clock)
        same, moved, counted, ended, late = (driver.submit(driver.seal()) for _ in range(5))
        driver.end(late.submission_id)
        later = clock.now() + timedelta(seconds=90)
        before = len(store.list_events("run_a"))
        polls = [
            Poll(submission=same, status="validating"),
            Poll(submission=moved, status="in_progress", counts={"done": 1}),
            Poll(submission=counted, counts={"done": 2}),
            Poll(submission=ended, status="completed", result={"output_file": "f"}),
            Poll(submission=late, status="in_progress", counts={"done": 9}),
        ]
        assert store.note_polls(polls, later) == 1
        seen = [submission_of(store, poll.submission.submission_id) for poll in polls]
        assert [s.provider_status for s in seen] == [
            "validating",
            "in_progress",
            "validating",
            "completed",
            "completed",
        ]
        assert [s.provider_counts for s in seen] == [None, {"done": 1}, {"done": 2}, None, None]
        assert [s.next_poll_at for s in seen] == [later, later, later, None, None]
        assert seen[3].state is SubmissionState.ENDED
        assert seen[3].provider_result == {"output_file": "f"}
        events = store.list_events("run_a")[before:]
        assert [(e.kind, e.data["submission_id"]) for e in events] == [
            ("submission.polled", moved.submission_id),
            ("submission.ended", ended.submission_id),
        ]
        assert store.note_polls([], later) == 0

    def test_polls_that_saw_nothing_put_off(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A provider that is down would be asked again at once, for ever."""
        driver = RunDriver(store, clock)
        submission = driver.submit(driver.seal())
        later = clock.now() + timedelta(seconds=90)
        assert store.note_polls([Poll(submission=submission)], later) == 0
        now = submission_of(store, submission.submission_id)
        assert (now.next_poll_at, now.provider_status) == (later, submission.provider_status)

    def test_accounts_are_found(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """An account would be polled too early, or never; or another namespace's key be needed."""
        one = RunDriver(store, clock)
        other = one.intend(one.seal(), account="other")
        one.activate(other.submission_id, poll_in_s=10)
        for _ in range(2):
            one.activate(one.intend(one.seal()).submission_id, poll_in_s=20)
        assert store.accounts_to_poll("default", clock.now()) == {}
        clock.advance(15)
        assert store.accounts_to_poll("default", clock.now()) == {"other": "run_a"}
        clock.advance(15)
        assert list(store.accounts_to_poll("default", clock.now())) == ["other", ACCOUNT]
        assert store.accounts_to_poll("else", clock.now()) == {}

    def test_due_or_not(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """What a list shows could not be noted before it is due; all would be polled for itself."""
        driver = RunDriver(store, clock)
        late, soon, due = (
            driver.activate(driver.intend(driver.seal()).submission_id, poll_in_s=seconds)
            for seconds in (60, 40, 0)
        )
        ids = [s.submission_id for s in store.other_polls(ACCOUNT, clock.now(), 10)]
        assert ids == [soon.submission_id, late.submission_id]
        assert len(store.other_polls(ACCOUNT, clock.now(), 1)) == 1
        assert store.due_polls(ACCOUNT, clock.now(), 10) == [due]
        assert store.count_polls(ACCOUNT) == 3
        driver.end(due.submission_id)
        assert store.count_polls(ACCOUNT) == 2
        assert store.count_polls("other") == 0


class ManyWaitersContract:
    """What every store promises about finding waiters among many."""

    def test_waiters_are_found_by_what_they_have_in_common(self, store: OrchestratorStore) -> None:
        """All that wait would be read to find those of one backfill."""
        self.add(store, "w1", {"backfill": "b1", "dagster_run": "r1"})
        self.add(store, "w2", {"backfill": 'b"2 ü%', "dagster_run": "r2"})
        self.add(store, "w3", {"backfill": None, "dagster_run": "r3"}, asset="x/y")
        self.add(store, "w4", {"dagster_run": "r4"})
        named = {"w1": {"backfill": ["b1", "b9"]}, "w2": {"backfill": ['b"2 ü%']}}
        for waiter_id, payload in named.items():
            assert self.ids(store, payload=payload) == [waiter_id]
        both = {"backfill": ["b1"], "dagster_run": ["r2"]}
        assert self.ids(store, payload=both) == []
        assert self.ids(store, assets=["x/y"]) == ["w3"]
        assert self.ids(store, limit=2) == ["w1", "w2"]
        assert self.ids(store, after="w2") == ["w3", "w4"]
        assert self.ids(store, after="gone") == []
        with pytest.raises(ValueError, match="no name of a field"):
            self.ids(store, payload={"a'b": ["c"]})

    def test_waiters_are_counted_by_what_they_have_in_common(
        self, store: OrchestratorStore
    ) -> None:
        """A hold would be closed under those who wait, or stay open for nobody."""
        for number in range(3):
            self.add(store, f"w{number}", {"backfill": "b1", "hold": "h1"})
        self.add(store, "w3", {"backfill": "b1", "hold": None})
        self.add(store, "w4", {"backfill": "b1", "hold": "h1"}, asset="x/y")
        store.end_waiter("w0", WaiterState.SERVED, None)
        groups = store.waiter_groups("default", ["backfill", "hold"])
        found = {(group.asset, *group.fields): group.count for group in groups}
        assert found == {("a/b", "b1", "h1"): 2, ("a/b", "b1", None): 1, ("x/y", "b1", "h1"): 1}
        assert store.waiter_groups("other", ["backfill"]) == []

    def test_ready_waiters_take_turns(self, store: OrchestratorStore) -> None:
        """Three partitions would wait until ten thousand that came before are served."""
        for number in range(4):
            self.add(store, f"big{number}", {"backfill": "b1"})
        for number in range(2):
            self.add(store, f"small{number}", {"backfill": "b2"})
        self.add(store, "other", {"backfill": None}, asset="x/y")
        self.add(store, "open", {"backfill": "b3"}, run_id="run_b")
        assert store.ready_waiters("default", "backfill", per_group=3, limit=10) == []
        lease = store.acquire_lease("run_a", "o", LEASE_S)
        assert lease is not None
        store.finish_ingestion(lease, "f")
        store.close_run(lease, RunState.SUCCEEDED)
        ready = store.ready_waiters("default", "backfill", per_group=3, limit=10)
        assert [w.waiter_id for w in ready] == ["big0", "small0", "other", "big1", "small1", "big2"]
        assert ready[0] == store.get_waiter("big0")
        few = store.ready_waiters("default", "backfill", per_group=1, limit=2)
        assert [w.waiter_id for w in few] == ["big0", "small0"]

    def add(
        self,
        store: OrchestratorStore,
        waiter_id: str,
        payload: dict[str, Any],
        *,
        asset: str = "a/b",
        run_id: str = "run_a",
    ) -> None:
        """Record a waiter of a run."""
        store.create_run(new_run(run_id))
        request = WaiterRequest(
            waiter_id=waiter_id, namespace="default", asset=asset, partitions=(), payload=payload
        )
        store.claim(run_id, [], request)

    def ids(self, store: OrchestratorStore, **which: Any) -> list[str]:
        """Return the waiters of a kind."""
        return [waiter.waiter_id for waiter in store.list_waiters(**which)]


def claimed(store: OrchestratorStore, clock: ManualClock, run_id: str = "run_a") -> RunDriver:
    """Return the driver of a run that stands for something."""
    driver = RunDriver(store, clock, run_id)
    store.claim(run_id, [member(run_id)], waiter_request(run_id))
    return driver


def ready(store: OrchestratorStore, clock: ManualClock, run_id: str) -> RunDriver:
    """Return the driver of a run that has something to send."""
    driver = claimed(store, clock, run_id)
    driver.seal()
    store.finish_ingestion(driver.lease, "f")
    return driver


def run_ids(store: OrchestratorStore, clock: ManualClock, **which: Any) -> list[str]:
    """Return the runs that are due, in their order."""
    return [work.run.run_id for work in store.due_work("default", clock.now(), 10, **which)]
