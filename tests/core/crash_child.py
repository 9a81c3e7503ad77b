"""What a child process does: drive a run, and die without a word at one probe."""

import http.client
import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchor_core import BatchJob, BatchRunner, Run
from batchor_core.errors import WaitTimeoutError
from batchor_core.executor.reconcile import Finding
from batchor_core.planning import tokens
from tests.core.world import START, job_for

KILLED = 9
SURVIVED = 0


class RemoteClock:
    """The simulator's time, asked for over HTTP, so that all processes share it."""

    def __init__(self, base_url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=20)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return float(self._ask("GET", "/_sim/health")["now"])

    def sleep(self, seconds: float) -> None:
        self._ask("POST", "/_sim/advance", json.dumps({"seconds": max(0.0, seconds)}))

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        self._connection.request(method, path, body)
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return answer


class Killer:
    """Ends the process at the n-th passing of a probe."""

    def __init__(self, name: str, nth: int) -> None:
        self._name = name
        self._left = nth

    def __call__(self, name: str) -> None:
        if name == self._name:
            self._left -= 1
            if not self._left:
                os._exit(KILLED)


def drive(
    *,
    base_url: str,
    folder: str,
    probe: str,
    nth: int,
    options: dict[str, Any],
    cancels: bool,
    restores: bool,
) -> None:
    """Run a whole job in this process, unless it is killed on the way."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None
    runner = BatchRunner(
        Path(folder, "state.sqlite3"),
        Path(folder, "artifacts"),
        clock=RemoteClock(base_url),
        probe=Killer(probe, nth),
    )
    drive_run(runner, job_for(base_url, **options), cancels=cancels, restores=restores)
    os._exit(SURVIVED)


def drive_run(runner: BatchRunner, job: BatchJob, *, cancels: bool, restores: bool) -> Run:
    """Drive a run to its end: cancel it while it works, or reconcile it first, if so wanted."""
    if restores:
        runner.open(job, run_id="run-1")
        while any(each.finding is Finding.BUSY for each in runner.reconcile()):
            runner.clock.sleep(10)  # the lease of the dead runs out
    run = runner.start(job, run_id="run-1")
    if cancels and not run.is_finished:
        try:
            run.wait(60)
        except WaitTimeoutError:
            run.cancel()
    return run.wait()
