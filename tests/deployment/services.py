"""Redis and Celery workers, each a process group of its own, ended by its process id."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from tests.e2e.dagster_dev import REPOSITORY_ROOT

_PATIENCE_S = 60.0


def missing_for_celery() -> str | None:
    """Return what has to be installed before steps can go through Celery; None if nothing."""
    modules = [name for name in ("dagster_celery", "redis") if find_spec(name) is None]
    if modules:
        return f"{' and '.join(modules)} not installed (extra deploy-tests)"
    return None if shutil.which("redis-server") else "no redis-server (Debian: redis-server)"


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Start a Redis that keeps nothing; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    with _running([*command, "--dir", str(folder)], folder / "redis.log", {}, _is_open(port)):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def celery_worker(
    name: str, queue: str, broker: str, folder: Path, env: Mapping[str, str]
) -> Iterator[None]:
    """Start a worker of one queue, with one slot; in the block it takes tasks."""
    log = folder / f"worker-{name}.log"
    command = [sys.executable, "-m", "celery", "-A", "dagster_celery.app", "-b", broker]
    command += ["--result-backend", broker, "worker", "-Q", queue, "-n", f"{name}@%h"]
    command += ["--pool", "solo", "--prefetch-multiplier", "1", "--loglevel", "INFO"]
    own = {"PYTHONPATH": str(REPOSITORY_ROOT), "PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)}
    with _running(command, log, {**env, **own}, lambda: f"{name}@" in log.read_text()):
        yield


@contextmanager
def _running(
    command: Sequence[str], log: Path, env: Mapping[str, str], is_ready: Callable[[], bool]
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_ready():
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_open(port: int) -> Callable[[], bool]:
    def connects() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    return connects
