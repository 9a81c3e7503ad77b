"""Handing out results."""

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import Place, place_options, run_id_option
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
@place_options
def results(*, run_id: str, output: str | None, place: Place) -> Exit:
    """Write the results of a finished batch run.

    One row for each row of the input, in the same order: item_id, the kept columns, the answer,
    and batch_* columns that say what became of it. Needs no key.
    """
    with place.open(connect=connect_without_key) as runner:
        run = runner.get_run(run_id)
        if output is None:
            _print(run)
        else:
            rows = run.export_terminal_results(output)
            click.echo(f"{rows:,} rows in {output}", err=True)
    return Exit.OK


def _print(run: Run) -> None:
    for line in json_lines(run.result_parts()):
        click.echo(line)
