"""Random walks through a run's life against a model that is a few dictionaries."""

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batchor_core.errors import LeaseLostError, StaleTransitionError
from batchor_core.model.journal import summary_from_events
from batchor_core.model.records import RunCounts, ScopeLimits
from batchor_core.model.states import ChunkState, RunState, SubmissionState
from batchor_core.store.protocol import ScopeFull
from batchor_core.store.sql import SQLiteStorage
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    LEASE_S,
    RunDriver,
    new_chunk,
    new_submission,
    outcomes,
)

CAP = 20
SPLITS = st.integers(1, 7)


class RunMachine(RuleBasedStateMachine):
    """One run, driven at random; the model knows where every item is."""

    def __init__(self):
        super().__init__()
        self.clock = ManualClock()
        self.store = SQLiteStorage.in_memory(clock=self.clock)
        self.driver = RunDriver(self.store, self.clock)
        self.stale_leases = []
        self.chunks = {}  # seq -> [state, item_count, round]
        self.submissions = {}  # id -> [state, chunk seq]
        self.unpacked = {}  # id -> items to be retried
        self.final = Counter()
        self.total = 0

    def teardown(self):
        self.store.close()

    def pick(self, data, records, *states):
        """Choose one record that is in one of the states, in the order of their making.

        Submission ids are random: sorted by them, a repeated walk would go another way.
        """
        return data.draw(
            st.sampled_from([key for key, record in records.items() if record[0] in states])
        )

    def has_chunk(self, *states):
        return any(record[0] in states for record in self.chunks.values())

    def has_submission(self, *states):
        return any(record[0] in states for record in self.submissions.values())

    @rule(items=st.integers(1, 9))
    def seal(self, items):
        chunk = self.driver.seal(items)
        self.chunks[chunk.seq] = [ChunkState.READY, items, 0]
        self.total += items

    @precondition(lambda self: self.has_chunk(ChunkState.READY))
    @rule(data=st.data())
    def intend(self, data):
        seq = self.pick(data, self.chunks, ChunkState.READY)
        live = {SubmissionState.INTENDED, SubmissionState.ACTIVE}
        reserved = sum(self.chunks[s][1] for state, s in self.submissions.values() if state in live)
        chunk = self.store.get_chunk("run_a", seq)
        taken = self.driver.try_intend(chunk, ScopeLimits(max_requests=CAP))
        if reserved + self.chunks[seq][1] > CAP:
            assert isinstance(taken, ScopeFull)
            assert not taken.never_fits
            return
        self.submissions[taken.submission_id] = [SubmissionState.INTENDED, seq]
        self.chunks[seq][0] = ChunkState.SUBMITTED

    @precondition(lambda self: self.has_submission(SubmissionState.INTENDED))
    @rule(data=st.data())
    def activate(self, data):
        chosen = self.pick(data, self.submissions, SubmissionState.INTENDED)
        self.driver.activate(chosen)
        self.submissions[chosen][0] = SubmissionState.ACTIVE

    @precondition(lambda self: self.has_submission(SubmissionState.ACTIVE))
    @rule(data=st.data())
    def end(self, data):
        chosen = self.pick(data, self.submissions, SubmissionState.ACTIVE)
        self.driver.end(chosen)
        self.submissions[chosen][0] = SubmissionState.ENDED

    @precondition(lambda self: self.has_submission(SubmissionState.ENDED))
    @rule(data=st.data())
    def collect(self, data):
        chosen = self.pick(data, self.submissions, SubmissionState.ENDED)
        seq = self.submissions[chosen][1]
        items = self.chunks[seq][1]
        ok = data.draw(st.integers(0, items))
        failed = data.draw(st.integers(0, items - ok))
        retry = items - ok - failed
        self.store.collect(self.driver.lease, chosen, outcomes(ok=ok, failed=failed, retry=retry))
        self.submissions[chosen][0] = SubmissionState.COLLECTED
        self.chunks[seq][0] = ChunkState.DONE
        self.final.update(ok=ok, failed=failed)
        if retry:
            self.unpacked[chosen] = retry

    @precondition(lambda self: self.has_submission(SubmissionState.INTENDED, SubmissionState.ENDED))
    @rule(data=st.data())
    def void(self, data):
        chosen = self.pick(data, self.submissions, SubmissionState.INTENDED, SubmissionState.ENDED)
        later = self.clock.now() + timedelta(seconds=1)
        self.store.void(self.driver.lease, chosen, reason="refused", not_before=later)
        self.submissions[chosen][0] = SubmissionState.VOID
        self.chunks[self.submissions[chosen][1]][0] = ChunkState.READY

    @precondition(lambda self: self.has_submission(SubmissionState.ENDED))
    @rule(data=st.data())
    def disprove(self, data):
        chosen = self.pick(data, self.submissions, SubmissionState.ENDED)
        self.store.disprove(self.driver.lease, chosen, reason="its results are another's")
        self.submissions[chosen][0] = SubmissionState.INTENDED

    @precondition(lambda self: self.has_chunk(ChunkState.READY))
    @rule(data=st.data(), first=SPLITS)
    def split(self, data, first):
        seq = self.pick(data, self.chunks, ChunkState.READY)
        _, items, round_ = self.chunks[seq]
        if items <= first:
            return
        sizes = (first, items - first)
        children = [new_chunk(size, round=round_) for size in sizes]
        added = self.store.split_chunk(self.driver.lease, seq, children)
        self.chunks[seq][0] = ChunkState.SPLIT
        for child, size in zip(added, sizes, strict=True):
            self.chunks[child.seq] = [ChunkState.READY, size, round_]

    @precondition(lambda self: self.has_chunk(ChunkState.READY))
    @rule(data=st.data())
    def reuse(self, data):
        seq = self.pick(data, self.chunks, ChunkState.READY)
        _, items, round_ = self.chunks[seq]
        answered = data.draw(st.integers(1, items))
        parts = [answered, items - answered] if answered < items else [items]
        first = max(self.chunks) + 1
        chunk = self.store.get_chunk("run_a", seq)
        new = new_submission("run_a", chunk, chunk_seq=first, reserved_requests=0)
        self.store.reuse_answers(
            self.driver.lease,
            seq,
            answered=new_chunk(answered, round=round_),
            rest=new_chunk(parts[1], round=round_) if len(parts) > 1 else None,
            submission=new,
            collected=outcomes(ok=answered, reused_count=answered),
        )
        self.chunks[seq][0] = ChunkState.SPLIT
        self.chunks[first] = [ChunkState.DONE, answered, round_]
        if len(parts) > 1:
            self.chunks[first + 1] = [ChunkState.READY, parts[1], round_]
        self.submissions[new.submission_id] = [SubmissionState.COLLECTED, first]
        self.final.update(ok=answered, reused=answered)

    @precondition(lambda self: self.has_chunk(ChunkState.READY))
    @rule(data=st.data())
    def abandon(self, data):
        seq = self.pick(data, self.chunks, ChunkState.READY)
        self.store.abandon_chunks(self.driver.lease, [seq], "request_too_large", "m")
        self.chunks[seq][0] = ChunkState.ABANDONED
        self.final["failed"] += self.chunks[seq][1]

    @precondition(lambda self: self.unpacked)
    @rule(data=st.data())
    def pack(self, data):
        chosen = data.draw(st.lists(st.sampled_from(list(self.unpacked)), min_size=1))
        items = sum(self.unpacked.pop(name) for name in set(chosen))
        chunk = new_chunk(items, round=1)
        for added in self.store.pack_retries(self.driver.lease, chosen, [chunk]):
            self.chunks[added.seq] = [ChunkState.READY, items, 1]

    @rule()
    def lose_lease(self):
        self.stale_leases.append(self.driver.lease)
        self.clock.advance(LEASE_S)
        self.driver.lease = self.driver.take_lease(f"owner {len(self.stale_leases)}")

    @precondition(lambda self: self.stale_leases)
    @rule(data=st.data())
    def write_with_lost_lease(self, data):
        lost = data.draw(st.sampled_from(self.stale_leases))
        with pytest.raises(LeaseLostError):
            self.store.seal_chunk(lost, new_chunk(1), {})
        for seq in list(self.chunks)[:1]:
            with pytest.raises(LeaseLostError):
                self.store.abandon_chunks(lost, [seq], "x", "m")

    @precondition(lambda self: self.chunks)
    @rule(data=st.data())
    def forbidden_change(self, data):
        seq = data.draw(st.sampled_from(list(self.chunks)))
        if self.chunks[seq][0] is not ChunkState.READY:
            with pytest.raises(StaleTransitionError):
                self.store.abandon_chunks(self.driver.lease, [seq], "x", "m")
            with pytest.raises(StaleTransitionError):
                self.store.split_chunk(self.driver.lease, seq, [])

    @invariant()
    def every_item_is_somewhere(self):
        """Rows would be lost or counted twice."""
        counts = self.store.counts("run_a")
        assert counts == self.expected()
        assert counts.accounted == counts.total == self.total

    @invariant()
    def states_agree(self):
        """The store would be in another state than its caller was told."""
        chunks = {chunk.seq: chunk.state for chunk in self.store.list_chunks("run_a")}
        assert chunks == {seq: record[0] for seq, record in self.chunks.items()}
        found = self.store.list_submissions("run_a")
        assert [s.submission_id for s in found] == list(self.submissions)
        assert [s.state for s in found] == [record[0] for record in self.submissions.values()]

    @invariant()
    def journal_tells_the_same(self):
        """A summary rebuilt from the journal would differ from the store."""
        summary = self.summary()
        assert summary.counts == self.expected()
        assert summary.usage == self.store.usage("run_a")
        assert summary.status is RunState.INGESTING

    def summary(self):
        return summary_from_events(self.store.list_events("run_a", limit=100_000))

    def expected(self):
        items = Counter()
        for state, count, _ in self.chunks.values():
            items[state] += count
        return RunCounts(
            total=self.total,
            ok=self.final["ok"],
            failed=self.final["failed"],
            retrying=sum(self.unpacked.values()),
            in_flight=items[ChunkState.SUBMITTED],
            ready=items[ChunkState.READY],
            reused=self.final["reused"],
        )


class ClosedRunMachine(RunMachine):
    """The same walk; at its end the run is closed wherever it is."""

    def teardown(self):
        ok = self.final["ok"]
        self.driver.close(RunState.FAILED)
        counts = self.store.counts("run_a")
        reused = self.final["reused"]
        assert counts == RunCounts(total=self.total, ok=ok, failed=self.total - ok, reused=reused)
        super().teardown()


_SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TestRun = RunMachine.TestCase
TestRun.settings = _SETTINGS
TestClosedRun = ClosedRunMachine.TestCase
TestClosedRun.settings = settings(_SETTINGS, max_examples=15)
