"""Processes that drive one run through the command line, and are killed at random moments."""

import os
import random
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from batchor_core.cli import main
from batchor_core.clock import SystemClock
from batchor_core.planning import tokens
from tests.core.children import FORKS, code_of, kill

LEASE_S = 1.5
SETTLE_S = 3.0
LONGEST_END_S = 60.0
FORKS.set_forkserver_preload(["tests.core.killing"])


@dataclass(frozen=True, kw_only=True)
class Command:
    """The ``batchor start --wait`` that every process of a fleet runs.

    Attributes:
        folder: The input file, the artifacts and the processes' output.
        target: A PostgreSQL DSN or the path of a SQLite file.
        base_url: The provider.
        max_rounds: Passes over the rows, the first included.
        lease_s: For how long a process holds the run without a sign of life.
        ahead_s: How far its machine's clock is ahead of the others'.
    """

    folder: Path
    target: str
    base_url: str
    max_rounds: int = 20
    lease_s: float = LEASE_S
    ahead_s: float = 0.0

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        place = "--dsn" if self.target.startswith("postgresql") else "--db-path"
        return [
            *("start", "--run-id", "run-1", "--wait", "--json"),
            *("--input", str(self.folder / "in.csv"), "--id-field", "id", "--prompt-field", "text"),
            *("--model", "gpt-4.1-mini", "--base-url", self.base_url),
            *(place, self.target, "--artifacts", str(self.folder / "artifacts")),
            *("--chunk-max-requests", "4", "--max-rounds", str(self.max_rounds)),
            *("--poll-interval", "0.1", "--retry-delay", "0.05"),
            *("--lease-seconds", str(self.lease_s), "--settle-seconds", str(SETTLE_S)),
        ]

    def write_input(self, rows: int) -> None:
        """Write the input file."""
        lines = [f"item-{row},Prompt number {row};\n" for row in range(rows)]
        (self.folder / "in.csv").write_text("id,text\n" + "".join(lines))

    def spawn(self) -> BaseProcess:
        """Start one more process."""
        process = FORKS.Process(
            target=run_command, args=(self.arguments, str(self.output), self.ahead_s)
        )
        process.start()
        return process

    @property
    def output(self) -> Path:
        """What the processes have said."""
        return self.folder / "output.log"


def run_command(arguments: list[str], output: str, ahead_s: float) -> NoReturn:
    """Be one ``batchor`` process."""
    skewed = timedelta(seconds=ahead_s)
    SystemClock.now = lambda _: datetime.now(UTC) + skewed  # type: ignore[method-assign]
    with Path(output).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {"NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "sk-test"}
    tokens.load_vocabulary = lambda model, timeout_s=0.0: None  # type: ignore[assignment]
    main(arguments, prog_name="batchor")
    sys.exit("main() has returned")


def kill_at_random(command: Command, *, processes: int, kills: int, dice: random.Random) -> int:
    """Keep some processes at work and kill one of them after another; then let them finish.

    Returns:
        How many were killed.
    """
    fleet = [command.spawn() for _ in range(processes)]
    killed = 0
    try:
        while killed < kills:
            number = dice.randrange(processes)
            victim = fleet[number]
            if code_of(victim, dice.uniform(0.0, 2 * LEASE_S / processes)) is not None:
                break  # the run is finished, or this process has failed
            kill(victim)
            killed += 1
            fleet[number] = command.spawn()
        codes = [code_of(process, LONGEST_END_S) for process in fleet]
        assert codes == [0] * processes, f"{codes}: {command.output.read_text()[-4000:]}"
        return killed
    finally:
        for process in fleet:
            kill(process)
