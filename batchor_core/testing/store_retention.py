"""The store's contract about retries, exports and prunes of finished runs, and about listeners."""

from collections.abc import Callable

import pytest

from batchor_core.errors import PruneRefusedError, RunError, RunNotFinishedError
from batchor_core.model.records import Event, InFlight
from batchor_core.model.states import RunState
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    RunDriver,
    artifact,
    member,
    new_run,
    outcomes,
    waiter_request,
)


def _kinds(store: OrchestratorStore, run_id: str = "run_a") -> list[str]:
    return [event.kind for event in store.list_events(run_id)]


def finished(store: OrchestratorStore, clock: ManualClock, *, raw: bool = True) -> RunDriver:
    """Return the driver of a closed run with one collected submission."""
    driver = RunDriver(store, clock)
    kept = (artifact("raw"), artifact("errors")) if raw else ()
    driver.collect(driver.seal(2), outcomes(ok=1, failed=1, raw=kept))
    driver.close(RunState.COMPLETED_WITH_FAILURES)
    return driver


class RetentionContract:
    """What every store promises about files of finished runs, and about retries of them."""

    def test_raw_answers_read_back(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Nobody could tell which files hold the answers."""
        finished(store, clock)
        (submission,) = store.list_submissions("run_a")
        assert submission.raw == (artifact("raw"), artifact("errors"))

    def test_submissions_without_raw_answers(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run that keeps none could not be read."""
        finished(store, clock, raw=False)
        assert store.list_submissions("run_a")[0].raw == ()
        assert store.begin_prune("run_a", ["raw"]).pruned == {"raw": "begun"}

    def test_raw_answers_are_exported_before_they_go(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """The only copy of what was paid for would be removed."""
        finished(store, clock)
        with pytest.raises(PruneRefusedError, match="never exported"):
            store.begin_prune("run_a", ["requests", "raw"])
        assert store.get_run("run_a").pruned == {}
        store.begin_prune("run_a", ["requests"])
        run = store.note_export("run_a", files=2, size_bytes=20)
        assert run.exported_at == clock.now()
        run = store.begin_prune("run_a", ["raw"])
        assert run.pruned == {"requests": "begun", "raw": "begun"}

    def test_prunes_are_noted_once(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A repeated clean-up would fill the journal, or open what is done again."""
        finished(store, clock, raw=False)
        for _ in range(2):
            store.begin_prune("run_a", ["items", "requests"])
        for _ in range(2):
            run = store.finish_prune("run_a", ["items", "requests", "raw"])
        assert run.pruned == {"items": "done", "requests": "done"}
        assert store.begin_prune("run_a", ["items"]) == run
        assert _kinds(store)[-2:] == ["artifacts.prune_begun", "artifacts.pruned"]

    def test_a_dry_run_changes_nothing(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Whoever only asks would be told afterwards that files are gone."""
        finished(store, clock)
        before = _kinds(store)
        assert store.begin_prune("run_a", ["items"], is_dry=True).pruned == {}
        with pytest.raises(PruneRefusedError):
            store.begin_prune("run_a", ["raw"], is_dry=True)
        assert _kinds(store) == before

    def test_unfinished_runs_keep_their_files(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would lose what it still has to send."""
        RunDriver(store, clock).seal(1)
        changes: list[Callable[[], object]] = [
            lambda: store.begin_prune("run_a", ["requests"]),
            lambda: store.finish_prune("run_a", ["requests"]),
            lambda: store.note_export("run_a", files=0, size_bytes=0),
            lambda: store.open_retry(new_run("run_b", retry_of="run_a")),
        ]
        for change in changes:
            with pytest.raises(RunNotFinishedError, match="'run_a' is ingesting"):
                change()

    def test_results_that_somebody_waits_for_stay(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Results would be cleaned away before they are delivered."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member()], waiter_request(""))
        driver.close()
        for kind in ("items", "results"):
            with pytest.raises(PruneRefusedError, match="not delivered"):
                store.begin_prune("run_a", [kind])
        store.begin_prune("run_a", ["requests"])

    def test_files_that_another_run_reads_stay(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A retry or a successor would find the files gone that it takes items from."""
        finished(store, clock, raw=False)
        store.open_retry(new_run("run_b", retry_of="run_a"))
        with pytest.raises(PruneRefusedError, match="'run_b' still reads"):
            store.begin_prune("run_a", ["requests"])

    def test_a_retry_names_its_origin(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Nobody could put the answers of a retry in their places."""
        finished(store, clock)
        retry = store.open_retry(new_run("run_b", retry_of="run_a"))
        assert (retry.state, retry.retry_of, retry.predecessor) == (
            RunState.INGESTING,
            "run_a",
            None,
        )
        assert store.open_retry(new_run("run_b", retry_of="run_a")) == retry
        assert store.retries_of("run_a") == [retry]
        assert store.retries_of("run_b") == []
        assert store.successor_of("run_a") is None

    def test_one_retry_takes_items_at_a_time(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Two retries would ask, and pay for, the same items."""
        finished(store, clock)
        store.open_retry(new_run("run_b", retry_of="run_a"))
        with pytest.raises(RunError, match="'run_b' is just taking failed items"):
            store.open_retry(new_run("run_c", retry_of="run_a"))
        lease = store.acquire_lease("run_b", "owner", 60)
        assert lease is not None
        store.finish_ingestion(lease, "print")
        store.open_retry(new_run("run_c", retry_of="run_a"))
        assert [run.run_id for run in store.retries_of("run_a")] == ["run_b", "run_c"]

    def test_a_retry_takes_no_other_runs_id(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run of somebody else would be filled with failed items."""
        finished(store, clock)
        store.create_run(new_run("run_b"))
        with pytest.raises(RunError, match="'run_b' exists and is another"):
            store.open_retry(new_run("run_b", retry_of="run_a"))

    def test_in_flight(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A gauge would show batches that have ended, or another namespace's."""
        assert store.in_flight() == InFlight(batches=0, items=0)
        driver = RunDriver(store, clock)
        submission = driver.submit(driver.seal(3))
        driver.intend(driver.seal(4))
        driver.seal(5)
        assert store.in_flight() == InFlight(batches=2, items=7)
        assert store.in_flight("default") == store.in_flight()
        assert store.in_flight("other") == InFlight(batches=0, items=0)
        driver.end(submission.submission_id)
        store.collect(driver.lease, submission.submission_id, outcomes(ok=3))
        assert store.in_flight() == InFlight(batches=1, items=4)

    def test_listeners_hear_what_the_journal_says(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Metrics would tell another story than the journal."""
        heard: list[Event] = []
        store.subscribe(heard.append)
        finished(store, clock)
        assert [(e.sequence, e.run_id, e.at, e.kind) for e in heard] == [
            (e.sequence, e.run_id, e.at, e.kind) for e in store.list_events("run_a")
        ]
        assert [dict(e.data) for e in heard] == [dict(e.data) for e in store.list_events("run_a")]

    def test_the_journal_by_kind(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A reader of some kinds would have to go through all of them."""
        finished(store, clock)
        wanted = {"chunk.sealed", "run.closed"}
        found = store.list_events("run_a", kinds=wanted)
        assert [event.kind for event in found] == ["chunk.sealed", "run.closed"]
        after = store.list_events("run_a", kinds=wanted, after_sequence=found[0].sequence)
        assert after == found[1:]
        assert store.list_events("run_a", kinds=[]) == []

    def test_the_check_tells_place_and_schema(self, store: OrchestratorStore) -> None:
        """An operator could not tell which store is meant, or that it is of another version."""
        health = store.check()
        assert health.location
        assert health.schema == health.newest
