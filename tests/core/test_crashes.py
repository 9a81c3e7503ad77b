"""Crashes at every probe: nothing is lost, nothing is paid twice, whoever goes on."""

import ast
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import batchor_core.executor
from batchor_core import BatchRunner
from batchor_core.executor.probes import PROBES
from batchor_core.executor.submit import RUN_TAG
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, ReusePolicy
from batchor_core.planning import tokens
from tests.core.children import FORKS, code_of, kill, start
from tests.core.crash_child import KILLED, SURVIVED, drive, drive_run
from tests.core.world import World, check_conserved, check_paid_once, job_for, open_world

CREATE = {"route": "batches.create"}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A run in which certain probes are passed."""

    probes: tuple[str, ...]
    faults: tuple[Mapping[str, Any], ...] = ()
    count: int = 6
    cancels: bool = False
    restores: bool = False
    twins: bool = False
    answered: int = 0
    once: frozenset[str] = field(default_factory=frozenset)

    @property
    def options(self) -> dict[str, Any]:
        return {
            "rows": self.count,
            "chunk_policy": ChunkPolicy(max_requests=3),
            "retry_policy": RetryPolicy(delay_s=1),
            "reuse": ReusePolicy(run_ids=("earlier",) if self.answered else ()),
        }

    def prepare(self, world: World) -> None:
        """Let the faults be in force, and rows be answered by an earlier run."""
        if self.answered:
            world.run(self.answered, run_id="earlier")
        if self.restores:
            _restore(world, self)
        world.sim.faults(*self.faults)


SCENARIOS = {
    "retries": Scenario(
        probes=(
            "ingest.sealed",
            "ingest.committed",
            "ingest.finished",
            "submit.intended",
            "submit.uploaded",
            "submit.create_allowed",
            "submit.created",
            "submit.activated",
            "collect.raw_kept",
            "collect.written",
            "collect.committed",
            "retry.sealed",
            "retry.committed",
            "finish.part_written",
            "finish.written",
            "finish.closed",
        ),
        faults=(
            {"kind": "line_error", "status": 500, "rounds": 1, "match": {"prompt": "number 1;"}},
            {"kind": "line_error", "status": 500, "rounds": 2, "match": {"prompt": "number 4;"}},
        ),
        once=frozenset({"ingest.finished", "finish.written", "finish.closed"}),
    ),
    "dropped after the commit": Scenario(
        probes=("submit.create_unknown", "recover.adopted"),
        faults=({"kind": "drop_after_commit", "times": 2, "match": CREATE},),
    ),
    "dropped before the commit": Scenario(
        probes=("recover.voided",),
        faults=({"kind": "drop_before_commit", "times": 2, "match": CREATE},),
    ),
    "refused for a while": Scenario(
        probes=("submit.voided",),
        faults=({"kind": "http_error", "status": 429, "times": 2, "match": CREATE},),
    ),
    "too large": Scenario(
        probes=("split.sealed",),
        faults=({"kind": "http_error", "status": 413, "times": 2, "match": CREATE},),
    ),
    "cancelled": Scenario(probes=("cancel.called", "cancel.asked"), cancels=True),
    "answered before": Scenario(probes=("reuse.written", "reuse.committed"), answered=4),
    "restored": Scenario(probes=("reconcile.adopted",), restores=True),
    "restored beside twins": Scenario(probes=("reconcile.cancelled",), restores=True, twins=True),
}
CASES = [
    (name, probe, nth)
    for name, scenario in SCENARIOS.items()
    for probe in scenario.probes
    for nth in (1, 2)
    if nth == 1 or probe not in scenario.once
]
FORKS.set_forkserver_preload(["tests.core.crash_child"])


def test_every_probe_of_the_source_is_listed_and_crashed_at() -> None:
    """A new probe could stay without a crash test."""
    called = set()
    for path in Path(batchor_core.executor.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "probe"
            ):
                called.add(ast.literal_eval(node.args[0]))
    assert called == set(PROBES)
    assert {probe for _, probe, _ in CASES} == set(PROBES)
    assert len(PROBES) == len(set(PROBES))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Any, Any]]:
    """Worlds in which a child has been killed, by case; the children run side by side."""
    with ExitStack() as stack:
        patches = stack.enter_context(pytest.MonkeyPatch.context())
        patches.setenv("NO_PROXY", "127.0.0.1")
        patches.setattr(tokens, "load_vocabulary", lambda model: None)
        worlds = {
            case: stack.enter_context(open_world(tmp_path_factory.mktemp("crash")))
            for case in CASES
        }
        with ThreadPoolExecutor(3) as pool:
            codes = pool.map(lambda case: _run_child(worlds[case], *case), CASES)
            yield {case: (worlds[case], code) for case, code in zip(CASES, codes, strict=True)}


def _run_child(world: World, name: str, probe: str, nth: int) -> int | None:
    scenario = SCENARIOS[name]
    scenario.prepare(world)
    child = FORKS.Process(
        target=drive,
        kwargs={
            "base_url": world.sim.openai_base_url,
            "folder": str(world.folder),
            "probe": probe,
            "nth": nth,
            "options": scenario.options,
            "cancels": scenario.cancels,
            "restores": scenario.restores,
        },
    )
    start(child)
    code = code_of(child, 50)
    kill(child)
    return code


@pytest.mark.crash
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "probe", "nth"), CASES)
def test_killed_process(killed: dict[Any, Any], name: str, probe: str, nth: int) -> None:
    """After ``kill -9`` at a probe, rows would be lost or doubled, or paid for twice."""
    world, code = killed[name, probe, nth]
    assert code == KILLED, "the child never came to this probe"
    go_on_and_check(world, SCENARIOS[name])


@pytest.mark.parametrize(("name", "probe", "nth"), CASES)
def test_exception_within_one_process(worlds: Any, name: str, probe: str, nth: int) -> None:
    """After an exception at a probe, the same runner could not go on with the run."""
    world, scenario = worlds(), SCENARIOS[name]
    scenario.prepare(world)
    trap = _Trap(probe, nth)
    runner = world.new_runner(probe=trap)
    job = job_for(world.sim.openai_base_url, **scenario.options)
    with pytest.raises(_TrapError):
        drive_run(runner, job, cancels=scenario.cancels, restores=scenario.restores)
    go_on_and_check(world, scenario, runner)


def test_child_that_is_not_killed_finishes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash tests would prove nothing if the child failed by itself."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")  # keys are never stored
    assert _run_child(world, "retries", "no such probe", 1) == SURVIVED
    check_conserved(world.runner.get_run("run-1"), 6)


def _restore(world: World, scenario: Scenario) -> None:
    """Restore a store from before its run was sent; each of its batches may have a twin."""
    options = {name: value for name, value in scenario.options.items() if name != "rows"}
    run = world.open(scenario.count, **options)
    run.ingest()
    backup = world.folder / "backup.sqlite3"
    world.runner.store.close()
    shutil.copy(world.db, backup)
    run.advance()
    provider, tags = run.plan.provider, {RUN_TAG: "run-1"}
    store = world.runner.store
    sent = {submission.chunk_seq: submission.key for submission in store.list_submissions("run-1")}
    for chunk in store.list_chunks("run-1") if scenario.twins else ():
        with world.runner.artifacts.local(chunk.requests) as path:
            upload = provider.upload(path, key="twin")
            key = sent[chunk.seq].replace("/sub_", "/sub_twin")
            provider.create(upload_ref=upload.ref, path=path, key=key, tags=tags, timeout_s=9)
    world.close_runners()
    for name in world.folder.glob("state.sqlite3*"):
        name.unlink()
    shutil.copy(backup, world.db)


class _TrapError(Exception):
    pass


class _Trap:
    def __init__(self, name: str, nth: int) -> None:
        self._name = name
        self._left = nth

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                raise _TrapError(name)


def go_on_and_check(world: World, scenario: Scenario, runner: BatchRunner | None = None) -> None:
    """Finish a run that was cut short, and look at what came of it."""
    job = job_for(world.sim.openai_base_url, **scenario.options)
    run = drive_run(
        runner or world.runner, job, cancels=scenario.cancels, restores=scenario.restores
    )
    check_conserved(run, scenario.count)
    check_paid_once(world)
    live = [b for b in world.sim.state.ledger_report()["batches"].values() if _works(b)]
    assert live == [], "a provider batch was left behind"
    if not scenario.cancels:
        assert run.status == "succeeded"
        assert set(world.sim.ledger().times_paid("run-1").values()) == {1}


def _works(batch: Mapping[str, Any]) -> bool:
    return batch["status"] not in {"completed", "cancelled", "failed", "expired"}
