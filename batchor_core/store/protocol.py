"""The contract of the control plane.

Every method is one transaction: all of it or nothing. Methods that take a ``lease`` first assert
its fencing token in that transaction and raise ``LeaseLostError`` otherwise, so that a process
that lost its lease can change nothing. Changes of state are guarded updates along
``model.transitions``; one that finds another state raises ``StaleTransitionError``. Each change
writes its journal event in the same transaction. Any number of processes may call any method.

Nothing here calls a provider or moves a file.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import (
    ArtifactRef,
    ChunkRecord,
    Collected,
    Event,
    Heartbeat,
    Identity,
    InFlight,
    Lease,
    Member,
    NewChunk,
    NewRun,
    NewSubmission,
    RunCounts,
    RunDayCosts,
    RunRecord,
    ScopeLimits,
    SubmissionRecord,
    Usage,
    Waiter,
)
from batchor_core.model.states import (
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
    WaiterState,
)


@dataclass(frozen=True, kw_only=True)
class ScopeFull:
    """Why ``intend`` took no room: the scope's live reservations leave too little of it.

    Attributes:
        reason: One line for people.
        retry_at: Not before this instant, where the scope backs off; None: when a batch ends.
        never_fits: The chunk exceeds the limit even in an empty scope: it has to be split.
    """

    reason: str
    retry_at: datetime | None = None
    never_fits: bool = False


BUDGET_PAUSE = "budget: "
"""How the reason begins for which a run is paused at the end of its budget. Stored."""


@dataclass(frozen=True, kw_only=True)
class OverBudget:
    """Why ``intend`` took no room: a budget would be exceeded.

    Attributes:
        reason: One sentence for people, with the budget and what would be spent.
        may_clear: Only what the run itself has sent and not collected stands in the way: it is
            reserved at its upper estimate, and may leave room once its true cost is known.
    """

    reason: str
    may_clear: bool = False


@dataclass(frozen=True, kw_only=True)
class MemberClaim:
    """One identity that a freshly ingested run asks for."""

    identity: Identity
    fingerprint: str
    item_count: int


@dataclass(frozen=True, kw_only=True)
class WaiterRequest:
    """A waiter to be recorded with a claim.

    Attributes:
        demand: What is to be done for it, as a digest; None where that is like no other's. Two open
            waiters of one run that have the same partitions and demand would have everything done
            twice: the later one joins the earlier one.
    """

    waiter_id: str
    namespace: str
    asset: str
    partitions: tuple[str, ...]
    payload: Mapping[str, Any]
    demand: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndedWaiter:
    """What came of ending a waiter.

    Attributes:
        ended: False: it was not open any more, and nothing was changed.
        run_cancelled: Whether its run is cancelled with it, since nobody waits any more.
    """

    ended: bool
    run_cancelled: bool = False


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """What became of a claim.

    Attributes:
        run_id: The open run that now stands for the identities.
        attached: True: it is an earlier run of equal fingerprint, and the claimant's own run was
            cancelled with the reason ``attached``.
        conflict: The identities that are open under another fingerprint, or in a run that is being
            cancelled; then nothing was changed and ``run_id`` is the first such run.
        groups: Where the identities are not all alike: those that can be claimed together, group by
            group; then nothing was changed, and ``run_id`` is the claimant's.
        superseded: The run whose identities and waiters were taken over; None: none was.
        joined: The open waiter of the same demand that stands for the claimant's, which was not
            recorded; None: it was.
    """

    run_id: str
    attached: bool
    conflict: tuple[Identity, ...] = ()
    groups: tuple[tuple[Identity, ...], ...] = ()
    superseded: str | None = None
    joined: str | None = None


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """All of a run that is not settled yet: what the next step is decided from.

    Attributes:
        chunks: Those in ``ready`` and ``submitted``.
        submissions: Those in ``intended``, ``active`` and ``ended``, and collected ones whose items
            to be retried are not packed.
        scope_free_at: When the scope's back-off ends, where there is one.
        is_blocked: Whether the run's predecessor is not terminal yet: nothing is sent before.
    """

    run: RunRecord
    chunks: Sequence[ChunkRecord]
    submissions: Sequence[SubmissionRecord]
    scope_free_at: datetime | None
    is_blocked: bool = False


@dataclass(frozen=True, kw_only=True)
class Poll:
    """What a poll of an ``active`` submission saw.

    Attributes:
        submission: As it was before.
        status: In the provider's words; None: it could not be asked.
        counts: The provider's own; None leaves those that are stored.
        result: Where its results are; None: it works on.
    """

    submission: SubmissionRecord
    status: str | None = None
    counts: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class WaiterGroup:
    """Open waiters that have something in common.

    Attributes:
        asset: Theirs.
        fields: Of their payloads, as text, in the order that was asked for; None where absent.
        count: How many there are.
    """

    asset: str
    fields: tuple[str | None, ...]
    count: int


@dataclass(frozen=True, kw_only=True)
class StoreHealth:
    """What a store says of itself.

    Attributes:
        location: Where it is; holds no password.
        schema: The version of its tables.
        newest: The version that this library wants.
    """

    location: str
    schema: str | None
    newest: str


class Store(Protocol):
    """A control plane."""

    @property
    def store_id(self) -> str:
        """What tells it from all other stores; provider batches carry it.

        A copy, such as a backup that was restored, is the same store.
        """
        ...

    def close(self) -> None:
        """Give back connections. Idempotent."""
        ...

    def check(self) -> StoreHealth:
        """Make sure that it can be read and written.

        Raises:
            StoreError: It cannot.
        """
        ...

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with each event that this object writes, in order, after its commit.

        It is called in the writing thread. A process that dies right after a commit tells nobody:
        the journal is complete, what listeners hear need not be.
        """
        ...

    # -- runs ---------------------------------------------------------------------------------

    def create_run(self, run: NewRun) -> RunRecord:
        """Open a run in ``ingesting``; one of this id that exists is returned unchanged."""
        ...

    def get_run(self, run_id: str) -> RunRecord:
        """Return a run.

        Raises:
            RunNotFoundError: There is none of this id.
        """
        ...

    def get_runs(self, run_ids: Iterable[str]) -> dict[str, RunRecord]:
        """Return those of these runs that there are, by id."""
        ...

    def list_runs(
        self,
        *,
        namespace: str | None = None,
        states: Iterable[RunState] | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """Return runs, newest first."""
        ...

    def supersede_run(self, run_id: str, successor: NewRun) -> RunRecord:
        """Open ``successor`` with ``run_id`` as its predecessor, which gets control ``cancel``.

        One transaction. A successor of this id that exists is returned unchanged.
        """
        ...

    def successor_of(self, run_id: str) -> RunRecord | None:
        """Return the run that supersedes this one, or None."""
        ...

    def restart_ingestion(self, lease: Lease, run: NewRun) -> RunRecord:
        """Forget what an ``ingesting`` run has sealed, and take a new declaration in its place.

        Nothing of such a run was ever sent. The files of its chunks stay, without a record.
        """
        ...

    def set_control(self, run_id: str, control: RunControlState, reason: str | None) -> RunRecord:
        """Ask something of a run; needs no lease.

        ``cancel`` wins for good: a later ``run`` or ``pause`` changes nothing. A terminal run is
        left as it is. Returns the run as it is afterwards.
        """
        ...

    def set_budget(self, run_id: str, budget: BudgetPolicy) -> RunRecord:
        """Replace the run's budget; needs no lease. A run that is paused for its budget goes on.

        Returns the run as it is afterwards.
        """
        ...

    def open_retry(self, run: NewRun) -> RunRecord:
        """Open a run that asks failed items of the finished run ``run.retry_of`` again.

        One of this id that was opened for the same is returned unchanged.

        Raises:
            RunNotFinishedError: That run is not finished.
            RunError: Another retry of it is still taking its items, or the id is another run's.
        """
        ...

    def retries_of(self, run_id: str) -> list[RunRecord]:
        """Return the runs that ask failed items of this one again, oldest first."""
        ...

    def note_export(self, run_id: str, *, files: int, size_bytes: int) -> RunRecord:
        """Record that the raw answers of a finished run were exported, all of them.

        Raises:
            RunNotFinishedError: It is not finished.
        """
        ...

    def begin_prune(self, run_id: str, kinds: Iterable[str], *, is_dry: bool = False) -> RunRecord:
        """Record that files of these kinds are removed, before they are. Idempotent.

        With ``is_dry`` it is only found out whether they may be.

        Raises:
            RunNotFinishedError: The run is not finished.
            PruneRefusedError: Raw answers were never exported, results are not delivered, or
                another run still reads its files.
        """
        ...

    def finish_prune(self, run_id: str, kinds: Iterable[str]) -> RunRecord:
        """Record that files of these kinds are gone. Idempotent."""
        ...

    def counts(self, run_id: str) -> RunCounts:
        """Return where the run's items are, from chunks and submissions."""
        ...

    def usage(self, run_id: str) -> Usage:
        """Return tokens and cost over the run's collected submissions."""
        ...

    def costs(
        self, *, namespace: str | None = None, since: datetime | None = None
    ) -> list[RunDayCosts]:
        """Return what was collected, by run and day (UTC), in order of the runs' creation.

        Args:
            namespace: Only of its runs; None for all.
            since: Only what was collected at this instant or later.
        """
        ...

    def in_flight(self, namespace: str | None = None) -> InFlight:
        """Return what providers are at work on, in one namespace or in all of them."""
        ...

    def open_work(self, run_id: str) -> OpenWork:
        """Return what is not settled of one run."""
        ...

    def due_work(
        self,
        namespace: str,
        now: datetime,
        limit: int,
        *,
        scope: str | None = None,
        but: Collection[str] = (),
        but_paused: str | None = None,
    ) -> list[OpenWork]:
        """Return what is not settled of runs that need something now.

        Oldest first, but the declarations take turns: the oldest run of each, the second oldest…
        Runs with setbacks (``begin_advance``) come last, and not at all while they rest.

        Of runs that are claimed, not terminal, and that nobody holds a lease on. None for which
        ``due_steps`` finds something heavy is left out, unless it rests or the limit is reached;
        one that waits for a provider is. A handful of queries, whatever the number of runs.

        Args:
            namespace: Whose.
            now: What counts as due.
            limit: The most.
            scope: Return those that may send a chunk in this scope, and none that need something
                else; None returns all the others.
            but: Runs to leave out.
            but_paused: Leave out those that are paused for a reason that begins so.
        """
        ...

    def begin_advance(self, run_id: str) -> int:
        """Count a setback of the run, which ``end_advance`` takes back; return how many it had.

        So one whose advancing fails, or kills its process, stands in nobody's way: it rests for
        a minute, for twice as long after each further setback in a row, and for an hour at most.
        Whatever is asked of the run anew (``set_control``) ends its rest. Needs no lease, and
        leaves nothing in the journal.

        Raises:
            RunNotFoundError: There is none of this id.
        """
        ...

    def end_advance(self, run_id: str) -> None:
        """Forget the run's setbacks. Idempotent."""
        ...

    def unmoved_runs(self, namespace: str, before: datetime, limit: int) -> dict[str, datetime]:
        """Return claimed runs that go on and have come no nearer to their end since an instant.

        Those that stand still for longest come first, each with the instant of its last move: it
        was created, ingested, resumed or paused, got another budget, or one of its batches was
        created, ended or collected. One query, which reads the journals of runs that are older
        than ``before``.
        """
        ...

    def count_open_runs(self, namespace: str) -> dict[tuple[str, RunControlState], int]:
        """Return how many claimed runs are not terminal, by scope and by what is asked of them."""
        ...

    def live_batches(self, scopes: Iterable[str]) -> dict[str, int]:
        """Return how many submissions are queued in these scopes, where there are any."""
        ...

    def pauses_since(self, namespace: str, after_sequence: int, limit: int) -> list[Event]:
        """Return the newest ``run.controlled`` event of each paused run, oldest first.

        Args:
            namespace: Whose claimed runs.
            after_sequence: Only of later pauses.
            limit: The most.
        """
        ...

    def finish_ingestion(self, lease: Lease, fingerprint: str) -> RunRecord:
        """Move the run from ``ingesting`` to ``running`` with its fingerprint."""
        ...

    def close_run(
        self,
        lease: Lease,
        state: RunState,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
        ok_by_member: Mapping[int, int] | None = None,
    ) -> RunRecord:
        """Move the run to a terminal state.

        ``ok_by_member`` says how many rows of each member (by ``seq``) were answered; it is stored
        with the members.
        """
        ...

    # -- heartbeats ---------------------------------------------------------------------------

    def note_heartbeat(self, namespace: str, name: str, every_s: float) -> None:
        """Record that something that drives the namespace's runs is alive, and means to stay so.

        Args:
            namespace: Whose runs.
            name: Its name, one in the namespace.
            every_s: Seconds after which it means to say so again.
        """
        ...

    def heartbeats(self, namespace: str) -> dict[str, Heartbeat]:
        """Return the last heartbeat of each that ever gave one, by name."""
        ...

    # -- leases -------------------------------------------------------------------------------

    def acquire_lease(self, run_id: str, owner: str, seconds: float) -> Lease | None:
        """Take the right to advance the run, or return None while another owner has it.

        An owner may take its own lease again. The new token is ``max(stored + 1, Unix ms)``: it
        grows even if the store was restored from a backup.
        """
        ...

    def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """Extend the lease to ``seconds`` from now, token unchanged.

        Raises:
            LeaseLostError: It was taken over, or it ran out and was taken.
        """
        ...

    def release_lease(self, lease: Lease) -> None:
        """Give the lease back, so that another process need not wait. Idempotent."""
        ...

    def lease_of(self, run_id: str) -> Lease | None:
        """Return the lease in force, or None."""
        ...

    def leased(self, run_ids: Iterable[str]) -> set[str]:
        """Return those of these runs on which a lease is in force."""
        ...

    # -- chunks -------------------------------------------------------------------------------

    def seal_chunk(
        self, lease: Lease, chunk: NewChunk, checkpoint: Mapping[str, Any]
    ) -> ChunkRecord:
        """Add a chunk of round 0 and the source's checkpoint behind it; counts its items."""
        ...

    def list_chunks(
        self, run_id: str, *, states: Iterable[ChunkState] | None = None, limit: int | None = None
    ) -> list[ChunkRecord]:
        """Return the run's chunks in order of ``seq``."""
        ...

    def get_chunk(self, run_id: str, seq: int) -> ChunkRecord:
        """Return one chunk."""
        ...

    def split_chunk(
        self, lease: Lease, seq: int, children: Sequence[NewChunk]
    ) -> list[ChunkRecord]:
        """Replace a ready chunk by children that hold the same items."""
        ...

    def reuse_answers(
        self,
        lease: Lease,
        seq: int,
        *,
        answered: NewChunk,
        rest: NewChunk | None,
        submission: NewSubmission,
        collected: Collected,
    ) -> None:
        """Replace a ready chunk by the part that earlier runs have answered, and the rest of it.

        The part is ``done``, with a submission that was never sent and is ``collected``.

        Raises:
            RowConservationError: The parts do not hold the chunk's items.
        """
        ...

    def finish_reuse(self, lease: Lease) -> RunRecord:
        """Record that earlier answers were looked for, in every chunk."""
        ...

    def abandon_chunks(self, lease: Lease, seqs: Iterable[int], code: str, message: str) -> None:
        """Give ready chunks up; their items fail with ``code`` when the run closes."""
        ...

    def set_results_part(self, lease: Lease, seq: int, results: ArtifactRef) -> None:
        """Record the part of the result table that belongs to a chunk of round 0."""
        ...

    # -- submissions --------------------------------------------------------------------------

    def intend(
        self,
        lease: Lease,
        submission: NewSubmission,
        limits: ScopeLimits,
    ) -> SubmissionRecord | ScopeFull | OverBudget:
        """Reserve room in the scope and record the intent, or say why there is no room.

        Holds the scope's lock, so that all processes on this store share the limits. The chunk
        moves from ``ready`` to ``submitted``. Limits are the smaller of ``limits`` and of what
        the scope remembers; the reservations of ``intended`` and ``active`` count against them. In
        a limited scope a run that has something in flight gives way to one that has nothing.

        The run's budgets hold in the same transaction: what its collected submissions have cost,
        the reservations of those that may still cost something (of an ended one, until it is
        collected) and this one have to fit into the run's budget, and the same over all submissions
        of the scope that were intended since midnight UTC into the day's. Before anything of the
        run was sent, all its ready chunks have to.
        """
        ...

    def adopt(
        self,
        lease: Lease,
        submission: NewSubmission,
        *,
        upload_ref: str | None,
        created_at: datetime | None,
        provider_batch_id: str,
        provider_status: str,
        next_poll_at: datetime,
    ) -> SubmissionRecord:
        """Record a submission whose batch exists at the provider already: it becomes ``active``.

        Neither limits nor budgets matter to what is sent and paid. ``created_at`` is by the
        provider's clock.
        """
        ...

    def allow_create(
        self,
        lease: Lease,
        submission_id: str,
        upload_ref: str | None,
        *,
        server_time: datetime | None,
        alone_since: datetime | None = None,
    ) -> bool:
        """Record the upload and that, until the lease's end, a create may be under way.

        ``server_time`` is the provider's clock shortly before the create. With ``alone_since``
        nothing is changed, and False returned, while another create of the account is in doubt:
        its submission is ``intended``, and its call ended (or may end) after that instant.
        """
        ...

    def has_create_in_doubt(self, account: str, since: datetime) -> bool:
        """Return whether a create of the account that ended after ``since`` is in doubt."""
        ...

    def batches_sent_under(self, account: str, credential: str, limit: int) -> list[str]:
        """Return the newest provider batches of the account that a credential has sent.

        Those that were adopted on suspicion are left out: they prove nothing.
        """
        ...

    def known_batches(self, account: str, batch_ids: Iterable[str]) -> dict[str, bool]:
        """Return those of these provider batches of the account that a submission owns.

        The value says whether it owns it provisionally.
        """
        ...

    def disprove(self, lease: Lease, submission_id: str, *, reason: str) -> SubmissionRecord:
        """Give up a batch that was adopted provisionally and is another's: back to ``intended``."""
        ...

    def activate(
        self,
        lease: Lease,
        submission_id: str,
        *,
        provider_batch_id: str,
        provider_status: str,
        next_poll_at: datetime,
        adopted: bool,
        is_provisional: bool = False,
    ) -> SubmissionRecord:
        """Record the provider's batch: ``intended`` to ``active``.

        ``is_provisional`` says that only its results can prove that it is ours.
        """
        ...

    def create_unknown(
        self, lease: Lease, submission_id: str, *, server_time: datetime | None, message: str
    ) -> None:
        """Record that the create call ended, with an unknown outcome; it stays ``intended``.

        A ``server_time`` replaces the one that ``allow_create`` recorded; None leaves it.
        """
        ...

    def void(
        self,
        lease: Lease,
        submission_id: str,
        *,
        reason: str,
        not_before: datetime | None,
        sweep_at: datetime | None = None,
        abandon: tuple[str, str] | None = None,
    ) -> ChunkRecord:
        """Give a submission up: to ``void``, its chunk back to ``ready``, not before the instant.

        Allowed from ``intended`` and ``ended``. ``sweep_at`` is when a late twin is looked for
        first; None where certainly none can come. With ``abandon`` (code, message) the chunk is
        given up as well, in the same transaction. Returns the chunk as it was before that, its
        ``refusals`` counted up.
        """
        ...

    def due_sweeps(self, namespace: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """Return void submissions whose late twins are to be looked for, oldest first.

        Over all runs of the namespace, closed ones too.
        """
        ...

    def note_sweep(
        self, submission_id: str, *, next_at: datetime | None, twins: Sequence[str] = ()
    ) -> None:
        """Record a look for late twins: when the next is due, and the batches that it found.

        Needs no lease.
        """
        ...

    def note_poll(
        self,
        submission_id: str,
        *,
        provider_status: str | None,
        provider_counts: Mapping[str, Any] | None,
        next_poll_at: datetime,
        missing: bool = False,
    ) -> None:
        """Record what a poll of an ``active`` submission saw. Needs no lease, never raises stale.

        ``missing`` counts ``missing_polls`` up; any other poll sets it to 0.
        """
        ...

    def note_cancel(self, submission_id: str, *, next_cancel_at: datetime) -> None:
        """Record that the provider was asked to cancel the batch of an ``active`` submission.

        The first time it is also due to be polled at once, and the journal gets a line. Needs no
        lease, never raises stale.
        """
        ...

    def mark_ended(
        self, submission_id: str, *, provider_status: str, provider_result: Mapping[str, Any]
    ) -> bool:
        """Move ``active`` to ``ended``; needs no lease. False if it was not active any more."""
        ...

    def note_polls(self, polls: Sequence[Poll], next_poll_at: datetime) -> int:
        """Record what polls of many submissions saw, in one transaction; needs no lease.

        As ``note_poll`` and ``mark_ended`` do it for each. A submission that is not ``active`` any
        more is left alone. Returns how many have ended by this.
        """
        ...

    def put_off_collect(
        self, lease: Lease, submission_id: str, *, until: datetime, missing: bool, reason: str
    ) -> None:
        """Record that an ``ended`` submission's results could not be fetched: not before ``until``.

        ``missing`` (the provider knows no such file) counts ``missing_polls`` up, which begins at 0
        when the submission ends; any other failure sets it to 0.
        """
        ...

    def collect(self, lease: Lease, submission_id: str, collected: Collected) -> SubmissionRecord:
        """Commit outcomes: ``ended`` to ``collected``, its chunk ``submitted`` to ``done``."""
        ...

    def pack_retries(
        self,
        lease: Lease,
        submission_ids: Sequence[str],
        chunks: Sequence[NewChunk],
        *,
        unwanted: Sequence[NewChunk] = (),
    ) -> list[ChunkRecord]:
        """Add chunks with all items to be retried of these submissions, marking them packed.

        ``unwanted`` chunks come last; they hold nothing but items that nobody wants any more.
        """
        ...

    def get_submission(self, submission_id: str) -> SubmissionRecord:
        """Return one submission."""
        ...

    def list_submissions(
        self, run_id: str, *, states: Iterable[SubmissionState] | None = None
    ) -> list[SubmissionRecord]:
        """Return the run's submissions in order of their intents."""
        ...

    def due_polls(self, account: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """Return an account's ``active`` submissions that are due, over all runs; oldest first."""
        ...

    def other_polls(self, account: str, now: datetime, limit: int) -> list[SubmissionRecord]:
        """Return an account's ``active`` submissions that are not due yet; next due first."""
        ...

    def count_polls(self, account: str) -> int:
        """Return how many ``active`` submissions an account has."""
        ...

    def accounts_to_poll(self, namespace: str, now: datetime) -> dict[str, str]:
        """Return the accounts in which something of the namespace is due, each with such a run.

        Those come first that wait for longest.
        """
        ...

    # -- scopes -------------------------------------------------------------------------------

    def scope_limits(self, scope: str) -> ScopeLimits:
        """Return the limits that the scope remembers; all None where it remembers none."""
        ...

    def remember_limits(
        self, scope: str, limits: ScopeLimits, backoff_until: datetime | None
    ) -> None:
        """Remember limits that the provider named (None leaves one as it is) and a back-off."""
        ...

    # -- members and waiters ------------------------------------------------------------------

    def claim(
        self,
        run_id: str,
        members: Sequence[MemberClaim],
        waiter: WaiterRequest,
        *,
        supersede: bool = False,
    ) -> ClaimResult:
        """Open the identities for this run, or attach to the open run that has them.

        One transaction: with every identity free, the members become open and the waiter is
        recorded for ``run_id``; with all of them open in one other run with equal fingerprints,
        the waiter is recorded there, or joins an open one of the same demand, and ``run_id`` gets
        control ``cancel`` with the reason ``attached``; with all of them changed in one other run
        (or that run under cancel) it is a conflict that changes nothing, unless ``supersede`` is
        given: then they and those who wait for them come over, the other run becomes the
        predecessor of ``run_id``, and gets control ``cancel`` if it stands for nothing else.
        Identities that are not all alike are returned in groups, and nothing is changed. Two claims
        that race for an identity are serialised.
        """
        ...

    def note_members(self, run_id: str, members: Sequence[MemberClaim]) -> None:
        """Record which identities a run asks about that stands for none of them; once.

        They stay free, whoever claims them neither waits for the run nor replaces it, and
        ``latest_runs`` finds it. For a run whose identities nobody claims.
        """
        ...

    def list_members(self, run_id: str) -> list[Member]:
        """Return the run's members in order of ``seq``."""
        ...

    def open_members(self, identities: Sequence[Identity]) -> list[Member]:
        """Return the open members that hold these identities."""
        ...

    def latest_runs(self, identities: Sequence[Identity], *, but: str) -> list[str]:
        """Return the newest runs that asked about each identity, open or not, newest first.

        Of each identity back to the third that stood for it and came to its own end: one that was
        cancelled, or that asked some of the rows only, has not all the answers that were paid for.
        Each run once; ``but`` is a run that does not count.
        """
        ...

    def unwanted_rows(self, run_id: str) -> list[tuple[int, int]]:
        """Return the stretches of rows (first, last) of members that nobody wants any more.

        A member is unwanted once the last waiter that wanted it was cancelled while others wait for
        other members, and once another run has taken it over.
        """
        ...

    def release_members(self, run_id: str, identities: Sequence[Identity] | None = None) -> None:
        """Close members of the run, all unless some are given; their identities are free.

        Idempotent; needs no lease.
        """
        ...

    def get_waiter(self, waiter_id: str) -> Waiter:
        """Return one waiter."""
        ...

    def list_waiters(
        self,
        *,
        namespace: str | None = None,
        run_id: str | None = None,
        states: Iterable[WaiterState] | None = None,
        assets: Iterable[str] | None = None,
        payload: Mapping[str, Iterable[str]] | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Waiter]:
        """Return waiters in order of creation.

        Args:
            namespace: Whose.
            run_id: Of one run.
            states: In one of these.
            assets: Of one of these.
            payload: Whose payload has one of the values in each of these fields.
            after: Created after this waiter.
            limit: The most.
        """
        ...

    def waiter_groups(self, namespace: str, fields: Sequence[str]) -> list[WaiterGroup]:
        """Return the open waiters, counted by asset and by text fields of their payloads.

        One query, whatever their number.
        """
        ...

    def ready_waiters(
        self,
        namespace: str,
        field: str,
        *,
        per_group: int,
        limit: int,
        assets: Iterable[str] | None = None,
    ) -> list[Waiter]:
        """Return open waiters of terminal runs, fairly: the oldest of each group come first.

        Of all assets, or of some.

        Waiters of one asset with the same value in this field of their payload are a group; no
        more than ``per_group`` of each are returned. One query, whatever their number.
        """
        ...

    def update_waiter(
        self,
        waiter: Waiter,
        *,
        progress: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Waiter:
        """Change an open waiter, guarded by its ``version``.

        Raises:
            StaleTransitionError: Somebody changed it in between, or it is not open.
        """
        ...

    def end_waiter(
        self,
        waiter_id: str,
        state: WaiterState,
        reason: str | None,
        *,
        keeps_work: bool = False,
    ) -> EndedWaiter:
        """End an open waiter, and what is done for it alone, in one transaction.

        If it was the run's last open waiter and the run is terminal, the run's members are closed.
        If it ends unserved and the run goes on, nobody wants what only this waiter wanted: its
        members are unwanted from now on and, if it was the last one, the run gets control
        ``cancel`` with the same reason. ``keeps_work`` leaves the run and its members as they are.
        """
        ...

    # -- journal ------------------------------------------------------------------------------

    def list_events(
        self,
        run_id: str,
        *,
        after_sequence: int = 0,
        limit: int = 1000,
        kinds: Iterable[str] | None = None,
    ) -> list[Event]:
        """Return the run's journal from ``after_sequence`` (excluded) on, of all or some kinds."""
        ...
