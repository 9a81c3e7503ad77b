"""Waiters: who asked for a run's results."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, true, update

from batchor_core.errors import StaleTransitionError, StoreError
from batchor_core.ids import new_waiter_id
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.model.states import TERMINAL_RUN_STATES, RunControlState, WaiterState
from batchor_core.model.transitions import WAITER_TRANSITIONS, sources_of
from batchor_core.store.orchestration import EndedWaiter, WaiterGroup, WaiterRequest
from batchor_core.store.sql.engine import json_text
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.members import note_unwanted
from batchor_core.store.sql.runs import close_members_if_unwanted, load_run, write_control
from batchor_core.store.sql.tables import runs, waiters
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    lock_run,
    record_columns,
)

_COLUMNS = record_columns(waiters, Waiter)


SHRUNK = "shrunk"
"""In a waiter's progress, which is opaque otherwise: how often partitions were taken from it. What
was noted before is void, since it was noted of other partitions. Stored."""


class Waiters(Aggregate):
    """The waiters' part of the store; recording one is in ``claims``."""

    def get_waiter(self, waiter_id: str) -> Waiter:
        """See ``OrchestratorStore.get_waiter``."""
        with self._read() as tx:
            return _load_waiter(tx, waiter_id)

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
        """See ``OrchestratorStore.list_waiters``."""
        statement = select(*_COLUMNS).order_by(waiters.c.ordinal).limit(limit)
        if namespace is not None:
            statement = statement.where(waiters.c.namespace == namespace)
        if run_id is not None:
            statement = statement.where(waiters.c.run_id == run_id)
        if states is not None:
            statement = statement.where(waiters.c.state.in_(list(states)))
        if assets is not None:
            statement = statement.where(waiters.c.asset.in_(list(assets)))
        if after is not None:
            earlier = waiters.alias()
            ordinal = select(earlier.c.ordinal).where(earlier.c.waiter_id == after)
            statement = statement.where(waiters.c.ordinal > ordinal.scalar_subquery())
        for name, values in (payload or {}).items():
            statement = statement.where(json_text(waiters.c.payload, name).in_(list(values)))
        with self._read() as tx:
            return [_as_waiter(row) for row in tx.execute(statement).mappings()]

    def waiter_groups(self, namespace: str, fields: Sequence[str]) -> list[WaiterGroup]:
        """See ``OrchestratorStore.waiter_groups``."""
        texts = [json_text(waiters.c.payload, name).label(f"field_{name}") for name in fields]
        statement = (
            select(waiters.c.asset, func.count().label("waiting"), *texts)
            .where(waiters.c.namespace == namespace, waiters.c.state == WaiterState.OPEN)
            .group_by(waiters.c.asset, *texts)
        )
        with self._read() as tx:
            found = tx.execute(statement).all()
        values: list[tuple[Any, ...]] = [tuple(row) for row in found]
        return [WaiterGroup(asset=row[0], fields=row[2:], count=row[1]) for row in values]

    def ready_waiters(
        self,
        namespace: str,
        field: str,
        *,
        per_group: int,
        limit: int,
        assets: Iterable[str] | None = None,
    ) -> list[Waiter]:
        """See ``OrchestratorStore.ready_waiters``."""
        group = (waiters.c.asset, json_text(waiters.c.payload, field))
        turn = func.row_number().over(partition_by=group, order_by=waiters.c.ordinal)
        ready = (
            select(waiters.c.ordinal, turn.label("turn"))
            .join(runs, runs.c.run_id == waiters.c.run_id)
            .where(
                waiters.c.namespace == namespace,
                waiters.c.state == WaiterState.OPEN,
                runs.c.state.in_(list(TERMINAL_RUN_STATES)),
                true() if assets is None else waiters.c.asset.in_(list(assets)),
            )
            .subquery()
        )
        statement = (
            select(*_COLUMNS)
            .join(ready, ready.c.ordinal == waiters.c.ordinal)
            .where(ready.c.turn <= per_group)
            .order_by(ready.c.turn, waiters.c.ordinal)
            .limit(limit)
        )
        with self._read() as tx:
            return [_as_waiter(row) for row in tx.execute(statement).mappings()]

    def update_waiter(
        self,
        waiter: Waiter,
        *,
        progress: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Waiter:
        """See ``OrchestratorStore.update_waiter``; None leaves a part as it is."""
        changes = {"progress": progress, "payload": payload}
        values = {name: value for name, value in changes.items() if value is not None}
        with self._write() as tx:
            lock_run(tx, waiter.run_id)
            changed = tx.execute(
                update(waiters)
                .where(
                    waiters.c.waiter_id == waiter.waiter_id,
                    waiters.c.version == waiter.version,
                    waiters.c.state == WaiterState.OPEN,
                )
                .values(version=waiter.version + 1, **values)
            )
            now = _load_waiter(tx, waiter.waiter_id)
            if changed.rowcount != 1:
                raise StaleTransitionError(
                    f"run {waiter.run_id!r}, waiter {waiter.waiter_id!r}: wanted open at version "
                    f"{waiter.version}, but it is {now.state!s} at version {now.version}"
                )
            append_event(
                tx,
                waiter.run_id,
                "waiter.updated",
                waiter_id=waiter.waiter_id,
                version=now.version,
            )
            return now

    def end_waiter(
        self,
        waiter_id: str,
        state: WaiterState,
        reason: str | None,
        *,
        keeps_work: bool = False,
    ) -> EndedWaiter:
        """See ``OrchestratorStore.end_waiter``."""
        sources = sources_of(WAITER_TRANSITIONS, state)
        if not sources:
            raise StoreError(f"waiter {waiter_id!r}: {state!s} is no end of a waiter")
        with self._write() as tx:
            waiter = _load_waiter(tx, waiter_id)
            run_id = waiter.run_id
            lock_run(tx, run_id)
            ended = tx.execute(
                update(waiters)
                .where(waiters.c.waiter_id == waiter_id, waiters.c.state.in_(sources))
                .values(state=state, reason=reason, ended_at=tx.now, version=waiters.c.version + 1)
            )
            if not ended.rowcount:
                return EndedWaiter(ended=False)
            append_event(
                tx, run_id, "waiter.ended", waiter_id=waiter_id, state=state, reason=reason
            )
            run = load_run(tx, run_id)
            close_members_if_unwanted(tx, run)
            if state is WaiterState.SERVED or keeps_work or run.state.is_terminal:
                return EndedWaiter(ended=True)
            return EndedWaiter(
                ended=True, run_cancelled=_give_up_unwanted(tx, run, waiter.partitions, reason)
            )


def _give_up_unwanted(
    tx: Transaction, run: RunRecord, partitions: Sequence[str], reason: str | None
) -> bool:
    """Give up what only one waiter wanted of a run; True if that was the whole run."""
    others = select(waiters.c.partitions).where(
        waiters.c.run_id == run.run_id, waiters.c.state == WaiterState.OPEN
    )
    wanted = list(tx.execute(others).scalars())
    if not wanted:
        return write_control(tx, run.run_id, RunControlState.CANCEL, reason) != run
    note_unwanted(tx, run.run_id, set(partitions).difference(*wanted))
    return False


def add_waiter(tx: Transaction, run_id: str, waiter: WaiterRequest) -> str | None:
    """Record an open waiter of the run, unless one of the same demand is there.

    Returns:
        The waiter that is there; None if this one was recorded.
    """
    alike = _find_alike(tx, run_id, waiter)
    if alike is not None:
        return alike
    tx.execute(
        insert(waiters).values(
            waiter_id=waiter.waiter_id,
            run_id=run_id,
            namespace=waiter.namespace,
            asset=waiter.asset,
            partitions=list(waiter.partitions),
            payload=waiter.payload,
            progress={},
            state=WaiterState.OPEN,
            version=1,
            created_at=tx.now,
            demand=waiter.demand,
        )
    )
    append_event(
        tx,
        run_id,
        "waiter.added",
        waiter_id=waiter.waiter_id,
        partitions=len(waiter.partitions),
    )
    return None


def _find_alike(tx: Transaction, run_id: str, waiter: WaiterRequest) -> str | None:
    """Return the oldest open waiter of the run that has everything done that this one wants."""
    if waiter.demand is None:
        return None
    statement = select(waiters.c.waiter_id, waiters.c.partitions).where(
        waiters.c.run_id == run_id,
        waiters.c.state == WaiterState.OPEN,
        waiters.c.asset == waiter.asset,
        waiters.c.demand == waiter.demand,
    )
    found = tx.execute(statement.order_by(waiters.c.ordinal))
    return next(
        (row.waiter_id for row in found if tuple(row.partitions) == waiter.partitions), None
    )


def move_waiters(
    tx: Transaction, run_id: str, successor_id: str, partitions: AbstractSet[str]
) -> None:
    """Let those who wait for some partitions of a run wait for another run.

    Whoever waits for more keeps waiting for the rest; what was taken gets a waiter of its own, on
    behalf of the same request.
    """
    statement = select(*_COLUMNS).where(
        waiters.c.run_id == run_id, waiters.c.state == WaiterState.OPEN
    )
    for row in tx.execute(statement.order_by(waiters.c.ordinal)).mappings().all():
        waiter = _as_waiter(row)
        moved = tuple(p for p in waiter.partitions if p in partitions)
        rest = [p for p in waiter.partitions if p not in partitions]
        if not moved:
            continue
        changes: dict[str, Any] = {"run_id": successor_id, "progress": {}}
        if rest:
            cuts = 1 + waiter.progress.get(SHRUNK, 0)
            changes = {"partitions": rest, "progress": {SHRUNK: cuts}}
        tx.execute(
            update(waiters)
            .where(waiters.c.waiter_id == waiter.waiter_id)
            .values(version=waiter.version + 1, **changes)
        )
        if rest:
            request = WaiterRequest(
                waiter_id=new_waiter_id(),
                namespace=waiter.namespace,
                asset=waiter.asset,
                partitions=moved,
                payload=waiter.payload,
            )
            add_waiter(tx, successor_id, request)


def run_of_waiter(tx: Transaction, waiter_id: str) -> str | None:
    """Return the run that the waiter waits for; None where there is no such waiter."""
    statement = select(waiters.c.run_id).where(waiters.c.waiter_id == waiter_id)
    run_id: str | None = tx.execute(statement).scalar_one_or_none()
    return run_id


def _load_waiter(tx: Transaction, waiter_id: str) -> Waiter:
    statement = select(*_COLUMNS).where(waiters.c.waiter_id == waiter_id)
    row = tx.execute(statement).mappings().one_or_none()
    if row is None:
        raise StoreError(f"no waiter {waiter_id!r} in {tx.database.location}")
    return _as_waiter(row)


def _as_waiter(row: RowMapping) -> Waiter:
    values = dict(row)
    return Waiter(**values | {"partitions": tuple(values["partitions"])})
