"""Driving a run from the command line, and what is said when that ends early."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import click

from batchor_core.cli.exits import Exit, exit_of
from batchor_core.cli.options import StatePlace
from batchor_core.cli.progress import progress_of
from batchor_core.errors import RunPausedError, WaitTimeoutError
from batchor_core.model.states import RunState
from batchor_core.run import Run


def drive(run: Run, timeout_s: float | None) -> Exit:
    """Advance a run until it is finished, paused or out of time; say so, and how it ended."""
    try:
        with progress_of(run) as show:
            run.wait(timeout_s, on_progress=show)
    except RunPausedError as stop:
        click.echo(str(stop), err=True)
        return Exit.PAUSED
    except WaitTimeoutError as stop:
        click.echo(str(stop), err=True)
        return Exit.TIMED_OUT
    return _ended(run)


def send(run: Run) -> Exit:
    """Read the input to its end and send what fits; say how it ended, if it did."""
    return _ended(run.send())


@contextmanager
def interruptible(how_to_go_on: str) -> Iterator[None]:
    """Let Ctrl-C end the command, not the run: say how to go on, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted; the run stays as it is. Go on with: {how_to_go_on}", err=True)
        raise click.exceptions.Exit(Exit.INTERRUPTED) from None


def wait_command(run_id: str, place: StatePlace) -> str:
    """Return the command that waits for a run."""
    return f"batchor wait --run-id {shlex.quote(run_id)}{place.flags}"


def _ended(run: Run) -> Exit:
    """Return the exit status of a run, and say why where it was stopped for good."""
    if run.status is RunState.FAILED:
        reason = run.record.error_message or run.record.error_code
        click.echo(f"Error: run {run.run_id!r} was stopped: {reason}", err=True)
    return exit_of(run.record)
