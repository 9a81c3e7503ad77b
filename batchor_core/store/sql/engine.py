"""The databases we run on: the only place that knows how SQLite and PostgreSQL differ.

A write transaction on SQLite starts with ``BEGIN IMMEDIATE``: the file's one write lock is taken
before anything is read, so whatever a transaction saw is still true when it commits. PostgreSQL
gets the same from row locks (``with_for_update``, which SQLAlchemy leaves out on SQLite).
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    ExceptionContext,
    StaticPool,
    Table,
    Text,
    create_engine,
    event,
    literal_column,
    make_url,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from batchor_core.errors import ConfigurationError, StoreError

BUSY_TIMEOUT_S = 30
_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""When a PostgreSQL server that does not answer is given up: seconds, the last milliseconds.

The DSN may say otherwise, and more: a statement's time-out is a matter of the server, and poolers
between it and us refuse to pass it on.
"""
_BEGIN = "batchor_begin"
_MIGRATION_LOCK = "SELECT pg_advisory_xact_lock(7236287263)"  # any constant that is ours alone

_EXPLANATIONS = (
    ("disk is full", "its disk is full: make room, then go on; nothing was half-written"),
    ("no space left", "its disk is full: make room, then go on; nothing was half-written"),
    ("could not extend file", "its disk is full: make room, then go on"),
    ("readonly database", "it is read-only: check the permissions of the file and its folder"),
    ("read-only transaction", "it is read-only: connect to the primary server"),
    ("database is locked", f"another process held its lock for over {BUSY_TIMEOUT_S} s"),
    ("unable to open", "its file cannot be opened: check that the folder exists and is ours"),
    ("not a database", "the file is no SQLite database: check the path"),
    ("malformed", "the file is damaged: restore a backup, then run `batchor reconcile`"),
    ("deadlock detected", "two transactions waited for each other; try again"),
)


class UniqueConflictError(StoreError):
    """A constraint stopped the transaction: somebody else was faster. Internal to the store."""


class Database:
    """One database: opens transactions and says in one line what went wrong.

    Threads may share it, each with one transaction at a time. After a fork the child opens
    connections of its own.

    Args:
        engine: Its listeners have to be registered already.
        location: What error messages call it; holds no password.
        insert: The dialect's ``insert``, which knows ``on_conflict_do_nothing``.
        read_options: Execution options of transactions that only read.
        migration_lock: SQL that serialises migrations; None where the transaction itself does.
        exclusive: Whether transactions share one connection and have to take turns.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        location: str,
        insert: Callable[[Table], Any],
        read_options: dict[str, Any],
        migration_lock: str | None = None,
        exclusive: bool = False,
    ) -> None:
        self.location = location
        self._engine = engine
        self._insert = insert
        self._writer = engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
        self._reader = engine.execution_options(**read_options)
        self._migration_lock = migration_lock
        self._exclusive = exclusive
        self._turn: AbstractContextManager[Any] = threading.Lock() if exclusive else nullcontext()
        self._thread = _ThreadState()
        self._pid = os.getpid()
        self._inherited: list[object] = []
        _OPENED.add(self)

    def write(self) -> AbstractContextManager[Connection]:
        """Open a transaction that may write; it commits if the block ends without an exception."""
        return _Transaction(self, self._writer)

    def read(self) -> AbstractContextManager[Connection]:
        """Open a transaction that sees one moment of the database."""
        return _Transaction(self, self._reader)

    @contextmanager
    def migration(self) -> Iterator[Connection]:
        """Open a write transaction that excludes the migrations of all other processes."""
        with self.write() as connection:
            if self._migration_lock:
                connection.execute(text(self._migration_lock))
            yield connection

    def insert_if_absent(self, connection: Connection, table: Table, values: Any) -> bool:
        """Insert a row unless its key exists; whether it was inserted."""
        statement = self._insert(table).values(values).on_conflict_do_nothing()
        done = connection.execute(statement, execution_options={"preserve_rowcount": True})
        return done.rowcount == 1

    def close(self) -> None:
        """Give back all connections."""
        self._engine.dispose()

    def explained(self, error: SQLAlchemyError) -> StoreError:
        """Return the error that says in one line what went wrong."""
        line = (str(getattr(error, "orig", None) or error).splitlines() or [""])[0]
        if isinstance(error, IntegrityError):
            return UniqueConflictError(f"{self.location}: {line}")
        for marker, explanation in _EXPLANATIONS:
            if marker in line.lower():
                return StoreError(f"{self.location}: {explanation} ({line})")
        return StoreError(f"{self.location}: {line}")

    def begin(self, transaction: "_Transaction", engine: Engine) -> Connection:
        """Begin a transaction, ending first what an interrupt has left open in this thread."""
        if self._exclusive and self._pid != os.getpid():
            raise StoreError(f"{self.location} lives in the process that opened it, not in a fork")
        if self._thread.open is not None:
            self._thread.open.abandon()
        self._thread.open = transaction
        stack = transaction.stack
        stack.enter_context(self._turn)
        connection = stack.enter_context(engine.connect())
        stack.enter_context(connection.begin())
        return connection

    def ended(self, transaction: "_Transaction") -> None:
        """Forget a transaction."""
        if self._thread.open is transaction:
            self._thread.open = None

    def leave_connections_to_parent(self) -> None:
        """Begin anew in a forked child, before any of its threads can ask for a connection."""
        # Kept, never closed: a connection belongs to the process that opened it, to close as well.
        self._inherited.append(self._engine.pool)
        self._engine.dispose(close=False)
        self._thread = _ThreadState()


_OPENED: "WeakSet[Database]" = WeakSet()
"""All databases of this process. State of the module, since a hook that is called after a fork is
the process's, and can never be taken back."""


