"""The store's contract about runs, leases and the journal."""

from datetime import timedelta

import pytest

from batchor_core.errors import LeaseLostError, RunNotFoundError, StaleTransitionError
from batchor_core.model.records import Usage
from batchor_core.model.states import RunControlState, RunState
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import LEASE_S, RunDriver, new_chunk, new_run, outcomes


class RunContract:
    """What every store promises about runs."""

    def test_created_run_reads_back(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A run would lose what it was created with."""
        run = store.create_run(new_run(spec={"model": "m", "deep": {"list": [1, None]}}))
        assert run == store.get_run("run_a")
        assert (run.state, run.control) == (RunState.INGESTING, RunControlState.RUN)
        assert run.spec == {"model": "m", "deep": {"list": [1, None]}}
        assert run.created_at == clock.now()
        assert (run.total_items, run.checkpoint, run.finished_at) == (0, None, None)

    def test_create_run_twice_returns_the_first(self, store: OrchestratorStore) -> None:
        """A restarted command would overwrite the run that it should go on with."""
        first = store.create_run(new_run())
        assert store.create_run(new_run(scope="other", spec={})) == first
        assert [event.kind for event in store.list_events("run_a")] == ["run.created"]

    def test_unknown_run(self, store: OrchestratorStore) -> None:
        """A mistyped run id would look like an empty run."""
        for ask in (store.get_run, store.counts):
            with pytest.raises(RunNotFoundError, match="run_x"):
                ask("run_x")
        with pytest.raises(RunNotFoundError, match="run_x"):
            store.set_control("run_x", RunControlState.PAUSE, None)
        with pytest.raises(RunNotFoundError, match="run_x"):
            store.acquire_lease("run_x", "owner", LEASE_S)

    def test_list_runs_newest_first(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Listings would be in no order that a person expects, or ignore a filter."""
        for name in ("run_a", "run_b", "run_c"):
            store.create_run(new_run(name, namespace="n" if name == "run_c" else "default"))
        RunDriver(store, clock, "run_d").close()
        listed = [run.run_id for run in store.list_runs()]
        assert listed == ["run_d", "run_c", "run_b", "run_a"]
        assert [run.run_id for run in store.list_runs(namespace="n")] == ["run_c"]
        assert [run.run_id for run in store.list_runs(limit=2)] == ["run_d", "run_c"]
        assert [run.run_id for run in store.list_runs(states=[RunState.SUCCEEDED])] == ["run_d"]
        assert store.list_runs(states=[]) == []

    def test_cancel_wins_for_good(self, store: OrchestratorStore) -> None:
        """A late resume would bring a cancelled run back to spending."""
        store.create_run(new_run())
        assert store.set_control("run_a", RunControlState.PAUSE, "budget").control_reason == (
            "budget"
        )
        store.set_control("run_a", RunControlState.CANCEL, "user")
        run = store.set_control("run_a", RunControlState.RUN, None)
        assert (run.control, run.control_reason) == (RunControlState.CANCEL, "user")
        kinds = [event.kind for event in store.list_events("run_a")]
        assert kinds == ["run.created", "run.controlled", "run.controlled"]

    def test_terminal_run_takes_no_control(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A finished run would look cancelled."""
        closed = RunDriver(store, clock).close()
        assert store.set_control("run_a", RunControlState.CANCEL, "late") == closed

    def test_ingestion_ends_once(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Two ends of ingestion could leave two fingerprints."""
        driver = RunDriver(store, clock)
        driver.seal(3)
        run = store.finish_ingestion(driver.lease, "print")
        assert (run.state, run.fingerprint) == (RunState.RUNNING, "print")
        assert (run.total_items, run.checkpoint) == (3, {"next": 3})
        with pytest.raises(StaleTransitionError, match=r"'run_a'.*wanted running.*is running"):
            store.finish_ingestion(driver.lease, "other")
        with pytest.raises(StaleTransitionError, match="wanted ingesting"):
            driver.seal(1)
        assert store.counts("run_a").total == 3

    def test_terminal_is_terminal(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A run could be closed twice, with two verdicts."""
        driver = RunDriver(store, clock)
        clock.advance(5)
        run = driver.close()
        assert (run.state, run.finished_at) == (RunState.SUCCEEDED, clock.now())
        with pytest.raises(StaleTransitionError, match=r"wanted failed.*is succeeded"):
            store.close_run(driver.lease, RunState.FAILED, error_code="x")

    def test_close_keeps_the_error(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Nobody could tell why a run failed; text that SQL cannot store would crash the close."""
        driver = RunDriver(store, clock)
        message = "nul \x00 and surrogate \ud800 and ünïcödé"
        run = store.close_run(
            driver.lease, RunState.FAILED, error_code="lost", error_message=message
        )
        assert run.error_code == "lost"
        assert run.error_message is not None
        assert run.error_message.endswith("ünïcödé")

    def test_usage_adds_up(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Costs would be reported wrong, or an unknown price would pass for zero."""
        driver = RunDriver(store, clock)
        assert store.usage("run_a") == Usage()
        driver.collect(driver.seal(2), outcomes(ok=2))
        driver.collect(driver.seal(2), outcomes(ok=2))
        assert store.usage("run_a") == Usage(input_tokens=14, output_tokens=6, cost_usd=0.5)
        unknown = Usage(input_tokens=1, cached_input_tokens=1, cost_usd=None)
        driver.collect(driver.seal(1), outcomes(ok=1, usage=unknown))
        assert store.usage("run_a") == Usage(
            input_tokens=15, cached_input_tokens=1, output_tokens=6, cost_usd=None
        )

    def test_journal_pages(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A reader of the journal would miss lines or see them twice."""
        driver = RunDriver(store, clock)
        RunDriver(store, clock, "run_b").seal()
        for _ in range(5):
            driver.seal(1)
        everything = store.list_events("run_a")
        assert [event.kind for event in everything] == ["run.created"] + ["chunk.sealed"] * 5
        paged, last = [], 0
        while page := store.list_events("run_a", after_sequence=last, limit=2):
            paged += page
            last = page[-1].sequence
        assert paged == everything
        assert everything[1].data["item_count"] == 1


class LeaseContract:
    """What every store promises about leases."""

    def test_one_owner_at_a_time(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Two processes would advance one run."""
        store.create_run(new_run())
        lease = store.acquire_lease("run_a", "one", LEASE_S)
        assert lease is not None
        assert lease.expires_at == clock.now() + timedelta(seconds=LEASE_S)
        assert store.acquire_lease("run_a", "two", LEASE_S) is None
        assert store.lease_of("run_a") == lease

    def test_own_lease_may_be_taken_again(self, store: OrchestratorStore) -> None:
        """A restarted process of the same owner would wait for its own lease; the old one wrote."""
        store.create_run(new_run())
        first = store.acquire_lease("run_a", "one", LEASE_S)
        second = store.acquire_lease("run_a", "one", LEASE_S)
        assert first is not None
        assert second is not None
        assert second.token > first.token
        with pytest.raises(LeaseLostError, match="run_a"):
            store.seal_chunk(first, new_chunk(), {})

    def test_takeover_fences_the_old_owner(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A process that hung would come back and write over its successor's work."""
        driver = RunDriver(store, clock)
        old = driver.lease
        clock.advance(LEASE_S + 1)
        assert store.lease_of("run_a") is None
        new = store.acquire_lease("run_a", "two", LEASE_S)
        assert new is not None
        for write in (
            lambda: store.seal_chunk(old, new_chunk(), {}),
            lambda: store.finish_ingestion(old, "print"),
            lambda: store.close_run(old, RunState.FAILED),
            lambda: store.renew_lease(old, LEASE_S),
        ):
            with pytest.raises(LeaseLostError):
                write()
        assert store.counts("run_a").total == 0
        assert store.list_events("run_a")[-1].kind == "lease.taken_over"

    def test_expired_lease_still_fences(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A slow process would lose its work although nobody else had begun."""
        driver = RunDriver(store, clock)
        clock.advance(LEASE_S + 1)
        driver.seal(4)
        renewed = store.renew_lease(driver.lease, LEASE_S)
        assert renewed.token == driver.lease.token
        assert store.lease_of("run_a") == renewed
        assert store.acquire_lease("run_a", "two", LEASE_S) is None

    def test_released_lease_is_free(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """The next process would wait for an unused lease, or a released one would still write."""
        driver = RunDriver(store, clock)
        store.release_lease(driver.lease)
        store.release_lease(driver.lease)
        assert store.lease_of("run_a") is None
        with pytest.raises(LeaseLostError):
            driver.seal()
        assert store.acquire_lease("run_a", "two", LEASE_S) is not None
        store.release_lease(driver.lease)
        assert store.lease_of("run_a") is not None

    def test_token_grows_with_clock_and_without(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A restored backup or a clock set back would repeat a token, and two files a name."""
        driver = RunDriver(store, clock)
        assert driver.lease.token == int(clock.now().timestamp() * 1000)
        clock.jump_wall(-3600)
        assert driver.take_lease().token == driver.lease.token + 1
