"""Handing out results."""

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import StatePlace, place_options, run_id_option
from batchor_core.providers.registry import connect_without_key
from batchor_core.results.export import json_lines
from batchor_core.run import Run


@click.command(
    cls=ExampleCommand,
    example="batchor results --run-id tickets --output answers.parquet",
)
@run_id_option
@click.option(
    "--output",
    metavar="FILE",
    help="A .parquet, .jsonl or .csv file.  [default: JSON lines on stdout]",
)
@click.option(
    "--combined",
    is_flag=True,
    help="With what 'batchor retry' has led to, in the places of the failures.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Append what has finished since the last time, also while the run goes on.",
)
@place_options
def results(
    *, run_id: str, output: str | None, combined: bool, append: bool, place: StatePlace
) -> Exit:
    """Write the results of a finished batch run.

    One row for each row of the input, in the same order: item_id, the kept columns, the answer,
    and batch_* columns that say what became of it. Needs no key.

    With --append rows come in the order in which they have finished, to a .jsonl or .csv file, or
    to a folder, which gets a Parquet file each time.
    """
    if append and (output is None or combined):
        raise click.UsageError("Give --output with --append, and not --combined.")
    with place.open(connect=connect_without_key) as runner:
        run = runner.get_run(run_id)
        if output is None:
            _print(run, combined=combined)
        elif append:
            done = run.append_terminal_results(output)
            more = "" if done.is_complete else "; the run goes on"
            click.echo(f"{done.rows:,} more rows in {output}{more}", err=True)
        else:
            rows = run.export_terminal_results(output, combined=combined)
            click.echo(f"{rows:,} rows in {output}", err=True)
    return Exit.OK


def _print(run: Run, *, combined: bool) -> None:
    for line in json_lines(run.result_parts(combined=combined)):
        click.echo(line)