def _leave_all_connections_to_parent() -> None:
    for database in list(_OPENED):
        database.leave_connections_to_parent()


if hasattr(os, "register_at_fork"):  # Windows forks nothing
    os.register_at_fork(after_in_child=_leave_all_connections_to_parent)


class _ThreadState(threading.local):
    open: "_Transaction | None" = None


class _Transaction(AbstractContextManager[Connection]):
    """One transaction of one thread, which can also be ended from outside its ``with`` block.

    Ctrl-C (or a scheduler's signal) may strike between the moment at which a transaction began and
    the first line of its block. Then no block ends it, and as long as somebody keeps the
    exception's traceback (an ``except`` clause, a notebook) it would go on holding its locks. A
    thread that opens a transaction while it has one open knows that the old one was left like that.
    """

    def __init__(self, database: Database, engine: Engine) -> None:
        self.stack = ExitStack()
        self._database = database
        self._engine = engine

    def __enter__(self) -> Connection:
        try:
            return self._database.begin(self, self._engine)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stack.__exit__(kind, error, traceback)
        except SQLAlchemyError as failure:
            raise self._database.explained(failure) from failure
        finally:
            self._database.ended(self)
        if isinstance(error, SQLAlchemyError):
            raise self._database.explained(error) from error

    def abandon(self) -> None:
        """Roll it back; its block, should it ever be left, then finds nothing to end."""
        with suppress(SQLAlchemyError):
            self.stack.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def sqlite_file(path: str | os.PathLike[str]) -> Database:
    """Open a SQLite file; a new one is created for its owner alone (0600, folders 0700)."""
    file = Path(path).expanduser().absolute()
    location = f"store {str(file)!r}"
    try:
        _create_private(file)
    except OSError as error:
        raise StoreError(f"{location} cannot be created: {error.strerror}") from error
    url = URL.create("sqlite", database=str(file))
    engine = _sqlite_engine(url)
    return Database(engine, location=location, insert=sqlite.insert, read_options={})


def sqlite_memory() -> Database:
    """Open a SQLite database that lives as long as this process; its threads take turns."""
    engine = _sqlite_engine(URL.create("sqlite"), poolclass=StaticPool)
    return Database(
        engine,
        location="the store in memory",
        insert=sqlite.insert,
        read_options={},
        exclusive=True,
    )


def postgres(dsn: str) -> Database:
    """Open a PostgreSQL database through psycopg 3.

    Raises:
        ConfigurationError: The DSN is unusable, or psycopg is not installed. The message never
            repeats the DSN, which holds a password.
    """
    url = _postgres_url(dsn)
    try:
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_pre_ping=True,
            connect_args={
                name: value for name, value in _TIMEOUTS.items() if name not in url.query
            },
        )
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "PostgreSQL needs psycopg: pip install 'batchor-dagster[postgres]'"
        ) from error
    server = url.host or "the local socket"
    return Database(
        engine,
        location=f"store {url.database!r} on {server}",
        insert=postgresql.insert,
        read_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
        migration_lock=_MIGRATION_LOCK,
    )


def _sqlite_engine(url: URL, **options: Any) -> Engine:
    # isolation_level None keeps Python's driver from opening transactions of its own.
    connect_args = {
        "timeout": BUSY_TIMEOUT_S,
        "isolation_level": None,
        "check_same_thread": False,
    }
    engine = create_engine(url, hide_parameters=True, connect_args=connect_args, **options)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    event.listen(engine, "handle_error", _stay_connected)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
    try:
        connection.execute("PRAGMA journal_mode=WAL").close()
    except sqlite3.OperationalError as error:
        # The one statement that does not wait for a lock. Whoever has it is switching the file,
        # for all connections; were it not so, the next connection would.
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def _stay_connected(context: ExceptionContext) -> None:
    """Roll back after an interrupt, as after any error, in place of closing the connection.

    SQLite keeps the locks of a connection that is closed while one of its cursors lives on, as one
    does in the interrupt's traceback.
    """
    if not isinstance(context.original_exception, Exception):
        context.is_disconnect = False


def _create_private(file: Path) -> None:
    missing = [folder for folder in file.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not file.exists():
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))


def _postgres_url(dsn: str) -> URL:
    # ``from None``: the causes quote the DSN, and with it the password.
    try:
        url = make_url(dsn)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            "the PostgreSQL DSN cannot be read; expected postgresql://user:password@host:5432/name "
            "with special characters of the password percent-encoded"
        ) from None
    if url.drivername not in {"postgresql", "postgres", "postgresql+psycopg"}:
        raise ConfigurationError("the DSN is not PostgreSQL: it has to start with postgresql://")
    if "@" in f"{url.host}{url.database}":  # then a part of the password became host or name
        raise ConfigurationError("the DSN's password holds an @: write it as %40")
    return url.set(drivername="postgresql+psycopg")


class _JsonText(GenericFunction[str]):
    """``json_text``, which each database spells in its own way."""

    name = "batchor_json_text"
    type = Text()
    inherit_cache = True


def json_text(column: Column[Any], name: str) -> "_JsonText":
    """Return a field of an object that is stored as JSON text: as text; NULL where it is absent.

    Args:
        column: Where the object is.
        name: The field's, an identifier.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} is no name of a field")
    # No parameter: PostgreSQL takes an expression with one for another one wherever it comes again.
    return _JsonText(column, literal_column(f"'{name}'"))


@compiles(_JsonText, "sqlite")
def _json_text_on_sqlite(element: _JsonText, compiler: SQLCompiler, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract({column}, '$.' || {name})"


@compiles(_JsonText, "postgresql")
def _json_text_on_postgresql(element: _JsonText, compiler: SQLCompiler, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(CAST({column} AS json) ->> {name})"
