"""The two services behind the demo, each in a process group of its own, and how they are ended."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_STOP_STEPS = ((signal.SIGINT, 15.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_LOG_TAIL_LINES = 30


class ServiceError(Exception):
    """A service did not come up, or is gone; the message ends in the last lines of its log."""


class Service:
    """A child process whose output goes to a log file.

    Args:
        name: For messages.
        command: What to run.
        log: Where its output goes.
        env: Added to the environment.
        cwd: Where it runs.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command,
                env=os.environ | env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its whole family can be ended
            )

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float = 120.0) -> None:
        """Wait until it is ready.

        Raises:
            ServiceError: It ended instead, or took too long.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(self._with_log(f"is not ready after {timeout_s:.0f} s"))
            time.sleep(0.2)

    def check(self) -> None:
        """Make sure that it is still running.

        Raises:
            ServiceError: It is not.
        """
        if self._process.poll() is not None:
            raise ServiceError(self._with_log(f"ended with status {self._process.returncode}"))

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def stop(self) -> None:
        """End it and all that it started; idempotent."""
        group = self._process.pid
        # The first signal goes to the leader alone, which ends its own children in order.
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        for number, patience_s in _STOP_STEPS:
            if number != signal.SIGINT:
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                self._process.poll()  # reaps the leader, which else would count as alive
                if not _group_exists(group):
                    return
                time.sleep(0.1)

    def _with_log(self, what: str) -> str:
        return f"{self.name} {what}; the end of {self.log}:\n{self.log_tail()}"


@contextmanager
def simulator(state: Path, *, batch_seconds: float) -> Iterator[str]:
    """Run a simulated provider for the block; yields its base URL, as ``http://…:8800/v1``."""
    command = [_script("batchor"), "simulate", "--batch-seconds", str(batch_seconds)]
    service = Service("batchor simulate", command, log=state / "simulator.log", env={}, cwd=state)
    try:
        base_url = re.compile(r"^export OPENAI_BASE_URL=(\S+)$", re.MULTILINE)
        service.wait_until(lambda: base_url.search(service.log.read_text()) is not None)
        found = base_url.search(service.log.read_text())
        assert found is not None
        yield found[1]
    finally:
        service.stop()


@contextmanager
def dagster_dev(state: Path, *, port: int, env: Mapping[str, str]) -> Iterator[Service]:
    """Run ``dagster dev`` with the example for the block; it may not have loaded yet.

    It runs in ``state``, where no ``.env`` file can lead it to a real provider.
    """
    home = state / "dagster_home"
    home.mkdir()
    (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    workspace = state / "workspace.yaml"
    workspace.write_text(_WORKSPACE_YAML)
    command = [_script("dagster"), "dev", "--workspace", str(workspace)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    service = Service(
        "dagster dev",
        command,
        log=state / "dagster.log",
        env={"DAGSTER_HOME": str(home), "PYTHONUNBUFFERED": "1", **env},
        cwd=state,
    )
    try:
        yield service
    finally:
        service.stop()


def free_port() -> int:
    """Return a port on the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _script(name: str) -> str:
    """Return a command of the environment that runs this."""
    return str(Path(sys.executable).with_name(name))


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


_DAGSTER_YAML = """\
telemetry:
  enabled: false
nux:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
concurrency:
  runs:
    max_concurrent_runs: 4
"""
_WORKSPACE_YAML = """\
load_from:
  - python_module:
      module_name: support_tickets.definitions
      location_name: support_tickets
"""
