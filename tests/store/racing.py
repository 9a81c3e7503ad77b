"""Races of real processes for one store, and what must hold whoever wins.

Run as a script it is one racer: it opens the store, says so, waits for the start, acts once and
prints what came of it as JSON.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from batchor_core.model.records import ScopeLimits, SubmissionRecord
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.store.sql import PostgresStorage, SQLiteStorage
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver, member, new_run, new_submission, waiter_request

RACERS = 6


def open_store(target: str) -> Any:
    """Open a PostgreSQL DSN or a SQLite path."""
    if target.startswith("postgresql://"):
        return PostgresStorage(target)
    return SQLiteStorage(target)


def race(target: str, action: str, racers: int = RACERS) -> list[Any]:
    """Let processes do one thing at the same moment; return what each of them saw."""
    command = [sys.executable, "-W", "error", __file__, target, action]
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            [*command, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={"PYTHONPATH": str(root)},
        )
        for number in range(racers)
    ]
    for racer in started:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in started:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [racer.communicate(timeout=90)[0] for racer in started]
    assert [racer.returncode for racer in started] == [0] * racers
    return [json.loads(result) for result in results]


class RaceContract:
    """What must hold for processes on one store; subclasses bring the fixture ``target``."""

    def test_all_open_at_once(self, target: str) -> None:
        """The first start of several processes would fail on a half-made schema."""
        assert race(target, "open") == [True] * RACERS

    def test_one_lease(self, target: str) -> None:
        """Two processes would advance one run."""
        with open_store(target) as store:
            store.create_run(new_run())
            tokens = [token for token in race(target, "lease") if token is not None]
            assert len(tokens) == 1
            assert store.lease_of("run_a").token == tokens[0]

    def test_shared_room(self, target: str) -> None:
        """Processes together would exceed what the account may queue."""
        with open_store(target):
            assert Counter(race(target, "intend")) == {True: 3, False: RACERS - 3}

    def test_one_open_run_per_identity(self, target: str) -> None:
        """The same partition, asked for by several at once, would be paid for several times."""
        with open_store(target) as store:
            results = race(target, "claim")
            winners = {run_id for run_id, _, _ in results}
            assert len(winners) == 1
            assert Counter(attached for _, attached, _ in results) == {True: RACERS - 1, False: 1}
            assert len(store.list_waiters(run_id=winners.pop())) == RACERS

    def test_one_fingerprint_per_identity(self, target: str) -> None:
        """Two versions of a partition would be in work at once."""
        with open_store(target):
            results = race(target, "claim_differently")
            assert sorted(conflicts for _, _, conflicts in results) == [0] + [3] * (RACERS - 1)
            assert len({run_id for run_id, _, _ in results}) == 1

    def test_contention(self, target: str) -> None:
        """Busy processes would see "database is locked", deadlocks or lost events."""
        with open_store(target) as store:
            assert race(target, "work") == [40] * RACERS
            assert len(store.list_runs()) == RACERS


def _act(store: OrchestratorStore, action: str, number: int) -> Any:
    run_id = f"run_{number}"
    if action == "lease":
        lease = store.acquire_lease("run_a", run_id, 60)
        return None if lease is None else lease.token
    if action == "intend":
        driver = RunDriver(store, ManualClock(), run_id)
        submission = new_submission(run_id, driver.seal())
        taken = store.intend(driver.lease, submission, ScopeLimits(max_batches=3))
        return isinstance(taken, SubmissionRecord)
    if action.startswith("claim"):
        store.create_run(new_run(run_id))
        fingerprint = run_id if action == "claim_differently" else "f"
        names = ("a", "b", "c") if number % 2 else ("c", "b", "a")
        claims = [member(name, fingerprint) for name in names]
        result = store.claim(run_id, claims, waiter_request(*names))
        return [result.run_id, result.attached, len(result.conflict)]
    return _work(RunDriver(store, ManualClock(), run_id))


def _work(driver: RunDriver) -> int:
    for _ in range(20):
        submission_id = driver.submit(driver.seal(2)).submission_id
        driver.end(submission_id)
        driver.store.renew_lease(driver.lease, 60)
    return driver.store.counts(driver.run_id).in_flight


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main(target: str, action: str, number: str) -> None:
    if action == "open":
        _say("ready")
        sys.stdin.readline()
        with open_store(target) as store:
            store.create_run(new_run(f"run_{number}"))
        _say("true")
        return
    with open_store(target) as store:
        _say("ready")
        sys.stdin.readline()
        _say(json.dumps(_act(store, action, int(number))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
