"""Exporting and removing the files of finished runs."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

import click

from batchor_core.artifacts.kinds import SENT_AND_RECEIVED, ArtifactKind
from batchor_core.cli.examples import ExampleCommand
from batchor_core.cli.exits import Exit
from batchor_core.cli.options import StatePlace, json_option, place_options, run_id_option
from batchor_core.cli.output import echo_table
from batchor_core.providers.registry import connect_without_key
from batchor_core.results.pruning import Pruned, prune_files
from batchor_core.runner import DEFAULT_NAMESPACE, BatchRunner

_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_kinds_option = click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in ArtifactKind]),
    default=[kind.value for kind in SENT_AND_RECEIVED],
    show_default=True,
    help="Which files; may be repeated.",
)


@click.command(
    name="export-artifacts",
    cls=ExampleCommand,
    example="batchor export-artifacts --run-id tickets --output archive",
)
@run_id_option
@click.option(
    "--output", "target", required=True, metavar="URL", help="A folder, or any fsspec URL."
)
@_kinds_option
@place_options
@json_option
def export_artifacts(
    *, run_id: str, target: str, kinds: Sequence[str], place: StatePlace, as_json: bool
) -> Exit:
    """Copy the files of a finished batch run elsewhere.

    Writes what was sent and received, byte for byte, below runs/ID/ of the target, reads each copy
    back, and writes a manifest.json with sizes and checksums last. Raw answers that were exported
    so may be pruned. Needs no key.
    """
    with place.open(connect=connect_without_key) as runner:
        done = runner.get_run(run_id).export_artifacts(target, kinds)
    if as_json:
        click.echo(json.dumps({"run_id": run_id, **asdict(done)}))
    else:
        click.echo(f"{done.files:,} files, {done.size_bytes:,} bytes; see {done.manifest}")
    return Exit.OK


@click.command(
    name="prune-artifacts",
    cls=ExampleCommand,
    example="batchor prune-artifacts --run-id tickets\nbatchor prune-artifacts --older-than 30d",
)
@click.option("--run-id", metavar="ID", help="The batch run.")
@click.option(
    "--older-than",
    metavar="AGE",
    help="All runs that have been finished for so long: 12h, 30d, 8w.",
)
@click.option(
    "--namespace",
    default=DEFAULT_NAMESPACE,
    show_default=True,
    metavar="NAME",
    help="With --older-than: whose runs; Dagster's are its code location's.",
)
@_kinds_option
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@place_options
@json_option
def prune_artifacts(
    *,
    run_id: str | None,
    older_than: str | None,
    namespace: str,
    kinds: Sequence[str],
    dry_run: bool,
    place: StatePlace,
    as_json: bool,
) -> Exit:
    """Remove files of finished batch runs, for good.

    By default what was sent and received; results stay readable, but failed items cannot be asked
    again. Raw answers have to be exported before. Counts and costs are kept. Needs no key.

    Exit status: 1 if files of some run may not be removed, which is said.
    """
    if (run_id is None) == (older_than is None):
        raise click.UsageError("Give --run-id or --older-than.")
    named = [ArtifactKind(kind) for kind in kinds]
    with place.open(connect=connect_without_key) as runner:
        if run_id is not None:
            pruned = [prune_files(runner.store, runner.artifacts, run_id, named, is_dry=dry_run)]
        else:
            pruned = _prune_old(runner, namespace, _age(older_than or ""), named, is_dry=dry_run)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in pruned]))
    else:
        _print(pruned, is_dry=dry_run)
    return Exit.ERROR if any(each.refused for each in pruned) else Exit.OK


def _prune_old(
    runner: BatchRunner,
    namespace: str,
    age: timedelta,
    kinds: Sequence[ArtifactKind],
    *,
    is_dry: bool,
) -> list[Pruned]:
    runner.namespace = namespace
    return runner.prune_artifacts(age, kinds, is_dry=is_dry)


def _age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text.strip())
    if found is None:
        raise click.UsageError(f"--older-than {text} is no age, as 12h, 30d and 8w are.")
    return timedelta(seconds=int(found[1]) * _SECONDS[found[2]])


def _print(pruned: Sequence[Pruned], *, is_dry: bool) -> None:
    rows = [
        (
            each.run_id,
            ", ".join(each.kinds) or "nothing",
            f"{each.files:,}",
            f"{each.size_bytes:,}",
            each.refused or "",
        )
        for each in pruned
    ]
    if rows:
        echo_table(("RUN", "WOULD GO" if is_dry else "REMOVED", "FILES", "BYTES", "REFUSED"), rows)
    total = sum(each.size_bytes for each in pruned)
    click.echo(f"{total:,} bytes {'would be' if is_dry else 'were'} removed.")
