"""Claims: a freshly ingested run asks for its identities."""

from collections.abc import Sequence

from sqlalchemy import func, insert, select

from batchor_core.model.records import Identity, Member
from batchor_core.model.states import RunControlState
from batchor_core.store.protocol import ClaimResult, MemberClaim, WaiterRequest
from batchor_core.store.sql.engine import UniqueConflictError
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.members import close_members, find_open_members
from batchor_core.store.sql.runs import load_run, supersede_run, write_control
from batchor_core.store.sql.tables import members, runs
from batchor_core.store.sql.transaction import Aggregate, Transaction, touch_run
from batchor_core.store.sql.waiters import add_waiter, run_of_waiter

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
        """See ``Store.claim``. A claim of a waiter that is recorded already changes nothing."""
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
            if not held:
                _open_members(tx, run_id, claims)
                add_waiter(tx, run_id, waiter)
                return ClaimResult(run_id=run_id, attached=False)
            conflict = _conflict(tx, claims, held)
            holder = held[0].run_id
            if conflict and supersede and _has_just_these(tx, holder, claims, held):
                close_members(tx, holder)
                supersede_run(tx, holder, run_id)
                _open_members(tx, run_id, claims)
                add_waiter(tx, run_id, waiter)
                return ClaimResult(run_id=run_id, attached=False, superseded=holder)
            if conflict:
                first = next(member for member in held if member.identity == conflict[0])
                return ClaimResult(run_id=first.run_id, attached=False, conflict=conflict)
            if holder != run_id:
                write_control(tx, run_id, RunControlState.CANCEL, ATTACHED)
                touch_run(tx, holder)
            add_waiter(tx, holder, waiter)
            return ClaimResult(run_id=holder, attached=holder != run_id)


def _lock_holders(tx: Transaction, run_id: str, identities: Sequence[Identity]) -> list[Member]:
    """Lock the claimant's run and the runs that hold the identities; return who holds them.

    Looked up again after locking: whoever closes a run's members locks the run first, so what is
    open under the lock stays open until we commit.
    """
    locked: set[str] = set()
    while True:
        held = find_open_members(tx, identities)
        wanted = {run_id, *(member.run_id for member in held)} - locked
        if not wanted:
            return held
        named = select(runs.c.run_id).where(runs.c.run_id.in_(wanted))
        tx.execute(named.order_by(runs.c.run_id).with_for_update()).all()
        locked |= wanted


def _conflict(
    tx: Transaction, claims: Sequence[MemberClaim], held: Sequence[Member]
) -> tuple[Identity, ...]:
    """Return the identities that stand against attaching; none: attach to the one holder."""
    fingerprints = {claim.identity: claim.fingerprint for claim in claims}
    changed = [m.identity for m in held if fingerprints[m.identity] != m.fingerprint]
    if changed:
        return tuple(changed)
    one_run = len({member.run_id for member in held}) == 1
    all_held = len(held) == len(fingerprints)
    ending = load_run(tx, held[0].run_id).control == RunControlState.CANCEL
    if one_run and all_held and not ending:
        return ()
    return tuple(member.identity for member in held)


def _has_just_these(
    tx: Transaction, holder: str, claims: Sequence[MemberClaim], held: Sequence[Member]
) -> bool:
    """Whether one run holds all claimed identities and no other."""
    if {member.run_id for member in held} != {holder} or len(held) != len(claims):
        return False
    count = select(func.count()).where(members.c.run_id == holder, members.c.is_open)
    return bool(tx.execute(count).scalar_one() == len(claims))


def _open_members(tx: Transaction, run_id: str, claims: Sequence[MemberClaim]) -> None:
    rows = [
        {
            "run_id": run_id,
            "seq": seq,
            "namespace": claim.identity.namespace,
            "asset": claim.identity.asset,
            "partition": claim.identity.partition,
            "fingerprint": claim.fingerprint,
            "item_count": claim.item_count,
            "is_open": True,
        }
        for seq, claim in enumerate(claims)
    ]
    # In one order for everybody, so that two claims that share identities cannot deadlock.
    rows.sort(key=lambda row: (row["namespace"], row["asset"], row["partition"]))
    if rows:
        tx.connection.execute(insert(members), rows)
    touch_run(tx, run_id)
    append_event(
        tx,
        run_id,
        "members.opened",
        members=len(claims),
        item_count=sum(claim.item_count for claim in claims),
    )
