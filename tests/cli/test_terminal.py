"""What happens on the terminal: progress, warnings, Ctrl-C."""

import contextlib
import os
import pty
import signal
import socket
import time
from collections.abc import Callable

import pytest

from tests.cli.commands import Shell, until


def test_progress_is_a_line_a_change_where_stderr_is_no_terminal(shell: Shell) -> None:
    """Logs would be full of control characters, or say nothing for hours."""
    result = shell.ok(*shell.start("--run-id", "r", "--wait", "--json"))
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Warning")]
    assert lines == ["r: running: 3 (3 in flight)", "r: succeeded: 3 (3 ok)"]


def test_progress_is_a_bar_on_a_terminal(shell: Shell) -> None:
    """People would wait without seeing anything move, or stdout would not be JSON any more."""
    ours, theirs = pty.openpty()
    process = shell.spawn(*shell.start("--run-id", "r", "--wait", "--json"), stderr=theirs)
    os.close(theirs)
    shown = b""
    with process, contextlib.suppress(OSError):  # the terminal's other end is closed
        while block := os.read(ours, 4096):
            shown += block
    os.close(ours)
    assert process.returncode == 0
    assert b"3/3" in shown
    assert b"Warning: tokens are estimated" in shown


def test_a_vocabulary_that_cannot_be_had_costs_one_warning_and_five_seconds(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a firewall every chunk would wait for a download, or the command for ever."""

    def took_s(run_id: str) -> float:
        began = time.monotonic()
        done = shell.run(*shell.start("--run-id", run_id, "--chunk-max-requests", "1"))
        assert done.returncode == 0
        warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
        assert len(warnings) == 1
        return time.monotonic() - began

    refused_s = took_s("refused")  # start-up and all the rest, on this machine
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert took_s("silent") - refused_s < 5 + 3


def test_an_interrupted_wait_says_how_to_go_on_and_the_run_stays(
    shells: Callable[..., Shell],
) -> None:
    """Ctrl-C would look like a failure, or nobody would know how to get the results."""
    shell = shells(batch_seconds=60)
    with shell.spawn(*shell.start("--run-id", "r", "--wait")) as process:
        until(lambda: len(shell.at_provider("batches")) == 1)
        assert process.stderr is not None
        until(lambda: "in flight" in (process.stderr.readline() if process.stderr else ""))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert f"Go on with: batchor wait --run-id r --db-path {shell.db}" in rest
    assert "Traceback" not in rest
    shell.sim.advance_time(60)
    assert shell.json(*shell.on("wait"))["counts"]["ok"] == 3
    assert shell.sim.ledger().paid_twice() == []
