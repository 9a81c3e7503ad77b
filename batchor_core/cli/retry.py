"""Asking the failed items of a finished run again."""

import click

from batchor_core.cli.driving import drive, interruptible, send, wait_command
from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import (
    StatePlace,
    json_option,
    place_options,
    run_id_option,
    timeout_option,
)
from batchor_core.cli.output import show_run


@click.command(
    cls=ExampleCommand,
    example="batchor retry --run-id tickets --wait\n"
    "batchor results --run-id tickets --combined --output answers.parquet",
)
@run_id_option
@click.option(
    "--new-run-id",
    metavar="ID",
    help="Id of the run that asks them.  [default: the run's, with .retry-1 and so on]",
)
@click.option(
    "--only",
    "codes",
    multiple=True,
    metavar="CODE",
    help="Only items that failed with this error code (batch_error_code); may be repeated.  "
    "[default: all but run_cancelled]",
)
@click.option("--wait", is_flag=True, help="Drive the new run until it is finished.")
@timeout_option
@place_options
@json_option
def retry(
    *,
    run_id: str,
    new_run_id: str | None,
    codes: tuple[str, ...],
    wait: bool,
    timeout_s: float | None,
    place: StatePlace,
    as_json: bool,
) -> Exit:
    """Ask failed items of a finished batch run again.

    Opens a new run with these items only, cut out of what was sent: no input file is needed, and
    no prompt is made anew. Each failed item is taken once; what fails again is retried from the
    new run. 'batchor results --combined' puts the new answers in their places.

    Exit status: as of 'batchor start', of the new run.
    """
    if timeout_s is not None and not wait:
        raise click.UsageError("Give --wait with --timeout.")
    with place.open() as runner:
        with interruptible("the same command"):
            run = runner.get_run(run_id).retry_failed(run_id=new_run_id, codes=codes or None)
        with interruptible(wait_command(run.run_id, place)):
            ended = drive(run, timeout_s) if wait else send(run)
        show_run(runner.store, run.run_id, as_json=as_json)
        if not run.is_finished and not wait:
            click.echo(f"Wait for it with: {wait_command(run.run_id, place)}", err=True)
    return ended
