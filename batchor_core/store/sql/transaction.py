"""What every aggregate of the store is made of: transactions, the fence, guarded updates."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Column, Connection, CursorResult, Executable, Table, select, update

from batchor_core.clock import Clock
from batchor_core.errors import LeaseLostError, StaleTransitionError
from batchor_core.model.records import Event, Lease
from batchor_core.model.transitions import Transition, sources_of
from batchor_core.store.sql import tables
from batchor_core.store.sql.engine import Database

S = TypeVar("S", bound=StrEnum)
T = TypeVar("T")

VALUES_PER_QUERY = 500

Listener: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """One open transaction and the instant at which it began.

    Attributes:
        events: What it has written into the journal.
    """

    connection: Connection
    database: Database
    now: datetime
    events: list[Event] = field(default_factory=list)

    def execute(self, statement: Executable) -> CursorResult[Any]:
        """Run one statement."""
        return self.connection.execute(statement)

    def insert_if_absent(self, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row unless its key exists; whether it was inserted."""
        return self.database.insert_if_absent(self.connection, table, dict(values))


class Aggregate:
    """Base of the parts of ``SqlStore``: each public method of a part is one transaction.

    Row locks are always taken in the order lease, run, scope, everything else, so that two
    transactions never wait for each other.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self.clock = clock
        self._listeners: list[Listener] = []

    @contextmanager
    def _read(self) -> Iterator[Transaction]:
        with self._database.read() as connection:
            yield self._begun(connection)

    @contextmanager
    def _write(self) -> Iterator[Transaction]:
        with self._database.write() as connection:
            tx = self._begun(connection)
            yield tx
        for event in tx.events:  # only what is committed has happened
            for listener in self._listeners:
                listener(event)

    @contextmanager
    def _fenced(self, lease: Lease) -> Iterator[Transaction]:
        """Open a write transaction that only the holder of the lease gets into.

        The token alone decides: a lease that ran out and was not taken over still fences.
        """
        with self._write() as tx:
            held = tx.execute(
                update(tables.leases)
                .where(
                    tables.leases.c.run_id == lease.run_id,
                    tables.leases.c.token == lease.token,
                    tables.leases.c.owner == lease.owner,
                )
                .values(token=tables.leases.c.token)  # changes nothing, locks the row
            )
            if held.rowcount != 1:
                raise lease_lost(lease)
            lock_run(tx, lease.run_id)
            yield tx

    def _begun(self, connection: Connection) -> Transaction:
        return Transaction(connection=connection, database=self._database, now=self.clock.now())


def lease_lost(lease: Lease) -> LeaseLostError:
    """Return the error for a lease that is not in force any more."""
    return LeaseLostError(
        f"run {lease.run_id!r}: {lease.owner!r} does not hold it any more "
        f"(token {lease.token}); stop, and take a new lease before going on"
    )


def lock_run(tx: Transaction, run_id: str) -> bool:
    """Lock the run's row and stamp it; whether there is one.

    Whoever writes an event comes through here first: the numbers of a run's events then grow in
    the order of their commits, and a reader that pages through the journal misses none.
    """
    statement = update(tables.runs).where(tables.runs.c.run_id == run_id)
    return bool(tx.execute(statement.values(updated_at=tx.now)).rowcount)


def lock_runs(tx: Transaction, run_ids: Iterable[str]) -> None:
    """Do as ``lock_run`` does for many runs, which are locked in one order by everybody."""
    for group in batched(sorted(set(run_ids))):
        named = tables.runs.c.run_id.in_(group)
        ordered = select(tables.runs.c.run_id).where(named).order_by(tables.runs.c.run_id)
        tx.execute(ordered.with_for_update()).all()
        tx.execute(update(tables.runs).where(named).values(updated_at=tx.now))


def change_state(
    tx: Transaction,
    table: Table,
    key: Mapping[str, Any],
    transitions: tuple[Transition[S], ...],
    target: S,
    **values: Any,
) -> None:
    """Move one row to ``target`` along the transition table, setting ``values`` with it.

    Args:
        tx: The transaction.
        table: Where the row is; it has a column ``state``.
        key: Column values that name the row, ``run_id`` among them.
        transitions: What is allowed.
        target: The wanted state.
        values: Further columns to set.

    Raises:
        StaleTransitionError: The row is in no state from which ``target`` may be reached.
    """
    named = [table.c[column] == value for column, value in key.items()]
    sources = sources_of(transitions, target)
    statement = update(table).where(*named, table.c.state.in_(sources))
    if tx.execute(statement.values(state=target, **values)).rowcount == 1:
        return
    found = tx.execute(select(table.c.state).where(*named)).scalar_one_or_none()
    raise stale(table, key, wanted=target, found=found)


def stale(
    table: Table, key: Mapping[str, Any], *, wanted: str, found: str | None
) -> StaleTransitionError:
    """Return the error for a row that is not in the state its caller believed."""
    entity = table.name.removeprefix("batchor_").removesuffix("s")
    where = ", ".join(f"{column} {value!r}" for column, value in key.items())
    state = f"is {found!s}" if found is not None else "does not exist"
    return StaleTransitionError(f"{entity} ({where}): wanted {wanted!s}, but it {state}")


def record_columns(table: Table, record: type) -> list[Column[Any]]:
    """Return the columns of ``table`` that are fields of the dataclass ``record``."""
    return [table.c[each.name] for each in fields(record) if each.name in table.c]


def batched(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield the values in lists that no database finds too long for one statement."""
    rest = iter(values)
    while group := list(islice(rest, VALUES_PER_QUERY)):
        yield group
