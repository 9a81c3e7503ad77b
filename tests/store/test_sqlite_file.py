"""SQLite in a file."""

import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from batchor_core.errors import StoreError
from batchor_core.model.states import ChunkState, RunState, WaiterState
from batchor_core.store.sql import SQLiteStorage, SqlStore, engine
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    RunDriver,
    member,
    new_run,
    outcomes,
    waiter_request,
)
from batchor_core.testing.store_suite import StoreContract
from tests.store.interrupts import check_interrupted_statement, check_interrupted_transaction


class TestSQLiteFile(StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock, tmp_path: Path) -> Iterator[SqlStore]:
        with SQLiteStorage(tmp_path / "state.sqlite3", clock=clock) as store:
            yield store

    def test_survives_reopening(self, store: SqlStore, clock: ManualClock, tmp_path: Path) -> None:
        """State would end with the process."""
        RunDriver(store, clock).seal(3)
        before = store.get_run("run_a")
        store.close()
        with SQLiteStorage(tmp_path / "state.sqlite3", clock=clock) as again:
            assert again.get_run("run_a") == before
            assert again.counts("run_a").ready == 3

    def test_closed_store_opens_again_when_used(self, store: SqlStore) -> None:
        """A store closed by one user would be lost to another that shares it."""
        store.create_run(new_run())
        store.close()
        assert store.get_run("run_a").run_id == "run_a"

    def test_full_disk(self, store: SqlStore) -> None:
        """A full disk would end in a stack trace of SQL, or leave half a transaction."""
        limit_pages(store)
        with pytest.raises(StoreError, match="disk is full") as caught:
            store.create_run(new_run("run_a", spec={"x": "y" * 100_000}))
        assert "\n" not in str(caught.value)
        assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        assert store.list_runs() == []

    def test_read_only(self, store: SqlStore) -> None:
        """A read-only file would end in a stack trace of SQL."""
        with store._database.read() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
        with pytest.raises(StoreError, match="it is read-only"):
            store.create_run(new_run())

    def test_settings(self, store: SqlStore) -> None:
        """A power cut would lose commits; a reader would block writers; orphans would be kept."""
        with store._database.read() as connection:
            read = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        assert read == {
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "busy_timeout": 30_000,
        }

    def test_every_query_uses_an_index(self, store: SqlStore, clock: ManualClock) -> None:
        """A tick would scan all that ever happened instead of what is due."""
        driver = RunDriver(store, clock)
        calls = record_selects(store)
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w1"))
        driver.collect(driver.seal(1), outcomes(ok=1))
        store.due_polls("account", clock.now(), 10)
        store.list_chunks("run_a", states=[ChunkState.READY], limit=1)
        store.list_runs(namespace="default", states=[RunState.RUNNING], limit=1)
        store.list_waiters(namespace="default", states=[WaiterState.OPEN])
        store.list_events("run_a")
        store.end_waiter("w1", WaiterState.SERVED, None)
        driver.close()
        plans = [explain(store, *call) for call in calls]
        assert len(plans) > 20
        scans = [step for plan in plans for step in plan if step.startswith("SCAN")]
        assert set(scans) <= {"SCAN CONSTANT ROW"}  # which reads no table
        assert any("uq_batchor_members_open_identity" in step for plan in plans for step in plan)

    def test_ticks_read_what_is_open(self, store: SqlStore, clock: ManualClock) -> None:
        """A tick would take longer with every batch run that was ever finished."""
        driver = RunDriver(store, clock)
        store.claim("run_a", [member("a")], waiter_request("a", waiter_id="w1"))
        driver.collect(driver.seal(1), outcomes(ok=1))
        calls = record_selects(store)
        is_open = {"namespace": "default", "states": [WaiterState.OPEN]}
        store.list_waiters(**is_open, after="w1", limit=1)
        store.list_waiters(**is_open, payload={"backfill": ["b"]})
        store.waiter_groups("default", ["backfill"])
        store.ready_waiters("default", "backfill", per_group=1, limit=1)
        store.due_work("default", clock.now(), 10, but=["run_b"], but_paused="no")
        store.due_work("default", clock.now(), 10, scope="scope")
        store.count_open_runs("default")
        store.live_batches(["scope"])
        store.pauses_since("default", 0, 10)
        store.accounts_to_poll("default", clock.now())
        store.other_polls("account", clock.now(), 10)
        store.count_polls("account")
        store.get_runs(["run_a"])
        store.leased(["run_a"])
        steps = [step for call in calls for step in explain(store, *call)]
        assert [step for step in steps if step.startswith("SCAN batchor_")] == []
        by_namespace = [step for step in steps if "(namespace=?" in step]
        assert len(by_namespace) > 8
        assert [step for step in by_namespace if "AND state=?" not in step] == []

    def test_interrupt_leaves_no_lock(self, store: SqlStore, clock: ManualClock) -> None:
        """Ctrl-C between a transaction's begin and its block would lock the store for good."""
        check_interrupted_transaction(store, clock)

    def test_interrupt_of_a_statement_leaves_no_lock(
        self, store: SqlStore, clock: ManualClock
    ) -> None:
        """A connection that is thrown away with its cursor alive keeps its locks."""
        check_interrupted_statement(store, clock)

    def test_repr_names_the_file(self, store: SqlStore, tmp_path: Path) -> None:
        """A log line would not tell which store it is about."""
        assert repr(store) == f"<SQLiteStorage: store '{tmp_path}/state.sqlite3'>"


