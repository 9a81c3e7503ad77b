"""Several processes and threads on one run: one works at a time, and a stale one harms nothing."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from batchor_core import BatchRunner
from batchor_core.executor.probes import PROBES
from batchor_core.model.policies import ChunkPolicy
from batchor_core.simulator import Simulator, SimulatorOptions
from tests.core import process_child
from tests.core.children import FORKS
from tests.core.world import (
    World,
    check_conserved,
    check_paid_once,
    job_for,
    race_options,
)

FAULTS = (
    {"kind": "line_error", "status": 500, "rounds": 1, "match": {"prompt": "number 1;"}},
    {"kind": "drop_after_commit", "times": 1, "match": {"route": "batches.create"}},
    {"kind": "http_error", "status": 429, "times": 1, "match": {"route": "batches.create"}},
)
STALE_AT = [
    "ingest.sealed",
    "ingest.committed",
    "submit.intended",
    "submit.uploaded",
    "submit.create_allowed",
    "submit.created",
    "submit.activated",
    "collect.raw_kept",
    "collect.written",
    "collect.committed",
    "retry.sealed",
    "finish.part_written",
    "finish.written",
]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[World]:
    """A world on the machine's own clock."""
    with Simulator(SimulatorOptions(batch_seconds=0.3)) as simulator:
        world = World(simulator, tmp_path)
        world.sim.faults(*FAULTS)
        yield world
        world.close()


def finished(world: World, rows: int) -> None:
    """Look at the results of a run that others have driven."""
    with BatchRunner(world.db, world.artifacts) as runner:
        run = runner.open(
            job_for(world.sim.openai_base_url, rows, **race_options()), run_id="run-1"
        )
        assert run.status == "succeeded"
        check_conserved(run, rows)
    check_paid_once(world)
    assert set(world.sim.ledger().times_paid("run-1").values()) == {1}


@pytest.mark.parametrize("runners", [1, 3])
def test_threads_on_one_run(live: World, runners: int) -> None:
    """Threads of one process, with one runner or their own, would send the same chunk twice."""
    made = [BatchRunner(live.db, live.artifacts) for _ in range(runners)]

    def drive(number: int) -> None:
        runner = made[number % runners]
        job = job_for(live.sim.openai_base_url, 12, **race_options())
        runner.open(job, run_id="run-1").wait(40)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(drive, range(3)))
    for runner in made:
        runner.close()
    finished(live, 12)


@pytest.mark.parametrize("way", ["start", "ingest"])
def test_the_lease_of_a_dead_process_is_waited_for(world: World, way: str) -> None:
    """A program that was killed and started again would end without having read anything."""
    dead = world.open()
    world.runner.store.acquire_lease("run-1", "a process that was killed", 120)
    if way == "start":
        assert world.runner.start(world.job(), run_id="run-1").counts().in_flight == 6
    else:
        assert dead.ingest().counts().ready == 6
    assert 120 <= world.clock.monotonic() < 130


@pytest.mark.crash
@pytest.mark.parametrize("way", process_child.WAYS)
def test_children_of_the_process_at_work(live: World, way: str) -> None:
    """A child would take its parent for itself, and with it the run out of the parent's hands."""
    live.sim.clear_faults()
    arguments = (way, live.sim.openai_base_url, str(live.folder))
    process = FORKS.Process(target=process_child.main, args=arguments)
    process.start()
    process.join(50)
    assert process.exitcode == 0
    finished(live, process_child.ROWS)


@pytest.mark.crash
def test_a_forked_child_has_connections_of_its_own(live: World) -> None:
    """Parent and child would read each other's answers: the state and files of another batch."""
    live.sim.clear_faults()
    arguments = (live.sim.openai_base_url, str(live.folder))
    process = FORKS.Process(target=process_child.ask_apart, args=arguments)
    process.start()
    process.join(50)
    assert process.exitcode == 0


@pytest.mark.crash
def test_processes_on_one_run(live: World) -> None:
    """Processes that share a store would send the same chunk twice."""
    arguments = [live.sim.openai_base_url, str(live.folder), "12"]
    command = [sys.executable, "-m", "tests.core.race_child", *arguments]
    environment = {**os.environ, "PYTHONPATH": ".", "OPENAI_API_KEY": "sk-test"}
    children = [
        subprocess.Popen([*command, str(seed)], env=environment, stderr=subprocess.PIPE)
        for seed in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=50)
        assert child.returncode == 0, errors.decode()
    finished(live, 12)


@pytest.mark.parametrize("probe", STALE_AT)
def test_a_stale_process_changes_nothing(world: World, probe: str) -> None:
    """A process that was suspended past its lease would undo what its successor did."""
    assert probe in PROBES
    gate = _Gate(probe)
    world.sim.faults(FAULTS[0])
    job = world.job(6, chunk_policy=ChunkPolicy(max_requests=3))
    sleeper = world.new_runner(probe=gate)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(_drive(sleeper, job)))
    thread.start()
    assert gate.reached.wait(20)
    world.clock.sleep(500)  # the lease of the sleeper is over, and so is the settling time
    run = world.runner.run_and_wait(job, run_id="run-1")
    before = run.results()
    events = len(world.kinds())
    gate.go.set()
    thread.join(20)
    assert not thread.is_alive()
    assert run.refresh().results() == before
    assert run.status == "succeeded"
    check_conserved(run, 6)
    check_paid_once(world)
    late = world.kinds()[events:]
    assert set(late) <= {"lease.taken_over"}, "the stale process wrote to the run"


class _Gate:
    """Stops the first thread that comes to a probe until it is told to go on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._once = threading.Lock()
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, name: str) -> None:
        if name == self._name and self._once.acquire(blocking=False):
            self.reached.set()
            assert self.go.wait(40)


def _drive(runner: BatchRunner, job: object) -> object:
    return runner.run_and_wait(job, run_id="run-1")  # type: ignore[arg-type]
