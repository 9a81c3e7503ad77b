"""What an orchestrator needs of the control plane, beyond what a run does.

Members and those who wait for them, and which of many runs need something. The rules of
``store.protocol`` hold here as well.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from batchor_core.model.records import Event, Heartbeat, Identity, Waiter
from batchor_core.model.states import RunControlState, WaiterState
from batchor_core.store.protocol import OpenWork, Store


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


class OrchestratorStore(Store, Protocol):
    """A control plane of many runs, and of those who wait for them."""

    # -- due work -----------------------------------------------------------------------------

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

    def leased(self, run_ids: Iterable[str]) -> set[str]:
        """Return those of these runs on which a lease is in force."""
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

    def latest_runs(self, identities: Sequence[Identity], *, but: str) -> list[str]:
        """Return the newest runs that asked about each identity, open or not, newest first.

        Of each identity back to the third that stood for it and came to its own end: one that was
        cancelled, or that asked some of the rows only, has not all the answers that were paid for.
        Each run once; ``but`` is a run that does not count.
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
