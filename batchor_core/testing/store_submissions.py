"""The store's contract about chunks, submissions, polls and scopes."""

from datetime import timedelta

import pytest

from batchor_core.errors import RowConservationError, StaleTransitionError, StoreError
from batchor_core.model.records import NewChunk, RunCounts, ScopeLimits, SubmissionRecord
from batchor_core.model.states import ChunkState, RunState, SubmissionState
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.store.protocol import Poll, ScopeFull
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    LEASE_S,
    RunDriver,
    artifact,
    new_chunk,
    new_submission,
    outcomes,
    submission_of,
)


class ChunkContract:
    """What every store promises about chunks."""

    def test_sealed_chunk_reads_back(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A chunk would point at another file than the one that was sealed."""
        driver = RunDriver(store, clock)
        new = new_chunk(5, cost_usd=None, not_before=clock.now() + timedelta(microseconds=1))
        chunk = store.seal_chunk(driver.lease, new, {"offset": 5})
        assert chunk == store.get_chunk("run_a", 0)
        assert {name: getattr(chunk, name) for name in NewChunk.__dataclass_fields__} == {
            name: getattr(new, name) for name in NewChunk.__dataclass_fields__
        }
        assert (chunk.seq, chunk.state, chunk.refusals) == (0, ChunkState.READY, 0)
        assert store.get_run("run_a").checkpoint == {"offset": 5}
        with pytest.raises(StoreError, match="run_a"):
            store.get_chunk("run_a", 1)

    def test_chunks_are_listed_in_order(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Results would be written out of order, or a filter ignored."""
        driver = RunDriver(store, clock)
        for _ in range(4):
            driver.seal()
        driver.intend(store.get_chunk("run_a", 1))
        assert [chunk.seq for chunk in store.list_chunks("run_a")] == [0, 1, 2, 3]
        ready = store.list_chunks("run_a", states=[ChunkState.READY], limit=2)
        assert [chunk.seq for chunk in ready] == [0, 2]

    def test_retry_chunks_are_not_sealed(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Retried items would be counted as new input."""
        driver = RunDriver(store, clock)
        with pytest.raises(StoreError, match="round 0"):
            driver.seal(round=1)

    def test_split_keeps_the_items(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A split would lose items or count them twice."""
        driver = RunDriver(store, clock)
        driver.seal(5)
        with pytest.raises(RowConservationError, match="5 items became 4"):
            store.split_chunk(driver.lease, 0, [new_chunk(2), new_chunk(2)])
        assert store.get_chunk("run_a", 0).state is ChunkState.READY
        children = store.split_chunk(driver.lease, 0, [new_chunk(2), new_chunk(3)])
        assert [(child.seq, child.parent_seq) for child in children] == [(1, 0), (2, 0)]
        assert store.counts("run_a") == RunCounts(total=5, ready=5)
        with pytest.raises(StaleTransitionError, match=r"seq 0.*wanted split.*is split"):
            store.split_chunk(driver.lease, 0, [new_chunk(5)])

    def test_abandon_is_all_or_none(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A chunk in flight would be given up although it is being paid for."""
        driver = RunDriver(store, clock)
        driver.intend(driver.seal(1))
        driver.seal(2)
        with pytest.raises(StaleTransitionError, match=r"seq 0.*wanted abandoned.*is submitted"):
            store.abandon_chunks(driver.lease, [1, 0], "run_cancelled", "m")
        with pytest.raises(StaleTransitionError, match="does not exist"):
            store.abandon_chunks(driver.lease, [9], "run_cancelled", "m")
        store.abandon_chunks(driver.lease, [], "run_cancelled", "m")
        assert store.counts("run_a") == RunCounts(total=3, in_flight=1, ready=2)
        store.abandon_chunks(driver.lease, [1], "request_too_large", "m")
        chunk = store.get_chunk("run_a", 1)
        assert (chunk.state, chunk.error_code) == (ChunkState.ABANDONED, "request_too_large")
        assert store.counts("run_a") == RunCounts(total=3, in_flight=1, failed=2)

    def test_results_belong_to_round_0(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """The result table would have parts that repeat rows."""
        driver = RunDriver(store, clock)
        driver.seal(2)
        store.set_results_part(driver.lease, 0, artifact("results"))
        assert store.get_chunk("run_a", 0).results == artifact("results")
        store.split_chunk(driver.lease, 0, [new_chunk(1), new_chunk(1)])
        with pytest.raises(StoreError, match="round 0"):
            store.set_results_part(driver.lease, 1, artifact("results"))


class SubmissionContract:
    """What every store promises about submissions."""

    def test_reused_answers_take_no_batch(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Answered rows would be sent as well, or rows that are not answered be dropped."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(5)
        submission = new_submission("run_a", chunk, chunk_seq=1, reserved_requests=0)

        def reuse(answered: int, rest: int) -> None:
            store.reuse_answers(
                driver.lease,
                0,
                answered=new_chunk(answered),
                rest=new_chunk(rest) if rest else None,
                submission=submission,
                collected=outcomes(ok=answered, reused_count=answered),
            )

        with pytest.raises(RowConservationError, match="5 items became 4"):
            reuse(2, 2)
        assert store.get_chunk("run_a", 0).state is ChunkState.READY
        reuse(2, 3)
        states = [(c.seq, c.state, c.parent_seq) for c in store.list_chunks("run_a")]
        assert states == [
            (0, ChunkState.SPLIT, None),
            (1, ChunkState.DONE, 0),
            (2, ChunkState.READY, 0),
        ]
        found = submission_of(store, submission.submission_id)
        assert (found.state, found.chunk_seq) == (SubmissionState.COLLECTED, 1)
        assert (found.ok_count, found.reused_count) == (2, 2)
        assert store.counts("run_a") == RunCounts(total=5, ok=2, reused=2, ready=3)
        with pytest.raises(StaleTransitionError, match="wanted split"):
            reuse(5, 0)
        assert not store.get_run("run_a").reuse_done
        assert store.finish_reuse(driver.lease).reuse_done

    def test_one_create_in_doubt_at_a_time(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Batches that carry no key of ours would be taken for one another."""
        drivers = [RunDriver(store, clock, f"run_{name}") for name in "abc"]
        accounts = ("keyless", "keyless", "other")
        mine, theirs, others = (
            driver.intend(driver.seal(1), account=account).submission_id
            for driver, account in zip(drivers, accounts, strict=True)
        )
        since = clock.now() - timedelta(seconds=100)

        def allow(driver: RunDriver, submission_id: str) -> bool:
            return store.allow_create(
                driver.lease, submission_id, None, server_time=None, alone_since=since
            )

        assert not store.has_create_in_doubt("keyless", since)  # intended, but not yet under way
        assert allow(drivers[0], mine)
        assert not allow(drivers[1], theirs)
        assert allow(drivers[2], others)  # another account
        assert submission_of(store, theirs).create_allowed_until is None
        store.create_unknown(drivers[0].lease, mine, server_time=None, message="reset")
        assert not allow(drivers[1], theirs)
        assert store.has_create_in_doubt("keyless", clock.now() - timedelta(microseconds=1))
        assert not store.has_create_in_doubt("keyless", clock.now())  # it settled without a word
        drivers[0].activate(mine)
        assert allow(drivers[1], theirs)

    def test_batches_of_a_credential(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Another account's batch would prove that today's key is of the right account."""
        driver = RunDriver(store, clock)
        asked = [("mine", "a"), ("mine", "b"), ("mine", "a"), ("other", "a"), ("mine", "a")]
        sent = [
            driver.intend(driver.seal(1), account=account, credential=credential)
            for account, credential in asked
        ]
        batches = [driver.activate(one.submission_id).provider_batch_id for one in sent[:-1]]
        assert store.batches_sent_under("mine", "a", 9) == [batches[2], batches[0]]
        assert store.batches_sent_under("mine", "a", 1) == [batches[2]]
        assert store.batches_sent_under("mine", "c", 9) == []

    def test_batch_that_was_another_s(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A batch adopted on suspicion would keep its chunk for ever, with another's answers."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(3)
        submission = driver.intend(chunk)
        store.allow_create(driver.lease, submission.submission_id, None, server_time=None)
        allowed = submission_of(store, submission.submission_id)
        active = store.activate(
            driver.lease,
            submission.submission_id,
            provider_batch_id="batch_x",
            provider_status="in_progress",
            next_poll_at=clock.now(),
            adopted=True,
            is_provisional=True,
        )
        assert active.is_provisional
        account = submission.account
        assert store.known_batches(account, ["batch_x", "batch_y"]) == {"batch_x": True}
        assert store.known_batches("other", ["batch_x"]) == {}
        assert store.batches_sent_under(account, submission.credential, 9) == []
        with pytest.raises(StaleTransitionError, match="wanted intended"):
            store.disprove(driver.lease, submission.submission_id, reason="too early")
        driver.end(submission.submission_id)
        disproved = store.disprove(driver.lease, submission.submission_id, reason="foreign")
        assert disproved == allowed
        assert store.known_batches(account, ["batch_x"]) == {}
        assert store.counts("run_a") == RunCounts(total=3, in_flight=3)
        assert store.list_events("run_a")[-1].kind == "submission.disproved"

    def test_life_of_a_submission(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A crash would leave less than recovery needs to find the batch again."""
        driver = RunDriver(store, clock)
        submission = driver.intend(driver.seal(4))
        assert submission.state is SubmissionState.INTENDED
        assert submission.fencing_token == driver.lease.token
        assert submission.create_allowed_until is None
        clock.advance(10)
        renewed = store.renew_lease(driver.lease, LEASE_S)
        asked_at = clock.now() - timedelta(seconds=3)
        store.allow_create(driver.lease, submission.submission_id, "file_1", server_time=asked_at)
        allowed = submission_of(store, submission.submission_id)
        assert allowed.create_allowed_until == renewed.expires_at
        assert (allowed.upload_ref, allowed.create_server_time) == ("file_1", asked_at)
        active = driver.activate(submission.submission_id)
        assert active.state is SubmissionState.ACTIVE
        assert active.provider_batch_id == f"batch_{submission.submission_id}"
        driver.end(submission.submission_id)
        retry_at = clock.now() + timedelta(seconds=60)
        done = store.collect(
            driver.lease,
            submission.submission_id,
            outcomes(ok=2, failed=1, retry=1, reused_count=1, retry_at=retry_at, quarantined=2),
        )
        assert done == submission_of(store, submission.submission_id)
        assert (done.ok_count, done.failed_count, done.retry_count) == (2, 1, 1)
        assert (done.retry_at, done.quarantined, done.retries_packed) == (retry_at, 2, False)
        assert done.provider_result == {"output_file": "f"}
        assert store.get_chunk("run_a", 0).state is ChunkState.DONE
        assert store.counts("run_a") == RunCounts(total=4, ok=2, failed=1, retrying=1, reused=1)

    def test_one_submission_per_chunk(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A chunk would be paid for twice."""
        driver = RunDriver(store, clock)
        chunk = driver.seal()
        driver.intend(chunk)
        with pytest.raises(StaleTransitionError, match=r"seq 0.*wanted submitted.*is submitted"):
            driver.try_intend(chunk)
        assert len(store.list_submissions("run_a")) == 1

    def test_void_gives_the_chunk_back(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A refused chunk would be lost, or sent again at once."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(3)
        later = clock.now() + timedelta(seconds=60)
        for refusals in (1, 2):
            submission = driver.intend(chunk)
            chunk = store.void(
                driver.lease, submission.submission_id, reason="429", not_before=later
            )
            assert (chunk.state, chunk.refusals) == (ChunkState.READY, refusals)
            assert chunk.not_before == later
        active = driver.submit(chunk)
        with pytest.raises(StaleTransitionError, match=r"wanted void.*is active"):
            store.void(driver.lease, active.submission_id, reason="no", not_before=None)
        driver.end(active.submission_id)
        store.void(driver.lease, active.submission_id, reason="capacity", not_before=None)
        assert store.counts("run_a") == RunCounts(total=3, ready=3)
        states = [submission.state for submission in store.list_submissions("run_a")]
        assert states == [SubmissionState.VOID] * 3
        assert store.list_submissions("run_a", states=[SubmissionState.ACTIVE]) == []

    def test_unknown_create_stays_intended(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A create of unknown outcome would be sent again before it was looked for."""
        driver = RunDriver(store, clock)
        submission_id = driver.intend(driver.seal()).submission_id
        server_time = clock.now() - timedelta(seconds=2)
        store.create_unknown(driver.lease, submission_id, server_time=server_time, message="504")
        submission = submission_of(store, submission_id)
        assert submission.state is SubmissionState.INTENDED
        assert submission.create_ended_at == clock.now()
        assert submission.create_server_time == server_time
        store.create_unknown(driver.lease, submission_id, server_time=None, message="again")
        assert submission_of(store, submission_id).create_server_time == server_time
        driver.activate(submission_id)
        with pytest.raises(StaleTransitionError, match=r"wanted intended.*is active"):
            store.allow_create(driver.lease, submission_id, None, server_time=None)

    def test_collected_counts_must_add_up(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Rows would vanish silently between the provider and the results."""
        driver = RunDriver(store, clock)
        submission = driver.submit(driver.seal(4))
        driver.end(submission.submission_id)
        with pytest.raises(RowConservationError, match="3 outcomes for 4 items"):
            store.collect(driver.lease, submission.submission_id, outcomes(ok=3))
        found = submission_of(store, submission.submission_id)
        assert found.state is SubmissionState.ENDED
        store.collect(driver.lease, submission.submission_id, outcomes(ok=4))
        with pytest.raises(StaleTransitionError, match=r"wanted collected.*is collected"):
            store.collect(driver.lease, submission.submission_id, outcomes(ok=4))

    def test_retries_are_packed_once(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Items to be retried would be sent twice or never."""
        driver = RunDriver(store, clock)
        one = driver.collect(driver.seal(3), outcomes(ok=1, retry=2)).submission_id
        two = driver.collect(driver.seal(3), outcomes(ok=2, retry=1)).submission_id
        with pytest.raises(RowConservationError, match="3 items became 2"):
            store.pack_retries(driver.lease, [one, two], [new_chunk(2, round=1)])
        chunks = store.pack_retries(
            driver.lease, [one, two], [new_chunk(2, round=1), new_chunk(1, round=1)]
        )
        assert [(chunk.seq, chunk.round) for chunk in chunks] == [(2, 1), (3, 1)]
        assert store.counts("run_a") == RunCounts(total=6, ok=3, ready=3)
        assert submission_of(store, one).retries_packed
        with pytest.raises(StaleTransitionError, match="packed already"):
            store.pack_retries(driver.lease, [two], [new_chunk(1, round=1)])

    def test_closed_run_has_only_final_items(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A finished run would go on showing items that wait for a retry."""
        driver = RunDriver(store, clock)
        driver.collect(driver.seal(3), outcomes(ok=1, retry=2))
        driver.submit(driver.seal(4))
        driver.seal(5)
        driver.close(RunState.FAILED)
        assert store.counts("run_a") == RunCounts(total=12, ok=1, failed=11)

    def test_foreign_submission(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """The lease of one run would let a process change another run."""
        driver, other = RunDriver(store, clock), RunDriver(store, clock, "run_b")
        submission = other.intend(other.seal())
        with pytest.raises(StaleTransitionError, match="does not exist"):
            driver.activate(submission.submission_id)
        foreign = new_submission("run_b", driver.seal())
        with pytest.raises(StoreError, match="'run_b'"):
            store.intend(driver.lease, foreign, ScopeLimits())


class PollContract:
    """What every store promises about polling."""

    def test_due_polls_span_runs(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Batches would be polled late, too often, or under another account."""
        one, two = RunDriver(store, clock), RunDriver(store, clock, "run_b")
        late = one.activate(one.intend(one.seal()).submission_id, poll_in_s=60)
        soon = two.activate(two.intend(two.seal()).submission_id, poll_in_s=30)
        foreign = one.intend(one.seal(), account="other")
        one.activate(foreign.submission_id, poll_in_s=0)
        account = late.account
        assert store.due_polls(account, clock.now(), 10) == []
        clock.advance(60)
        assert store.due_polls(account, clock.now(), 10) == [soon, late]
        assert store.due_polls(account, clock.now(), 1) == [soon]
        two.end(soon.submission_id)
        assert store.due_polls(account, clock.now(), 10) == [late]

    def test_put_off_collect(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """Results that are not ready yet would be asked for at once again, or given up at once."""
        driver = RunDriver(store, clock)
        submission_id = driver.submit(driver.seal(2)).submission_id
        until = clock.now() + timedelta(seconds=30)
        with pytest.raises(StaleTransitionError, match=r"wanted ended.*is active"):
            store.put_off_collect(
                driver.lease, submission_id, until=until, missing=True, reason="404"
            )
        driver.end(submission_id)
        ended = submission_of(store, submission_id)
        assert (ended.next_poll_at, ended.missing_polls) == (None, 0)
        for missing, counted in ((True, 1), (True, 2), (False, 0), (True, 1)):
            store.put_off_collect(
                driver.lease, submission_id, until=until, missing=missing, reason="404"
            )
            put_off = submission_of(store, submission_id)
            assert (put_off.next_poll_at, put_off.missing_polls) == (until, counted)
        told = [e.data["reason"] for e in store.list_events("run_a") if "put_off" in e.kind]
        assert told == ["404"]
        assert store.counts("run_a") == RunCounts(total=2, in_flight=2)

    def test_note_poll(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A batch that vanished would be polled for ever, or one glitch would count as its loss."""
        driver = RunDriver(store, clock)
        submission_id = driver.submit(driver.seal()).submission_id
        soon = clock.now() + timedelta(seconds=5)
        for missing in (1, 2):
            store.note_poll(
                submission_id,
                provider_status=None,
                provider_counts=None,
                next_poll_at=soon,
                missing=True,
            )
            assert submission_of(store, submission_id).missing_polls == missing
        for _ in range(2):
            store.note_poll(
                submission_id,
                provider_status="in_progress",
                provider_counts={"done": 1},
                next_poll_at=soon,
            )
        noted = submission_of(store, submission_id)
        assert (noted.missing_polls, noted.provider_status) == (0, "in_progress")
        assert (noted.provider_counts, noted.next_poll_at) == ({"done": 1}, soon)
        kinds = [event.kind for event in store.list_events("run_a")]
        assert kinds.count("submission.polled") == 1

    def test_late_poll_is_ignored(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A slow poller would bring a collected submission back, or fail for nothing."""
        driver = RunDriver(store, clock)
        submission = driver.collect(driver.seal(1), outcomes(ok=1))
        store.note_poll(
            submission.submission_id,
            provider_status="in_progress",
            provider_counts=None,
            next_poll_at=clock.now(),
        )
        ended = store.mark_ended(
            submission.submission_id, provider_status="failed", provider_result={}
        )
        assert not ended
        assert submission_of(store, submission.submission_id) == submission

    def test_polls_keep_the_note_that_cancel_was_asked(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A provider whose batch keeps its status would be asked to cancel it without a pause."""
        driver = RunDriver(store, clock)
        before = driver.submit(driver.seal())
        later = clock.now() + timedelta(seconds=30)
        store.note_cancel(before.submission_id, next_cancel_at=later)
        asked = submission_of(store, before.submission_id)
        assert (asked.next_cancel_at, asked.next_poll_at) == (later, clock.now())
        soon = clock.now() + timedelta(seconds=20)
        store.note_polls([Poll(submission=before, status="finalizing")], soon)
        again = later + timedelta(seconds=30)
        store.note_cancel(before.submission_id, next_cancel_at=again)
        found = submission_of(store, before.submission_id)
        assert (found.provider_status, found.next_poll_at) == ("finalizing", soon)
        assert found.next_cancel_at == again
        kinds = [event.kind for event in store.list_events("run_a", limit=100)]
        assert kinds.count("submission.cancel_asked") == 1
        driver.end(before.submission_id)
        store.note_cancel(before.submission_id, next_cancel_at=later)  # it has ended meanwhile
        assert submission_of(store, before.submission_id).next_cancel_at == again


class ScopeContract:
    """What every store promises about the limits that runs share."""

    @pytest.mark.parametrize(
        ("limits", "unit"),
        [
            (ScopeLimits(max_requests=15), "requests"),
            (ScopeLimits(max_tokens=200), "tokens"),
            (ScopeLimits(max_batches=1), "batches"),
        ],
    )
    def test_limits_are_shared(
        self, store: OrchestratorStore, clock: ManualClock, limits: ScopeLimits, unit: str
    ) -> None:
        """Two runs together would exceed what the account may queue."""
        one, two = RunDriver(store, clock), RunDriver(store, clock, "run_b")
        taken = one.try_intend(one.seal(10), limits)
        assert isinstance(taken, SubmissionRecord)
        waiting = two.seal(10)
        full = two.try_intend(waiting, limits)
        assert isinstance(full, ScopeFull)
        assert unit in full.reason
        assert (full.never_fits, full.retry_at) == (False, None)
        assert store.get_chunk("run_b", 0).state is ChunkState.READY
        other_scope = two.try_intend(two.seal(10), limits, scope="other")
        assert isinstance(other_scope, SubmissionRecord)
        one.activate(taken.submission_id)
        assert isinstance(two.try_intend(waiting, limits), ScopeFull)
        one.end(taken.submission_id)
        assert isinstance(two.try_intend(waiting, limits), SubmissionRecord)

    def test_chunk_that_never_fits(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A chunk larger than the whole limit would wait for ever instead of being split."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(10)
        for limits in (ScopeLimits(max_requests=9), ScopeLimits(max_tokens=149)):
            full = driver.try_intend(chunk, limits)
            assert isinstance(full, ScopeFull)
            assert full.never_fits

    def test_smaller_limit_wins(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """The limit that the provider itself named would be forgotten or overridden."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(10)
        scope = "openai/api.openai.com/1/m"
        assert store.scope_limits(scope) == ScopeLimits()
        store.remember_limits(scope, ScopeLimits(max_requests=9, max_tokens=500), None)
        store.remember_limits(scope, ScopeLimits(max_tokens=600), None)
        assert store.scope_limits(scope) == ScopeLimits(max_requests=9, max_tokens=600)
        full = driver.try_intend(chunk, ScopeLimits(max_requests=100))
        assert isinstance(full, ScopeFull)
        assert full.never_fits

    def test_back_off(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """A provider that said "later" would be asked again at once, by every process."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(10)
        until = clock.now() + timedelta(seconds=60)
        store.remember_limits("openai/api.openai.com/1/m", ScopeLimits(), until)
        full = driver.try_intend(chunk)
        assert isinstance(full, ScopeFull)
        assert (full.retry_at, full.never_fits) == (until, False)
        clock.advance(60)
        submission = driver.intend(chunk)
        assert submission.chunk_seq == 0

    def test_a_hungry_run_goes_first(self, store: OrchestratorStore, clock: ManualClock) -> None:
        """The first of many runs would fill a limited queue until it is done with it."""
        limits = ScopeLimits(max_requests=30)
        greedy, hungry = RunDriver(store, clock, "greedy"), RunDriver(store, clock, "hungry")
        first, second = greedy.seal(), greedy.seal()
        waiting = hungry.seal()
        for driver in (greedy, hungry):
            store.finish_ingestion(driver.lease, "f")
        assert isinstance(greedy.try_intend(first, limits), SubmissionRecord)

        refused = greedy.try_intend(second, limits)
        assert isinstance(refused, ScopeFull)
        assert "'hungry' has nothing in it yet" in refused.reason
        assert refused.retry_at is not None
        assert isinstance(hungry.try_intend(waiting, limits), SubmissionRecord)
        assert isinstance(greedy.try_intend(second, limits), SubmissionRecord)

    def test_an_idle_run_holds_nobody_up(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A forgotten run would stop all others of its account for ever."""
        limits = ScopeLimits(max_requests=30)
        greedy, idle = RunDriver(store, clock, "greedy"), RunDriver(store, clock, "idle")
        first, second = greedy.seal(), greedy.seal()
        idle.seal()
        for driver in (greedy, idle):
            store.finish_ingestion(driver.lease, "f")
        clock.advance(600)
        assert isinstance(greedy.try_intend(first, limits), SubmissionRecord)
        assert isinstance(greedy.try_intend(second, limits), SubmissionRecord)
