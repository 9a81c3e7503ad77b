"""Polling all of an account: few calls, in turns, and going on where the time was up."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from batchor_core import SQLiteStorage
from batchor_core.errors import ProviderError
from batchor_core.executor.poll import AccountFaultError
from batchor_core.executor.poll_account import LONG_LOOK_S, REST, AccountPoll, Walk
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.model.records import SubmissionRecord
from batchor_core.model.states import SubmissionState
from batchor_core.providers.protocol import BatchPhase, BatchProvider, ProviderBatch
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver, submission_of

POLL_S = 30.0


class Account:
    """A provider with a list of ten batches a page, each of whose calls takes a second."""

    account = "openai/api.openai.com/1"
    credential = "key"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.batches: list[ProviderBatch] = []  # newest first
        self.hidden: set[str] = set()
        self.calls: list[str] = []
        self.fails: Callable[[str], FaultKind | None] = lambda call: None

    def list_page(self, position: str) -> tuple[Sequence[ProviderBatch], str]:
        """See ``BatchProvider.list_page``."""
        self._call(f"list {position}".strip())
        start = int(position or 0)
        page = self.batches[start : start + 10]
        after = str(start + 10) if start + 10 < len(self.batches) else ""
        return [batch for batch in page if batch.batch_id not in self.hidden], after

    def get(self, batch_id: str) -> ProviderBatch:
        """See ``BatchProvider.get``."""
        self._call(f"get {batch_id}")
        return next(batch for batch in self.batches if batch.batch_id == batch_id)

    def end(self, batch_id: str) -> None:
        """Let a batch end."""
        index = next(i for i, batch in enumerate(self.batches) if batch.batch_id == batch_id)
        self.batches[index] = batch_of(batch_id, BatchPhase.ENDED, "completed")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.clock.advance(1)
        kind = self.fails(name)
        if kind is not None:
            fault = Fault(kind=kind, owner=FaultOwner.PROVIDER, code="c", message="m")
            raise ProviderError("c: m", fault)


def batch_of(
    batch_id: str, phase: BatchPhase = BatchPhase.WORKING, status: str = "in_progress"
) -> ProviderBatch:
    """Return what a provider says of a batch."""
    return ProviderBatch(batch_id=batch_id, phase=phase, status=status)


class Polled:
    """A store with submissions in flight, all of them due, on such an account."""

    def __init__(self, count: int) -> None:
        self.clock = ManualClock()
        self.store = SQLiteStorage.in_memory(clock=self.clock)
        self.provider = Account(self.clock)
        self.driver = RunDriver(self.store, self.clock)
        self.submissions = [self.add(0) for _ in range(count)]

    def add(self, poll_in_s: float) -> SubmissionRecord:
        """Add one, newer than all others."""
        intended = self.driver.intend(self.driver.seal(1))
        submission = self.driver.activate(intended.submission_id, poll_in_s)
        self.provider.batches.insert(0, batch_of(submission.provider_batch_id or ""))
        return submission

    def poll(self, walk: Walk | None = None, *, seconds: float = 1000.0) -> Walk | None:
        """Poll once."""
        self.provider.calls.clear()
        self.last = AccountPoll(
            self.store,
            self.provider,  # type: ignore[arg-type]  # all that is called
            self.clock,
            account=Account.account,
            poll_s=POLL_S,
            deadline=self.clock.monotonic() + seconds,
        )
        return self.last.run(walk)

    @property
    def due(self) -> int:
        """How many are due now."""
        return len(self.store.due_polls(Account.account, self.clock.now(), 1000))


@pytest.fixture
def polled() -> Polled:
    """Thirty-five submissions."""
    return Polled(35)


def test_account_has_what_is_called() -> None:
    """The tests would be about an account that no adapter is."""
    for name in ("list_page", "get", "account"):
        assert hasattr(Account, name)
        assert name in dir(BatchProvider) + list(BatchProvider.__annotations__)


def test_one_list_call_for_each_page(polled: Polled) -> None:
    """Each batch would be asked for by itself."""
    polled.provider.end(polled.submissions[3].provider_batch_id or "")
    assert polled.poll() is None
    assert polled.provider.calls == ["list", "list 10", "list 20", "list 30"]
    assert (polled.last.ended, polled.due) == (1, 0)
    ended = submission_of(polled.store, polled.submissions[3].submission_id)
    assert ended.state is SubmissionState.ENDED


def test_what_is_shown_is_noted_before_it_is_due(polled: Polled) -> None:
    """Batches that were sent at different times would each be listed for by themselves."""
    later = polled.add(poll_in_s=1000)
    polled.poll()
    noted = submission_of(polled.store, later.submission_id).next_poll_at
    first = submission_of(polled.store, polled.submissions[0].submission_id).next_poll_at
    assert noted == first


def test_few_that_are_due_are_asked_for_by_themselves() -> None:
    """The whole list of an account would be read for one batch."""
    polled = Polled(0)
    for _ in range(60):
        polled.add(poll_in_s=1000)
    one = polled.add(poll_in_s=0)
    polled.poll()
    assert polled.provider.calls == [f"get {one.provider_batch_id}"]
    polled.clock.advance(10_000)
    assert Polled(1).poll() is None


def test_what_no_page_shows_is_asked_for(polled: Polled) -> None:
    """A batch that a list leaves out would never be seen to end."""
    hidden = polled.submissions[20].provider_batch_id or ""
    polled.provider.hidden.add(hidden)
    polled.poll()
    assert polled.provider.calls[-1] == f"get {hidden}"
    assert polled.due == 0


def test_look_goes_on_with_the_next_page(polled: Polled) -> None:
    """The oldest batches would never be looked at: every look would begin with the newest."""
    hidden = polled.submissions[34].provider_batch_id or ""  # would be on the first page
    polled.provider.hidden.add(hidden)
    walk = polled.poll(seconds=4)
    assert polled.provider.calls == ["list", "list 10", "list 20"]
    assert walk is not None
    assert (walk.position, polled.due) == ("30", 6)
    newer = polled.add(poll_in_s=0)
    polled.provider.batches.remove(polled.provider.batches[0])  # not listed yet
    assert polled.poll(walk) is None
    assert polled.provider.calls == ["list 30", f"get {hidden}"]  # due since before the look began
    still = polled.store.due_polls(Account.account, polled.clock.now(), 10)
    assert [s.submission_id for s in still] == [newer.submission_id]


def test_long_look_is_followed_by_a_rest(polled: Polled) -> None:
    """Polling an account of ten thousand batches would take all of its calls."""
    assert LONG_LOOK_S <= 4
    polled.poll()
    noted = submission_of(polled.store, polled.submissions[0].submission_id).next_poll_at
    assert noted == polled.clock.now() + timedelta(seconds=max(POLL_S, 4 * REST))
    many = Polled(100)
    many.poll()
    noted = submission_of(many.store, many.submissions[0].submission_id).next_poll_at
    assert noted == many.clock.now() + timedelta(seconds=10 * REST)


def test_others_batches_do_not_hide_ours(polled: Polled) -> None:
    """An account that other programs use as well would be asked for each batch by itself."""
    polled.provider.batches[:0] = [batch_of(f"theirs_{n}") for n in range(30)]
    polled.poll()
    assert polled.provider.calls[-1] == "list 60"
    polled.provider.batches[:0] = [batch_of(f"theirs_{n}") for n in range(30, 230)]
    polled.clock.advance(1000)
    polled.poll(seconds=30)
    assert polled.provider.calls[:5] == [
        "list",
        "list 10",
        "list 20",
        "list 30",
        "get " + oldest(polled),
    ]


def oldest(polled: Polled) -> str:
    """Return the batch that waits for longest."""
    return polled.submissions[0].provider_batch_id or ""


@pytest.mark.parametrize("kind", [FaultKind.TRANSIENT, FaultKind.CAPACITY])
def test_outage_puts_all_off(polled: Polled, kind: FaultKind) -> None:
    """A provider that is down would be asked for each batch, and all of a tick be spent on it."""
    polled.provider.fails = lambda call: kind
    assert polled.poll() is None
    assert polled.provider.calls == ["list"]
    assert polled.due == 0


def test_outage_in_the_middle_goes_on_later(polled: Polled) -> None:
    """What was shown before would be lost, or the list begin anew."""
    polled.provider.fails = lambda call: FaultKind.TRANSIENT if call == "list 20" else None
    walk = polled.poll()
    assert walk is not None
    assert (walk.position, polled.due) == ("20", 15)


def test_host_without_a_list_is_asked_for_each(polled: Polled) -> None:
    """Batches at such a host would never be seen to end; or always the same would be asked for."""
    lists = FaultKind.REJECTED
    polled.provider.fails = lambda call: lists if call.startswith("list") else None
    polled.poll(seconds=21)
    assert polled.provider.calls[:2] == ["list", f"get {oldest(polled)}"]
    assert polled.due == 15
    polled.poll(seconds=21)
    asked_next = [f"get {s.provider_batch_id}" for s in polled.submissions[20:]]
    assert polled.provider.calls[1:16] == asked_next


def test_position_that_is_not_known_any_more(polled: Polled) -> None:
    """A look would go on for ever at a page that there is no more."""
    lists = FaultKind.REJECTED
    polled.provider.fails = lambda call: lists if call == "list 999" else None
    walk = Walk(position="999", since=polled.clock.now() - timedelta(hours=1))
    assert polled.poll(walk) is None
    assert polled.provider.calls == ["list 999"]
    assert polled.poll() is None
    assert polled.due == 0


def test_list_that_repeats_itself_ends(polled: Polled) -> None:
    """A server's mistake would hang a sensor."""
    page = polled.provider.list_page
    polled.provider.list_page = lambda position: (page(position)[0], "10")  # type: ignore[method-assign]
    polled.poll()
    assert polled.provider.calls[:2] == ["list", "list 10"]
    assert polled.due == 0


def test_refused_account_is_left_alone_for_a_while(polled: Polled) -> None:
    """A revoked key would be used with every tick, and nobody be told."""
    polled.provider.fails = lambda call: FaultKind.ACCOUNT
    with pytest.raises(AccountFaultError):
        polled.poll()
    assert polled.last.runs == {"run_a"}
    assert polled.due == 0


def test_what_is_not_recorded_is_shown_again(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that have ended would be left out, since their page was read already."""
    monkeypatch.setattr("batchor_core.executor.poll_account._POLLS_PER_COMMIT", 10)
    note = polled.store.note_polls

    def slowly(*polls: object) -> int:
        polled.clock.advance(10)
        return note(*polls)  # type: ignore[arg-type]

    monkeypatch.setattr(polled.store, "note_polls", slowly)
    walk = polled.poll(seconds=10)
    assert walk is not None
    assert (walk.position, polled.due) == ("", 25)
    for _ in range(3):
        walk = polled.poll(walk, seconds=10)
    assert submission_of(polled.store, polled.submissions[0].submission_id).next_poll_at
    left = polled.store.due_polls(Account.account, walk.since if walk else polled.clock.now(), 99)
    assert not [s for s in left if walk]
