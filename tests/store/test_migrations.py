"""The schema's history."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, text

from batchor_core.errors import StoreError
from batchor_core.store.sql import SQLiteStorage, migrations
from batchor_core.store.sql.engine import sqlite_file
from batchor_core.store.sql.migrations import HEAD, VERSION_TABLE, upgrade
from batchor_core.store.sql.tables import metadata
from batchor_core.testing.records import new_run


@pytest.fixture
def database(tmp_path):
    """Open an empty file without a schema."""
    opened = sqlite_file(tmp_path / "state.sqlite3")
    yield opened
    opened.close()


def differences(database):
    """Return how the database's schema differs from the declared tables."""
    options = {"version_table": VERSION_TABLE, "compare_type": True}
    with database.read() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def test_migrations_add_up_to_the_tables(database):
    """A store that was migrated would lack a column or an index that the code relies on."""
    upgrade(database)
    assert differences(database) == []


def test_comparison_sees_differences(database):
    """The test above would prove nothing."""
    upgrade(database)
    with database.write() as connection:
        connection.execute(text("DROP INDEX uq_batchor_members_open_identity"))
        connection.execute(text("ALTER TABLE batchor_leases DROP COLUMN owner"))
    assert len(differences(database)) == 2


def test_head_is_the_newest_file():
    """Opening would stop short of a new migration, or migrate on every start."""
    scripts = ScriptDirectory(migrations.__path__[0])
    assert scripts.get_current_head() == HEAD


def test_up_to_date_store_is_only_read(database):
    """Every start would take the write lock and wait for whoever holds it."""
    upgrade(database)
    statements = []
    event.listen(
        database._engine, "before_cursor_execute", lambda *args: statements.append(args[2])
    )
    upgrade(database)
    assert statements[0] == "BEGIN"
    assert [line for line in statements if line.startswith("SELECT version_num")] == statements[-1:]
    assert len(statements) == 3


def test_migration_is_all_or_nothing(database, monkeypatch):
    """A migration that was cut short would leave a store that no version can open."""
    monkeypatch.setattr("alembic.op.create_index", fail)
    with pytest.raises(RuntimeError):
        upgrade(database)
    monkeypatch.undo()
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one() == 0
    upgrade(database)
    assert differences(database) == []


def fail(*args, **kwargs):
    """Fail where a migration would go on."""
    raise RuntimeError


def test_newer_store_is_refused(database, tmp_path):
    """An old version would write into a schema that it does not understand."""
    upgrade(database)
    with database.write() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"schema '9999'.*upgrade batchor-dagster"):
        SQLiteStorage(tmp_path / "state.sqlite3")


def test_orphans_are_refused(database):
    """A bug could leave chunks of a run that does not exist."""
    upgrade(database)
    with pytest.raises(StoreError, match="FOREIGN KEY"), database.write() as connection:
        connection.execute(
            text("INSERT INTO batchor_leases (run_id, token, expires_at) VALUES ('x', 1, 1)")
        )


def test_two_live_submissions_are_refused(tmp_path):
    """A bug in the guards could pay for one chunk twice."""
    with SQLiteStorage(tmp_path / "state.sqlite3") as store:
        store.create_run(new_run())
        with store._database.read() as connection:
            sql = text("SELECT sql FROM sqlite_master WHERE name = :name")
            named = {"name": "uq_batchor_submissions_live_chunk"}
            index = connection.execute(sql, named).scalar_one()
    assert "state IN ('intended', 'active', 'ended')" in index


def test_threads_open_new_stores_side_by_side(tmp_path: Path) -> None:
    """Two threads would make each other's tables, and one store would lack some."""

    def open_new(number: int) -> int:
        with SQLiteStorage(tmp_path / f"{number}.sqlite3") as store:
            store.create_run(new_run())
            return len(store.list_submissions("run_a")) + len(store.list_waiters())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_new, range(24))) == [0] * 24
