"""A signal that strikes while a transaction is open, as Ctrl-C and schedulers send it."""

from concurrent.futures import ThreadPoolExecutor

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
