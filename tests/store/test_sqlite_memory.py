"""SQLite in memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchor_core.store.sql import SQLiteStorage, SqlStore
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver
from batchor_core.testing.store_suite import StoreContract
from tests.store.interrupts import check_interrupted_transaction


class TestSQLiteMemory(StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> Iterator[SqlStore]:
        with SQLiteStorage.in_memory(clock=clock) as store:
            yield store

    def test_threads_share_it(self, store: SqlStore, clock: ManualClock) -> None:
        """Threads of one program would see different stores, or break each other's transactions."""

        def work(number: int) -> int:
            driver = RunDriver(store, clock, f"run_{number}")
            for _ in range(5):
                driver.seal(2)
            return store.counts(driver.run_id).total

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(16))) == [10] * 16

    def test_interrupt_leaves_no_lock(self, store: SqlStore, clock: ManualClock) -> None:
        """Ctrl-C between a transaction's begin and its block would lock the store for good."""
        check_interrupted_transaction(store, clock)

    def test_repr_names_it(self, store: SqlStore) -> None:
        """A log line would not tell which store it is about."""
        assert repr(store) == "<SQLiteStorage: the store in memory>"
