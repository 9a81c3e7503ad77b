"""Looking at batch runs and waiting for them."""

import click

from batchor_core.cli.driving import drive, interruptible, wait_command
from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit, exit_of
from batchor_core.cli.options import (
    StatePlace,
    json_option,
    place_options,
    run_id_option,
    timeout_option,
)
from batchor_core.cli.output import Standing, show_run, show_runs


@click.command(cls=ExampleCommand, example="batchor status --run-id tickets --json")
@run_id_option
@click.option(
    "--refresh",
    is_flag=True,
    help="Ask the provider first, and do what is due: collect, retry, send.",
)
@place_options
@json_option
def status(*, run_id: str, refresh: bool, place: StatePlace, as_json: bool) -> Exit:
    """Show where a batch run stands.

    Reads the stored state only, and needs no key, unless --refresh is given. The exit status
    tells the same: 0 ok or still going, 1 stopped for good, 3 finished with failed items,
    4 paused, 5 cancelled.
    """
    with place.open() as runner:
        if refresh:
            runner.get_run(run_id).advance()
        return exit_of(show_run(runner.store, run_id, as_json=as_json))


@click.command(name="list", cls=ExampleCommand, example="batchor list --limit 5")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show the newest N.",
)
@place_options
@json_option
def list_(*, limit: int, place: StatePlace, as_json: bool) -> Exit:
    """List the batch runs, newest first.

    Shows all runs of the state, those that Dagster has started included.
    """
    with place.open() as runner:
        records = runner.store.list_runs(limit=limit)
        standings = [Standing.read(runner.store, record.run_id) for record in records]
    show_runs(standings, as_json=as_json)
    return Exit.OK


@click.command(cls=ExampleCommand, example="batchor wait --run-id tickets --timeout 3600")
@run_id_option
@timeout_option
@place_options
@json_option
def wait(*, run_id: str, timeout_s: float | None, place: StatePlace, as_json: bool) -> Exit:
    """Drive a batch run until it is finished.

    Exit status: 0 all items ok, 1 error, 3 finished with failed items, 4 paused, 5 cancelled,
    6 timed out, 130 interrupted.
    """
    with place.open() as runner:
        with interruptible(wait_command(run_id, place)):
            ended = drive(runner.get_run(run_id), timeout_s)
        show_run(runner.store, run_id, as_json=as_json)
    return ended
