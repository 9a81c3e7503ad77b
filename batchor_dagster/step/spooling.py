"""Reading the rows of a step into a batch run that was not sent yet."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from batchor_core import BatchJob, ConfigurationError, Run
from batchor_core.integration import (
    MemberClaim,
    MemberItemSource,
    MemberRows,
    check_importable,
    source_of,
)
from batchor_dagster.step.reuse import reuse_policy
from batchor_dagster.step.step import Step

RowsOf = Callable[[str | None], Any]
"""Returns the rows of one partition, or (None) of a step of one partition or none."""


def spool(step: Step, partitions: Sequence[str], rows_of: RowsOf | None = None) -> Run:
    """Read the user's rows to their end into a run that nobody stands for yet.

    Args:
        step: The request's.
        partitions: Those of the step that are asked; empty for an unpartitioned asset.
        rows_of: Default: all rows.
    """
    declaration = step.declaration
    if isinstance(declaration.output, type) and not step.waits:
        check_importable(declaration.output)
    job: BatchJob = declaration.job(
        _items(step, partitions, rows_of or partial(all_rows, step)),
        step.provider_config(),
        step.batchor.timing,
        reuse_policy(step, partitions),
        step.budget,
    )
    run = step.runner.open(job)
    try:
        return run.ingest()
    except BaseException:
        discard(step, run)
        raise


def all_rows(step: Step, partition: str | None) -> Any:
    """Return what the user's function gives for a partition.

    Raises:
        ConfigurationError: Failed rows are to be asked again, and rows cannot be told apart.
    """
    items, id_column = step.read(partition), step.declaration.id_column
    if step.config.refresh != "failed":
        return items
    source = source_of(items, id_column)
    if id_column is None and source.columns is not None:
        raise ConfigurationError(
            "refresh: failed keeps the answers of rows by their ids, and row numbers tell nothing "
            "of which row it is: give the asset an id_column"
        )
    return source


def member_claims(step: Step, run: Run, partitions: Sequence[str]) -> list[MemberClaim]:
    """Return what a spooled run asks about: each partition with its fingerprint."""
    identities = step.identities(partitions)
    return [
        MemberClaim(identity=identity, fingerprint=fingerprint, item_count=count)
        for identity, (fingerprint, count) in zip(
            identities, run.member_fingerprints(len(identities)), strict=True
        )
    ]


def discard(step: Step, run: Run) -> None:
    """Close a spooled run that was never sent, and remove its files."""
    run.cancel("nobody needs it")
    run.advance()
    step.runner.artifacts.delete_folder(f"runs/{run.run_id}")


def _items(step: Step, partitions: Sequence[str], rows_of: RowsOf) -> Any:
    """Return the rows of the partitions, each read when its turn comes."""
    if not step.calls_by_partition:
        return rows_of(None)
    members = [MemberRows(name=key, read=partial(rows_of, key)) for key in partitions]
    return MemberItemSource(members, step.declaration.id_column)
