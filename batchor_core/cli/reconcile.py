"""After a restore: what the provider has, put back in its place."""

import json
from datetime import UTC, datetime, timedelta

import click

from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import StatePlace, json_option, place_options
from batchor_core.cli.output import echo_table
from batchor_core.executor.reconcile import Finding, Reconciled


@click.command(cls=ExampleCommand, example="batchor reconcile --since-hours 72 --dry-run")
@click.option(
    "--since-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=72.0,
    show_default=True,
    metavar="H",
    help="Look at batches that were created within the last H hours.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@place_options
@json_option
def reconcile(*, since_hours: float, dry_run: bool, place: StatePlace, as_json: bool) -> Exit:
    """Put the provider's batches back in their places after a restore.

    A store that was restored from a backup does not know what was sent after it. Run this before
    anything else uses the store: batches whose chunks are ready to be sent are adopted, so that
    nothing is paid twice; those whose chunks are answered otherwise are cancelled. Batches of
    others are left alone.
    """
    since = datetime.now(UTC) - timedelta(hours=since_hours)
    with place.open() as runner:
        found = list(runner.reconcile(since=since, is_dry=dry_run))
    if as_json:
        click.echo(json.dumps([_as_json(each) for each in found]))
    else:
        _print(found, is_dry=dry_run)
    return Exit.ERROR if any(each.finding is Finding.BUSY for each in found) else Exit.OK


def _as_json(each: Reconciled) -> dict[str, str | None]:
    return {
        "batch_id": each.batch_id,
        "run_id": each.run_id,
        "status": each.status,
        "finding": each.finding.value,
    }


def _print(found: list[Reconciled], *, is_dry: bool) -> None:
    ours = [each for each in found if each.finding is not Finding.FOREIGN]
    if ours:
        header = ("BATCH", "RUN", "STATUS", "WOULD BE" if is_dry else "IS")
        rows = [(e.batch_id, e.run_id or "", e.status, e.finding.value) for e in ours]
        echo_table(header, rows)
    click.echo(f"{len(ours)} of {len(found)} batches are of runs in this store.")
