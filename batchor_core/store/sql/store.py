"""The store on SQLAlchemy: the sum of its aggregates, and how it is opened."""

import os
from functools import cached_property
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, select

from batchor_core.clock import Clock, SystemClock
from batchor_core.store.protocol import StoreHealth
from batchor_core.store.sql.budgets import Budgets
from batchor_core.store.sql.chunks import Chunks
from batchor_core.store.sql.claims import Claims
from batchor_core.store.sql.costs import Costs
from batchor_core.store.sql.counts import Counts
from batchor_core.store.sql.database_clock import DatabaseClock
from batchor_core.store.sql.engine import Database, postgres, sqlite_file, sqlite_memory
from batchor_core.store.sql.events import Events
from batchor_core.store.sql.heartbeats import Heartbeats
from batchor_core.store.sql.leases import Leases
from batchor_core.store.sql.members import Members
from batchor_core.store.sql.migrations import HEAD, schema_version, upgrade
from batchor_core.store.sql.open_work import OpenWorkQueries
from batchor_core.store.sql.polls import Polls
from batchor_core.store.sql.retention import Retention
from batchor_core.store.sql.retries import Retries
from batchor_core.store.sql.runs import Runs
from batchor_core.store.sql.scopes import Scopes
from batchor_core.store.sql.setbacks import Setbacks
from batchor_core.store.sql.submissions import Submissions
from batchor_core.store.sql.sweeps import Sweeps
from batchor_core.store.sql.tables import stores
from batchor_core.store.sql.transaction import Listener, Transaction
from batchor_core.store.sql.waiters import Waiters


class SqlStore(
    Runs,
    Retries,
    Retention,
    Counts,
    Costs,
    Budgets,
    OpenWorkQueries,
    Setbacks,
    Heartbeats,
    Leases,
    Chunks,
    Submissions,
    Polls,
    Sweeps,
    Scopes,
    Members,
    Claims,
    Waiters,
    Events,
):
    """A ``Store`` in a relational database. Threads may share it; a fork may go on using it.

    Opening brings the schema up to date.

    Args:
        database: Where it is kept.
        clock: Where time comes from; None is the machine's.

    Raises:
        StoreError: It cannot be opened, or was written by a newer version of this library.
    """

    def __init__(self, database: Database, clock: Clock | None = None) -> None:
        super().__init__(database, clock or SystemClock())
        try:
            upgrade(database)
        except BaseException:
            database.close()
            raise

    @cached_property
    def store_id(self) -> str:
        """See ``Store.store_id``."""
        with self._read() as tx:
            return str(tx.execute(select(stores.c.store_id)).scalar_one())

    def check(self) -> StoreHealth:
        """See ``Store.check``."""
        with self._write() as tx:
            version = schema_version(tx.connection)
        return StoreHealth(location=self._database.location, schema=version, newest=HEAD)

    def subscribe(self, listener: Listener) -> None:
        """See ``Store.subscribe``."""
        self._listeners.append(listener)

    def close(self) -> None:
        """See ``Store.close``."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._database.location}>"


class SQLiteStorage(SqlStore):
    """A store in one SQLite file, for all processes of one machine.

    Args:
        path: The file; it and its folders are created if need be, for their owner alone. It has
            to be on a local disk: SQLite's locks do not hold on network file systems.
        clock: Where time comes from; None is the machine's.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        super().__init__(sqlite_file(path), clock)

    @classmethod
    def in_memory(cls, *, clock: Clock | None = None) -> Self:
        """Open an empty store that lives as long as this process; its threads may share it."""
        store = cls.__new__(cls)
        SqlStore.__init__(store, sqlite_memory(), clock)
        return store


class PostgresStorage(SqlStore):
    """A store in a PostgreSQL database, for processes on any number of machines.

    Args:
        dsn: ``postgresql://user:password@host:5432/name``; psycopg 3 is used in any case.
        clock: Where time comes from; None is the database's own, whatever the machine's clock says.
    """

    def __init__(self, dsn: str, *, clock: Clock | None = None) -> None:
        super().__init__(postgres(dsn), clock or DatabaseClock())

    def _begun(self, connection: Connection) -> Transaction:
        if isinstance(self.clock, DatabaseClock):
            self.clock.ask(connection)
        return super()._begun(connection)
