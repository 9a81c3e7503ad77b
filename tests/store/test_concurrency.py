"""Several processes and threads on one SQLite file."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchor_core.errors import StoreError
from batchor_core.model.records import ScopeLimits, SubmissionRecord
from batchor_core.store.sql import SQLiteStorage
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver, member, new_run, waiter_request
from tests.store.racing import RaceContract

THREADS = 8


class TestProcesses(RaceContract):
    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        return str(tmp_path / "state" / "state.sqlite3")


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    """Open an empty store on the machine's clock."""
    if request.param == "file":
        opened = SQLiteStorage(tmp_path / "state.sqlite3")
    else:
        opened = SQLiteStorage.in_memory()
    with opened:
        yield opened


def in_threads(act):
    """Call ``act`` with a number of its own in each of several threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(act, range(THREADS)))


def test_threads_race_for_a_lease(store):
    """Two threads would advance one run."""
    store.create_run(new_run())
    leases = in_threads(lambda n: store.acquire_lease("run_a", f"owner {n}", 60))
    assert sum(lease is not None for lease in leases) == 1


def test_threads_share_room(store):
    """Threads together would exceed what the account may queue."""
    drivers = [RunDriver(store, ManualClock(), f"run_{n}") for n in range(THREADS)]
    chunks = [driver.seal() for driver in drivers]
    limits = ScopeLimits(max_requests=25)
    taken = in_threads(lambda n: drivers[n].try_intend(chunks[n], limits))
    assert sum(isinstance(result, SubmissionRecord) for result in taken) == 2


def test_threads_race_for_an_identity(store):
    """The same partition would be paid for by each of several threads."""
    for number in range(THREADS):
        store.create_run(new_run(f"run_{number}"))
    results = in_threads(lambda n: store.claim(f"run_{n}", [member("a")], waiter_request("a")))
    assert len({result.run_id for result in results}) == 1
    assert sum(result.attached for result in results) == THREADS - 1


def test_opening_in_threads(tmp_path):
    """Two threads that open a new store at once would both create its tables."""
    for store in in_threads(lambda n: SQLiteStorage(tmp_path / "state.sqlite3")):
        store.close()


def test_fork_opens_connections_of_its_own(tmp_path):
    """A forked worker would share its parent's connection and corrupt the file."""
    with SQLiteStorage(tmp_path / "state.sqlite3") as store:
        store.create_run(new_run("run_parent"))
        child = os.fork()
        if child == 0:
            try:
                store.create_run(new_run("run_child"))
                os._exit(0)
            finally:
                os._exit(1)
        store.create_run(new_run("run_later"))
        assert os.waitpid(child, 0)[1] == 0
        assert {run.run_id for run in store.list_runs()} == {"run_parent", "run_child", "run_later"}


def test_fork_has_no_share_in_memory():
    """A forked worker would write into a copy that nobody reads."""
    with SQLiteStorage.in_memory() as store:
        child = os.fork()
        if child == 0:
            try:
                store.list_runs()
            except StoreError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
