"""Waiters: who asked for a run's results."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import RowMapping, insert, select, update

from batchor_core.errors import StaleTransitionError, StoreError
from batchor_core.model.records import Waiter
from batchor_core.model.states import WaiterState
from batchor_core.model.transitions import WAITER_TRANSITIONS, sources_of
from batchor_core.store.protocol import WaiterRequest
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.runs import close_members_if_unwanted, load_run
from batchor_core.store.sql.tables import waiters
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    record_columns,
    touch_run,
)

_COLUMNS = record_columns(waiters, Waiter)


class Waiters(Aggregate):
    """The waiters' part of the store; recording one is in ``claims``."""

    def get_waiter(self, waiter_id: str) -> Waiter:
        """See ``Store.get_waiter``."""
        with self._read() as tx:
            return _load_waiter(tx, waiter_id)

    def list_waiters(
        self,
        *,
        namespace: str | None = None,
        run_id: str | None = None,
        states: Iterable[WaiterState] | None = None,
    ) -> list[Waiter]:
        """See ``Store.list_waiters``."""
        statement = select(*_COLUMNS).order_by(waiters.c.ordinal)
        if namespace is not None:
            statement = statement.where(waiters.c.namespace == namespace)
        if run_id is not None:
            statement = statement.where(waiters.c.run_id == run_id)
        if states is not None:
            statement = statement.where(waiters.c.state.in_(list(states)))
        with self._read() as tx:
            return [_as_waiter(row) for row in tx.execute(statement).mappings()]

    def update_waiter(
        self,
        waiter: Waiter,
        *,
        progress: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Waiter:
        """See ``Store.update_waiter``; None leaves a part as it is."""
        changes = {"progress": progress, "payload": payload}
        values = {name: value for name, value in changes.items() if value is not None}
        with self._write() as tx:
            touch_run(tx, waiter.run_id)
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

    def end_waiter(self, waiter_id: str, state: WaiterState, reason: str | None) -> bool:
        """See ``Store.end_waiter``."""
        sources = sources_of(WAITER_TRANSITIONS, state)
        if not sources:
            raise StoreError(f"waiter {waiter_id!r}: {state!s} is no end of a waiter")
        with self._write() as tx:
            run_id = _load_waiter(tx, waiter_id).run_id
            touch_run(tx, run_id)
            ended = tx.execute(
                update(waiters)
                .where(waiters.c.waiter_id == waiter_id, waiters.c.state.in_(sources))
                .values(state=state, reason=reason, ended_at=tx.now, version=waiters.c.version + 1)
            )
            if not ended.rowcount:
                return False
            append_event(
                tx, run_id, "waiter.ended", waiter_id=waiter_id, state=state, reason=reason
            )
            close_members_if_unwanted(tx, load_run(tx, run_id))
            return True


def add_waiter(tx: Transaction, run_id: str, waiter: WaiterRequest) -> None:
    """Record an open waiter of the run."""
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
        )
    )
    append_event(
        tx,
        run_id,
        "waiter.added",
        waiter_id=waiter.waiter_id,
        partitions=len(waiter.partitions),
    )


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
