"""The examples in the commands' help, run as they are written."""

import re
import shlex
import signal
import socket
from collections.abc import Callable
from typing import Any

import click
import pytest

from batchor_core.cli import main
from tests.cli.commands import Shell

ELSEWHERE = {
    "completion",
    "costs",
    "doctor",
    "estimate",
    "export-artifacts",
    "prune-artifacts",
    "retry",
}
"""Commands whose examples the tests of their own module run."""

ON_A_FINISHED_RUN = ["status", "list", "wait", "results", "reconcile"]
ON_A_RUN_AT_WORK = ["pause", "resume", "cancel"]


def example(name: str) -> list[list[str]]:
    """The calls in a command's example, as a shell would split them."""
    command: Any = main.get_command(click.Context(main), name)
    calls = re.split(r"&&|\n", command.example.replace("\\\n", " "))
    return [shlex.split(call.strip().removeprefix("batchor ")) for call in calls]


def start(shell: Shell, *more: str) -> None:
    """Run the example of `start`, but look at the provider more often than twice a minute."""
    shell.write("tickets.csv", "id,text,category\na,Lost card,card\nb,No cash,cash\n")
    (call,) = example("start")
    words = [word for word in call if word != "--wait"] if "--no-wait" in more else call
    assert shell.call(*words, "--poll-interval", "0.1").exit_code == 0


def test_every_command_has_an_example_that_is_run() -> None:
    """A command could be added whose example nobody has ever tried."""
    tried = {"start", "simulate", *ON_A_FINISHED_RUN, *ON_A_RUN_AT_WORK, *ELSEWHERE}
    assert set(main.list_commands(click.Context(main))) == tried


@pytest.mark.parametrize("name", ON_A_FINISHED_RUN)
def test_on_a_finished_run(shell: Shell, name: str) -> None:
    """The first thing that people paste would fail."""
    start(shell)
    for call in example(name):
        shell.ok(*call)
    assert name != "results" or (shell.folder / "answers.parquet").exists()


@pytest.mark.parametrize("name", ON_A_RUN_AT_WORK)
def test_on_a_run_at_work(shells: Callable[..., Shell], name: str) -> None:
    """A run could not be stopped as the help says."""
    shell = shells(batch_seconds=600)  # on a busy machine a fast provider would be done by then
    start(shell, "--no-wait")
    codes = []
    for call in example(name):
        codes.append(shell.call(*call).exit_code)
        shell.sim.advance_time(600)
    assert codes == {"pause": [0], "resume": [0, 0], "cancel": [0, 5]}[name]


def test_simulator(shell: Shell) -> None:
    """Nobody could try the product without a key."""
    (call,) = example("simulate")
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8800)) == 0:
            pytest.skip("somebody else listens on the example's port")
    with shell.spawn(*call) as server:
        assert server.stdout is not None
        assert "8800" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
    assert server.returncode == 0
