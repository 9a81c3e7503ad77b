"""Running `batchor` in this process, for what it prints, and in one of its own."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from batchor_core.cli import main
from batchor_core.simulator import Simulator
from batchor_core.store.sql import SQLiteStorage

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0

MODULE = """
from typing import Literal
from pydantic import BaseModel

class Label(BaseModel):
    topic: Literal["card", "cash"]
    urgent: bool

class Odd(BaseModel):
    anything: object
"""


class Shell:
    """A folder with an input file, a state in it, and a simulated provider.

    Attributes:
        sim: The provider.
        db: The state.
    """

    def __init__(self, folder: Path, sim: Simulator) -> None:
        self.folder = folder
        self.sim = sim
        self.db = folder / "state.sqlite3"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, *more: str, source: str = "in.csv") -> list[str]:
        """The usual arguments of `start`; those given last win, inputs replace the usual one."""
        files = [] if "--input" in more else ["--input", source]
        job = [*files, "--id-field", "id", "--prompt-field", "text"]
        pace = ["--poll-interval", "0.1", "--retry-delay", "0", "--db-path", str(self.db)]
        return ["start", *job, "--model", "gpt-4.1-mini", *pace, *more]

    def call(self, *args: str) -> Result:
        return CliRunner().invoke(main, args, prog_name="batchor", catch_exceptions=False)

    def ok(self, *args: str, exit_code: int = 0) -> Result:
        """A call that has to end with this exit status."""
        result = self.call(*args)
        assert result.exit_code == exit_code, result.output
        return result

    def json(self, *args: str, exit_code: int = 0) -> Any:
        return json.loads(self.ok(*args, "--json", exit_code=exit_code).stdout)

    def on(self, command: str, run_id: str = "r", *more: str) -> list[str]:
        """The arguments of a command on one run."""
        return [command, "--run-id", run_id, "--db-path", str(self.db), *more]

    def spawn(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start `batchor` in a process of its own."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        env = {**os.environ, "PYTHONPATH": str(ROOT)} | dict(options.pop("env", {}))
        command = [sys.executable, "-m", "batchor_core.cli", *args]
        return subprocess.Popen(command, cwd=self.folder, text=True, **{**pipes, "env": env})

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `batchor` in a process of its own to its end."""
        with self.spawn(*args, **options) as process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(args, process.returncode, stdout, stderr)

    def store(self) -> SQLiteStorage:
        return SQLiteStorage(self.db)

    def at_provider(self, what: str) -> list[Mapping[str, Any]]:
        """The provider's list of `batches` or `files`."""
        request = urllib.request.Request(
            f"{self.sim.openai_base_url}/{what}", headers={"Authorization": "Bearer sk-test"}
        )
        with urllib.request.urlopen(request) as answer:
            data = json.load(answer)["data"]
        assert isinstance(data, list)
        return data


def until(reached: Callable[[], object]) -> None:
    """Wait until something is the case."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
