"""Pausing, resuming and cancelling batch runs."""

import click

from batchor_core.cli.driving import wait_command
from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.job_options import budget_options
from batchor_core.cli.options import StatePlace, json_option, place_options, run_id_option
from batchor_core.cli.output import show_run
from batchor_core.executor.budget import change_budget
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.states import RunControlState
from batchor_core.runner import BatchRunner


@click.command(cls=ExampleCommand, example="batchor pause --run-id tickets")
@run_id_option
@place_options
@json_option
def pause(*, run_id: str, place: StatePlace, as_json: bool) -> Exit:
    """Stop sending; what is in flight is collected.

    'batchor resume' lets the run go on.
    """
    with place.open() as runner:
        _ask(runner, run_id, RunControlState.PAUSE, "paused by hand")
        show_run(runner.store, run_id, as_json=as_json)
    return Exit.OK


@click.command(
    cls=ExampleCommand,
    example="batchor resume --run-id tickets && batchor wait --run-id tickets",
)
@run_id_option
@budget_options
@place_options
@json_option
def resume(*, run_id: str, budget: BudgetPolicy, place: StatePlace, as_json: bool) -> Exit:
    """Let a paused batch run go on.

    It goes on when something drives it: a process that is at it already, or 'batchor wait'. One
    that has used up its budget needs a larger one.
    """
    with place.open() as runner:
        change_budget(runner.store, runner.store.get_run(run_id), budget)
        _ask(runner, run_id, RunControlState.RUN, None)
        show_run(runner.store, run_id, as_json=as_json)
    return Exit.OK


@click.command(
    cls=ExampleCommand,
    example="batchor cancel --run-id tickets && batchor wait --run-id tickets",
)
@run_id_option
@place_options
@json_option
def cancel(*, run_id: str, place: StatePlace, as_json: bool) -> Exit:
    """End a batch run for good.

    Cancels its provider batches. What they have answered by then is paid, and collected by the
    next 'batchor wait'; all other items fail as run_cancelled.
    """
    with place.open() as runner:
        _ask(runner, run_id, RunControlState.CANCEL, "cancelled by hand")
        run = runner.get_run(run_id)
        run.advance()  # tells the provider
        show_run(runner.store, run_id, as_json=as_json)
        if not run.is_finished:
            hint = f"Collect what was answered with: {wait_command(run_id, place)}"
            click.echo(hint, err=True)
    return Exit.OK


def _ask(runner: BatchRunner, run_id: str, control: RunControlState, reason: str | None) -> None:
    """Ask something of a run through the store alone: that needs neither key nor lease."""
    run = runner.store.set_control(run_id, control, reason)
    if run.state.is_terminal:
        raise click.ClickException(f"run {run_id!r} is finished already ({run.state})")
    if run.control is not control:
        raise click.ClickException(f"run {run_id!r} is being cancelled: nothing can undo that")
