"""Claims: a freshly ingested run asks for its identities."""

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import select

from batchor_core.model.records import Identity, Member
from batchor_core.model.states import RunControlState
from batchor_core.store.orchestration import ClaimResult, MemberClaim, WaiterRequest
from batchor_core.store.sql.engine import UniqueConflictError
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.members import (
    close_members,
    flag_unwanted_chunks,
    insert_members,
    open_members_of,
)
from batchor_core.store.sql.runs import load_run, note_predecessor, supersede_run, write_control
from batchor_core.store.sql.tables import runs
from batchor_core.store.sql.transaction import Aggregate, Transaction, lock_run
from batchor_core.store.sql.waiters import add_waiter, move_waiters, run_of_waiter

ATTACHED = "attached"
"""The stored reason of a run that was cancelled because an earlier one stands for it."""


class Claims(Aggregate):
    """The claims' part of the store."""

    def claim(
        self,
        run_id: str,
        members: Sequence[MemberClaim],
        waiter: WaiterRequest,
        *,
        supersede: bool = False,
    ) -> ClaimResult:
        """See ``OrchestratorStore.claim``; with a waiter that is recorded it changes nothing."""
        try:
            return self._claim_once(run_id, members, waiter, supersede=supersede)
        except UniqueConflictError:
            # Another claim opened an identity between our look and our insert; it is visible now.
            return self._claim_once(run_id, members, waiter, supersede=supersede)

    def _claim_once(
        self,
        run_id: str,
        claims: Sequence[MemberClaim],
        waiter: WaiterRequest,
        *,
        supersede: bool,
    ) -> ClaimResult:
        with self._write() as tx:
            load_run(tx, run_id)
            known = run_of_waiter(tx, waiter.waiter_id)
            if known is not None:
                return ClaimResult(run_id=known, attached=known != run_id)
            held = _lock_holders(tx, run_id, [claim.identity for claim in claims])
            groups = _groups(tx, claims, held)
            if len(groups) > 1:
                alike = tuple(tuple(group) for group in groups.values())
                return ClaimResult(run_id=run_id, attached=False, groups=alike)
            holder, is_changed = next(iter(groups), (None, False))
            if holder is None:
                _open_members(tx, run_id, claims)
                add_waiter(tx, run_id, waiter)
                return ClaimResult(run_id=run_id, attached=False)
            if is_changed and not supersede:
                conflict = tuple(claim.identity for claim in claims)
                return ClaimResult(run_id=holder, attached=False, conflict=conflict)
            if is_changed:
                _take_over(tx, holder, run_id, claims)
                joined = add_waiter(tx, run_id, waiter)  # one that was taken over
                return ClaimResult(run_id=run_id, attached=False, superseded=holder, joined=joined)
            if holder != run_id:
                write_control(tx, run_id, RunControlState.CANCEL, ATTACHED)
                lock_run(tx, holder)
            joined = add_waiter(tx, holder, waiter)
            return ClaimResult(run_id=holder, attached=holder != run_id, joined=joined)


def _lock_holders(tx: Transaction, run_id: str, identities: Sequence[Identity]) -> list[Member]:
    """Lock the claimant's run and the runs that hold the identities; return who holds them.

    Looked up again after locking: whoever closes a run's members locks the run first, so what is
    open under the lock stays open until we commit.
    """
    locked: set[str] = set()
    while True:
        held = open_members_of(tx, identities)
        wanted = {run_id, *(member.run_id for member in held)} - locked
        if not wanted:
            return held
        named = select(runs.c.run_id).where(runs.c.run_id.in_(wanted))
        tx.execute(named.order_by(runs.c.run_id).with_for_update()).all()
        locked |= wanted


def _groups(
    tx: Transaction, claims: Sequence[MemberClaim], held: Sequence[Member]
) -> dict[tuple[str | None, bool], list[Identity]]:
    """Sort the identities by (the run that holds them, whether it holds another version)."""
    holders = {member.identity: member for member in held}
    ending = {
        run_id
        for run_id in {member.run_id for member in held}
        if load_run(tx, run_id).control == RunControlState.CANCEL
    }
    groups: dict[tuple[str | None, bool], list[Identity]] = defaultdict(list)
    for claim in claims:
        member = holders.get(claim.identity)
        if member is None:
            groups[None, False].append(claim.identity)
        else:
            is_going = member.run_id in ending or not member.is_wanted
            is_changed = is_going or member.fingerprint != claim.fingerprint
            groups[member.run_id, is_changed].append(claim.identity)
    return groups


def _take_over(tx: Transaction, holder: str, run_id: str, claims: Sequence[MemberClaim]) -> None:
    """Open the identities for ``run_id`` and bring over who waits for them."""
    taken = [claim.identity for claim in claims]
    if close_members(tx, holder, taken):  # it stands for more
        flag_unwanted_chunks(tx, holder)
        move_waiters(tx, holder, run_id, {identity.partition for identity in taken})
        note_predecessor(tx, run_id, holder)
    else:
        supersede_run(tx, holder, run_id)
    _open_members(tx, run_id, claims)


def _open_members(tx: Transaction, run_id: str, claims: Sequence[MemberClaim]) -> None:
    insert_members(tx, run_id, claims, is_open=True)
    lock_run(tx, run_id)
    append_event(
        tx,
        run_id,
        "members.opened",
        members=len(claims),
        item_count=sum(claim.item_count for claim in claims),
    )
