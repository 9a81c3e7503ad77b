"""Runs whose control plane is PostgreSQL: whole ones, and some that are cut short at each probe."""

from collections.abc import Callable, Iterator

import pytest

from batchor_core import BatchRunner
from batchor_core.model.policies import ChunkPolicy
from batchor_core.store.sql import PostgresStorage
from tests.core.crash_child import drive_run
from tests.core.mortal import AtProbe, DiedError, MortalStore
from tests.core.postgres import postgres_databases
from tests.core.test_crashes import CASES, SCENARIOS, go_on_and_check
from tests.core.world import Verdict, World, check_conserved, check_paid_once, job_for

TROUBLE = (
    {"kind": "line_error", "status": 500, "rounds": 1, "match": {"prompt": "number 1;"}},
    {"kind": "drop_after_commit", "times": 1, "match": {"route": "batches.create"}},
    {"kind": "expire", "fraction": 0.6, "times": 1},
)


@pytest.fixture(scope="module")
def new_database() -> Iterator[Callable[[], str]]:
    """Makes empty databases on one server."""
    with postgres_databases() as new_database:
        yield new_database


@pytest.fixture
def postgres_world(
    world: World, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> World:
    """A world whose control plane is a database of its own."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")  # keys are never stored
    world.db = new_database()
    return world


def test_a_whole_run_with_trouble(postgres_world: World) -> None:
    """A run that works on SQLite would lose rows, or get stuck, on a shared database."""
    world = postgres_world
    world.sim.faults(*TROUBLE)
    run = world.run(20, chunk_policy=ChunkPolicy(max_requests=5), structured_output=Verdict)
    assert run.status == "succeeded"
    check_conserved(run, 20)
    check_paid_once(world)
    seen = world.new_runner().get_run("run-1")
    assert seen.summary() == run.summary()
    assert seen.results() == run.results()


@pytest.mark.parametrize(
    ("name", "probe"),
    [case[:2] for case in CASES if case[2] == 1 and not SCENARIOS[case[0]].restores],
)
def test_a_process_dies_at_a_probe(postgres_world: World, name: str, probe: str) -> None:
    """What a dead process has left in a PostgreSQL database could not be repaired."""
    world, scenario = postgres_world, SCENARIOS[name]
    scenario.prepare(world)
    job = job_for(world.sim.openai_base_url, **scenario.options)
    with PostgresStorage(str(world.db), clock=world.clock) as database:
        store, trap = MortalStore(database), AtProbe()
        trap.arm((1, probe), store.die)
        runner = BatchRunner(store, world.artifacts, clock=world.clock, probe=trap)
        with runner, pytest.raises(DiedError):
            drive_run(runner, job, cancels=scenario.cancels, restores=False)
        go_on_and_check(world, scenario)