def record_selects(store: SqlStore) -> list[tuple[str, tuple[object, ...]]]:
    """Return a list that grows with the SELECT statements of the store and their parameters."""
    calls: list[tuple[str, tuple[object, ...]]] = []

    def note(*args: Any) -> None:
        if args[2].startswith("SELECT"):
            calls.append((args[2], args[3]))

    event.listen(store._database._engine, "before_cursor_execute", note)
    return calls


def explain(store: SqlStore, statement: str, parameters: tuple[object, ...]) -> list[str]:
    """Return the steps in which SQLite would run the statement."""
    with store._database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return [row.detail for row in plan]


def limit_pages(store: SqlStore) -> None:
    """Let the file grow no further, as on a full disk."""
    with store._database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")


def test_new_files_are_private(tmp_path):
    """Other users of the machine could read what is stored."""
    file = tmp_path / "one %20" / "two" / "state.sqlite3"
    with SQLiteStorage(file) as store:
        store.create_run(new_run())
        for path in (file, *file.parent.glob("state.sqlite3-*")):
            assert path.stat().st_mode & 0o777 == 0o600
    for folder in (file.parent, file.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_existing_folder_keeps_its_mode(tmp_path):
    """A folder that a team shares on purpose would be closed to it."""
    tmp_path.chmod(0o755)
    SQLiteStorage(tmp_path / "state.sqlite3").close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_other_file(tmp_path):
    """A mistyped path would be overwritten, or end in a stack trace."""
    file = tmp_path / "notes.txt"
    file.write_text("no database " * 100)
    with pytest.raises(StoreError, match="no SQLite database"):
        SQLiteStorage(file)
    assert file.read_text() == "no database " * 100


def test_impossible_path(tmp_path):
    """A path below a file would end in a stack trace."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        SQLiteStorage(tmp_path / "file" / "state.sqlite3")


def test_lock_that_is_never_given_back(tmp_path, monkeypatch):
    """A process that hangs inside a transaction would hang all others without a word."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.05)
    with SQLiteStorage(tmp_path / "state.sqlite3") as store:
        hog = sqlite3.connect(tmp_path / "state.sqlite3", isolation_level=None)
        hog.execute("BEGIN IMMEDIATE").close()
        with pytest.raises(StoreError, match="held its lock"):
            store.create_run(new_run())
        hog.close()
        store.create_run(new_run())
