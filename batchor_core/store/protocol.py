"""The contract of the control plane.

Every method is one transaction: all of it or nothing. Methods that take a ``lease`` first assert
its fencing token in that transaction and raise ``LeaseLostError`` otherwise, so that a process
that lost its lease can change nothing. Changes of state are guarded updates along
``model.transitions``; one that finds another state raises ``StaleTransitionError``. Each change
writes its journal event in the same transaction. Any number of processes may call any method.

Nothing here calls a provider or moves a file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from batchor_core.clock import Clock
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import (
    ArtifactRef,
    ChunkRecord,
    Collected,
    Event,
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
)
from batchor_core.model.states import (
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
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
    """What a run needs of its control plane; ``OrchestratorStore`` adds what drives many."""

    @property
    def clock(self) -> Clock:
        """What its instants are told by; one for all processes that share it."""
        ...

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

    # -- members ------------------------------------------------------------------------------

    def list_members(self, run_id: str) -> list[Member]:
        """Return the run's members in order of ``seq``."""
        ...

    def unwanted_rows(self, run_id: str) -> list[tuple[int, int]]:
        """Return the stretches of rows (first, last) of members that nobody wants any more.

        A member is unwanted once the last waiter that wanted it was cancelled while others wait for
        other members, and once another run has taken it over.
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
