"""What was paid, and what batch mode has saved."""

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, get_args

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import StatePlace, json_option, place_options
from batchor_core.planning.prices import usd
from batchor_core.results.costs import CostKey, CostLine, add, cost_lines

_WIDE = 200
"""Columns of a table that goes into a file or a pipe: it is never cut."""


@click.command(cls=ExampleCommand, example="batchor costs --by model --since 2026-11-01")
@click.option(
    "--by",
    type=click.Choice(get_args(CostKey)),
    default="run",
    show_default=True,
    help="What to group by.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    metavar="DAY",
    help="Only what was collected since then, in UTC, as 2026-11-01.",
)
@place_options
@json_option
def costs(*, by: CostKey, since: datetime | None, place: StatePlace, as_json: bool) -> Exit:
    """Show what was paid, and what batch mode has saved.

    Counts what was collected, over all batch runs of the state, those of Dagster included. Reads
    the stored state only, and needs no key. A cost that is unknown is shown as unknown, with its
    tokens; --json has null for it.
    """
    instant = None if since is None else since.replace(tzinfo=UTC)
    with place.open() as runner:
        lines = cost_lines(runner.store.costs(since=instant), by)
    if as_json:
        click.echo(json.dumps([_as_json(line, by) for line in lines]))
    elif not lines:
        click.echo("Nothing was collected" + (" since then." if since else " yet."))
    else:
        _print_table(lines, by)
    return Exit.OK


def _as_json(line: CostLine, by: CostKey) -> dict[str, Any]:
    numbers = asdict(line)
    return {by: numbers.pop("key"), "cost_usd": line.cost_usd, **numbers}


def _print_table(lines: Sequence[CostLine], by: CostKey) -> None:
    from rich import box  # noqa: PLC0415 - not for --json
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    total = functools.reduce(add, lines)
    table = Table(box=box.SIMPLE, show_footer=True)
    cells = [_cells(line) for line in lines]
    header = ("Batches", "Items", "Input tokens", "Output tokens", "Cost", "Saved")
    table.add_column(by.capitalize(), "Total", overflow="fold")
    for name, footer in zip(header, _cells(total), strict=True):
        table.add_column(name, footer, justify="right", overflow="fold")
    for line, values in zip(lines, cells, strict=True):
        table.add_row(line.key or f"(no {by})", *values)
    width = None if sys.stdout.isatty() else _WIDE
    Console(width=width, highlight=False, markup=False).print(table)


def _cells(line: CostLine) -> tuple[str, ...]:
    return (
        f"{line.batches:,}",
        f"{line.items:,}",
        f"{line.input_tokens:,}",
        f"{line.output_tokens:,}",
        _cost(line),
        "unknown" if line.saved_usd is None else usd(line.saved_usd),
    )


def _cost(line: CostLine) -> str:
    known = None if line.known_usd is None else usd(line.known_usd)
    if not line.unpriced_batches:
        return known or "unknown"
    unknown = f"unknown for {line.unpriced_tokens:,} tokens"
    return unknown if known is None else f"{known} + {unknown}"
