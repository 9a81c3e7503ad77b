"""Scopes: the queue limits that runs and processes share."""

from datetime import datetime, timedelta

from sqlalchemy import Row, func, or_, select, update

from batchor_core.model.records import NewSubmission, ScopeLimits
from batchor_core.model.states import (
    QUEUED_SUBMISSION_STATES,
    ChunkState,
    RunControlState,
    RunState,
)
from batchor_core.store.protocol import ScopeFull
from batchor_core.store.sql.tables import chunks, runs, scopes, submissions
from batchor_core.store.sql.transaction import Aggregate, Transaction

DRIVEN_WITHIN = timedelta(minutes=5)
"""A run that nobody has touched for longer does not make others wait."""

GIVE_WAY = timedelta(seconds=5)
"""How long a run that gives way waits before it tries again."""

_KINDS = ("max_requests", "max_tokens", "max_batches")


class Scopes(Aggregate):
    """The scopes' part of the store."""

    def scope_limits(self, scope: str) -> ScopeLimits:
        """See ``Store.scope_limits``."""
        statement = select(*(scopes.c[kind] for kind in _KINDS)).where(scopes.c.scope == scope)
        with self._read() as tx:
            row = tx.execute(statement).mappings().one_or_none()
        return ScopeLimits() if row is None else ScopeLimits(**row)

    def remember_limits(
        self, scope: str, limits: ScopeLimits, backoff_until: datetime | None
    ) -> None:
        """See ``Store.remember_limits``; ``backoff_until`` None leaves the back-off as it is."""
        named = {kind: getattr(limits, kind) for kind in _KINDS} | {"backoff_until": backoff_until}
        values = {column: value for column, value in named.items() if value is not None}
        with self._write() as tx:
            lock_scope(tx, scope)
            if values:
                tx.execute(update(scopes).where(scopes.c.scope == scope).values(values))


def lock_scope(tx: Transaction, scope: str) -> Row[tuple[object, ...]]:
    """Lock the scope's row, creating it first if need be, and return it."""
    statement = select(scopes).where(scopes.c.scope == scope).with_for_update()
    row = tx.execute(statement).one_or_none()
    if row is not None:
        return row
    tx.insert_if_absent(scopes, {"scope": scope})
    return tx.execute(statement).one()


def refusal(tx: Transaction, wanted: NewSubmission, limits: ScopeLimits) -> ScopeFull | None:
    """Return why the scope has no room for the submission, or None; holds the scope's lock.

    A chunk that can never fit is told so even while the scope backs off: splitting it needs no
    provider.
    """
    remembered = lock_scope(tx, wanted.scope)
    needs = {"requests": wanted.reserved_requests, "tokens": wanted.reserved_tokens, "batches": 1}
    caps = {
        unit: _smaller(getattr(limits, f"max_{unit}"), getattr(remembered, f"max_{unit}"))
        for unit in needs
    }
    if wanted.reserved_requests == 1 and caps["tokens"] is not None:
        # Its tokens are an estimate, and it cannot be split: alone in the scope it may be tried.
        needs["tokens"] = min(needs["tokens"], caps["tokens"])
    for unit in ("requests", "tokens"):
        cap = caps[unit]
        if cap is not None and needs[unit] > cap:
            reason = f"the chunk's {needs[unit]} {unit} exceed the limit of {cap}"
            return ScopeFull(reason=f"scope {wanted.scope!r}: {reason}", never_fits=True)
    if remembered.backoff_until is not None and remembered.backoff_until > tx.now:
        until = remembered.backoff_until
        reason = f"scope {wanted.scope!r} backs off until {until:%Y-%m-%d %H:%M:%S} UTC"
        return ScopeFull(reason=reason, retry_at=until)
    lack = _lack_of_room(wanted.scope, needs, caps, _reserved(tx, wanted.scope))
    if lack is None and any(cap is not None for cap in caps.values()):
        return _give_way(tx, wanted)
    return lack


def _give_way(tx: Transaction, wanted: NewSubmission) -> ScopeFull | None:
    """Let a run that has nothing in a limited scope go before one that has something.

    Only a run that somebody drives counts (each of its tries stamps it): one that lies idle must
    not hold up the others.
    """
    live = select(submissions.c.run_id).where(
        submissions.c.scope == wanted.scope,
        submissions.c.state.in_(sorted(QUEUED_SUBMISSION_STATES)),
    )
    mine = live.where(submissions.c.run_id == wanted.run_id).limit(1)
    if tx.execute(mine).first() is None:
        return None
    hungry = (
        select(runs.c.run_id)
        .join(chunks, chunks.c.run_id == runs.c.run_id)
        .where(
            runs.c.scope == wanted.scope,
            runs.c.state == RunState.RUNNING,
            runs.c.control == RunControlState.RUN,
            runs.c.updated_at >= tx.now - DRIVEN_WITHIN,
            runs.c.run_id.not_in(live),
            chunks.c.state == ChunkState.READY,
            chunks.c.is_duplicate.is_(False),
            or_(chunks.c.not_before.is_(None), chunks.c.not_before <= tx.now),
        )
        .limit(1)
    )
    found = tx.execute(hungry).scalar_one_or_none()
    if found is None:
        return None
    reason = f"scope {wanted.scope!r}: run {found!r} has nothing in it yet and goes first"
    return ScopeFull(reason=reason, retry_at=tx.now + GIVE_WAY)


def _lack_of_room(
    scope: str, needs: dict[str, int], caps: dict[str, int | None], reserved: dict[str, int]
) -> ScopeFull | None:
    for unit, cap in caps.items():
        if cap is not None and reserved[unit] + needs[unit] > cap:
            taken = f"{reserved[unit]} of {cap} {unit} are taken and {needs[unit]} are wanted"
            return ScopeFull(reason=f"scope {scope!r}: {taken}")
    return None


def _reserved(tx: Transaction, scope: str) -> dict[str, int]:
    statement = select(
        func.coalesce(func.sum(submissions.c.reserved_requests), 0).label("requests"),
        func.coalesce(func.sum(submissions.c.reserved_tokens), 0).label("tokens"),
        func.count().label("batches"),
    ).where(
        submissions.c.scope == scope,
        submissions.c.state.in_(sorted(QUEUED_SUBMISSION_STATES)),
    )
    # PostgreSQL sums BIGINT into NUMERIC, hence int().
    return {unit: int(sum_) for unit, sum_ in tx.execute(statement).mappings().one().items()}


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
