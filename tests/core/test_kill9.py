"""``kill -9`` at random moments, on both databases, with one, two and four processes on one run.

``BATCHOR_SOAK_KILLS`` and ``BATCHOR_SOAK_SEED`` make it long; ``scripts/soak`` sets them.
"""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from batchor_core import BatchRunner
from batchor_core.simulator import Simulator, SimulatorOptions
from batchor_core.simulator.answers import NOTICE
from tests.core.children import code_of, kill
from tests.core.killing import Command, kill_at_random
from tests.core.postgres import postgres_databases
from tests.core.world import check_conserved

KILLS = int(os.environ.get("BATCHOR_SOAK_KILLS", "4"))
SEED = int(os.environ.get("BATCHOR_SOAK_SEED", "1"))
ROWS = 12 * KILLS
FLEETS = (1, 2, 4)
CREATE = {"route": "batches.create"}
FAULTS = (
    {"kind": "line_error", "status": 500, "rounds": 2, "match": {"prompt": "number 1;"}},
    {"kind": "line_error", "status": 500, "rounds": 1, "match": {"prompt": "number 7;"}},
    {"kind": "drop_after_commit", "times": 1, "skip": 1, "match": CREATE},
    {"kind": "http_error", "status": 429, "times": 1, "match": CREATE},
    {"kind": "expire", "fraction": 0.6, "times": 1},
)

Targets = Callable[[Path], str]


@contextmanager
def sqlite_files() -> Iterator[Targets]:
    """SQLite files, one a folder."""
    yield lambda folder: str(folder / "state.sqlite3")


@contextmanager
def postgres_dsns() -> Iterator[Targets]:
    """Databases of one PostgreSQL server."""
    with postgres_databases() as new_database:
        yield lambda _: new_database()


@pytest.mark.crash
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("databases", [sqlite_files, postgres_dsns], ids=["sqlite", "postgres"])
def test_kill_9_at_random_moments(
    databases: Callable[..., object],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Evicted pods would lose rows, leave batches behind, or have rows paid for twice."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with (
        databases() as targets,  # type: ignore[attr-defined]
        ThreadPoolExecutor(len(FLEETS)) as pool,
    ):
        folders = [tmp_path_factory.mktemp(f"fleet-{fleet}") for fleet in FLEETS]
        killed = pool.map(lambda fleet, folder: _fleet(fleet, folder, targets), FLEETS, folders)
        assert min(killed) > 0


def _fleet(processes: int, folder: Path, targets: Targets) -> int:
    """Let a fleet of its own drive a run, and look at what came of it."""
    with Simulator(SimulatorOptions(batch_seconds=0.3)) as simulator:
        simulator.faults(*FAULTS)
        command = Command(folder=folder, target=targets(folder), base_url=simulator.openai_base_url)
        command.write_input(ROWS)
        dice = random.Random(f"{SEED}-{processes}")
        killed = kill_at_random(command, processes=processes, kills=KILLS, dice=dice)
        _check(command, simulator)
        return killed


def _check(command: Command, simulator: Simulator) -> None:
    with BatchRunner(command.target, command.folder / "artifacts") as runner:
        run = runner.get_run("run-1")
        assert run.status == "succeeded"
        check_conserved(run, ROWS)
        assert [r.output_text for r in run.results()] == [
            f"Simulated answer ({NOTICE}) to: Prompt number {row};" for row in range(ROWS)
        ]
    ledger = simulator.ledger()
    assert ledger.paid_twice() == []
    assert ledger.times_paid("run-1") == {str(row): 1 for row in range(ROWS)}
    batches = simulator.state.ledger_report()["batches"].values()
    assert {batch["status"] for batch in batches} <= {"completed", "expired", "cancelled"}


@pytest.mark.crash
@pytest.mark.timeout(180)
def test_machines_whose_clocks_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine five minutes ahead would take away leases that were renewed a moment ago."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with (
        postgres_databases() as new_database,
        Simulator(SimulatorOptions(batch_seconds=0.3)) as simulator,
    ):
        target, base_url = new_database(), simulator.openai_base_url
        command = Command(folder=tmp_path, target=target, base_url=base_url, lease_s=120)
        command.write_input(ROWS)
        fleet = [each.spawn() for each in (command, replace(command, ahead_s=300)) for _ in "12"]
        try:
            codes = [code_of(process, 60) for process in fleet]
        finally:
            for process in fleet:
                kill(process)
        assert codes == [0] * 4, command.output.read_text()[-4000:]
        _check(command, simulator)
        with BatchRunner(target, tmp_path / "artifacts") as runner:
            events = runner.store.list_events("run-1", limit=10_000)
            assert "lease.taken_over" not in {event.kind for event in events}
