"""A process that has children while it drives a run: they find the run taken, and harm nothing."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from batchor_core import BatchRunner, Run
from batchor_core.planning import tokens
from tests.core.world import job_for, race_options

ROWS = 6
WAYS = ("fork", "spawn", "unwind")


def drive_with_children(way: str, base_url: str, folder: str) -> None:
    """Drive the run to its end; in the middle of it a child tries to do the same."""
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None
    run: Run | None = None
    has_had_child = False

    def probe(name: str) -> None:
        nonlocal has_had_child
        if run is None or has_had_child or name != "collect.written":
            return
        has_had_child = True
        _have_child(way, run, (base_url, folder))
        assert runner.store.lease_of("run-1") is not None, "the child has given the lease back"

    with _runner(folder, probe) as runner:
        run = _open(runner, base_url)
        run.wait(40)
        assert has_had_child
        assert "lease.taken_over" not in [e.kind for e in runner.store.list_events("run-1")]


def ask_apart(base_url: str, folder: str) -> None:
    """Ask for two batches in turn, this process for the one and a forked child for the other."""
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None
    with _runner(folder) as runner:
        jobs = {run_id: job_for(base_url, 1, **race_options()) for run_id in ("run-1", "run-2")}
        runs = [runner.start(job, run_id=run_id) for run_id, job in jobs.items()]
        provider = runs[0].plan.provider
        first, second = (run.provider_batch_ids()[0] for run in runs)
        provider.get(first)  # opens a connection, which is kept
        child = os.fork()
        asked = first if child else second
        answers = {provider.get(asked).batch_id for _ in range(100)}
        if child == 0:
            runner.close()
            os._exit(0 if answers == {asked} else 1)
        assert os.waitpid(child, 0)[1] == 0, "the child read what its parent was answered"
        assert answers == {asked}
        assert provider.get(first).batch_id == first


def _have_child(way: str, run: Run, place: tuple[str, str]) -> None:
    if way == "spawn":
        process = multiprocessing.get_context("spawn").Process(target=_visit, args=place)
        process.start()
        process.join(40)
        assert process.exitcode == 0
        return
    child = os.fork()
    if child == 0:
        if way == "unwind":
            raise SystemExit  # through all blocks of the parent that are open
        try:
            _leave(run)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def _visit(base_url: str, folder: str) -> NoReturn:
    with _runner(folder) as runner:
        _leave(_open(runner, base_url))


def _leave(run: Run) -> NoReturn:
    os._exit(0 if run.advance().busy else 1)


def _runner(folder: str, probe: Callable[[str], None] = lambda name: None) -> BatchRunner:
    return BatchRunner(Path(folder) / "state.sqlite3", Path(folder) / "artifacts", probe=probe)


def _open(runner: BatchRunner, base_url: str) -> Run:
    return runner.open(job_for(base_url, ROWS, **race_options()), run_id="run-1")


def main(way: str, base_url: str, folder: str) -> None:
    """Be the process, or the child of it that comes out of all its blocks."""
    parent = os.getpid()
    try:
        drive_with_children(way, base_url, folder)
    finally:
        if os.getpid() != parent:
            os._exit(0)
    sys.exit(0)
