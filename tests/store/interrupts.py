"""A signal that strikes while a transaction is open, as Ctrl-C and schedulers send it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event

from batchor_core.store.sql import SqlStore
from batchor_core.store.sql.transaction import Aggregate
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver


def check_interrupted_transaction(store: SqlStore, clock: ManualClock) -> None:
    """Leave a transaction as a signal does that arrives before its block; all must go on."""
    driver = RunDriver(store, clock)
    driver.seal(2)
    interrupted = Aggregate(store._database, clock)._fenced(driver.lease)
    interrupted.__enter__()
    driver.seal(3)  # the same thread, which would wait for itself
    with ThreadPoolExecutor(1) as other_thread:
        assert other_thread.submit(store.counts, driver.run_id).result(10).total == 5
    interrupted.__exit__(None, None, None)  # what the garbage collector does, much later
    driver.seal(4)
    assert store.counts(driver.run_id).total == 9


def check_interrupted_statement(store: SqlStore, clock: ManualClock) -> None:
    """Let a signal strike when a statement has come back, and somebody keep its traceback."""
    driver = RunDriver(store, clock)
    engine = store._database._engine
    for number in (1, 2):
        strike = _Strike(number)
        event.listen(engine, "after_cursor_execute", strike)
        with pytest.raises(KeyboardInterrupt) as kept:
            driver.take_lease()
        event.remove(engine, "after_cursor_execute", strike)
        store.note_heartbeat("default", f"sensor {number}", 30)
        del kept


class _Strike:
    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
