"""Spool the rows of a step: read them into a batch run that is not sent yet."""

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
"""Returns the rows of one partition; None: of the whole step, which has at most one partition."""


def spool(step: Step, partitions: Sequence[str], rows_of: RowsOf | None = None) -> Run:
    """Read all rows of some partitions into a new batch run, which claims no partition yet.

    Args:
        step: The request's step.
        partitions: Partitions of the step; empty for an unpartitioned asset.
        rows_of: Returns the rows to ask; default: all rows.
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
    """Return the rows that the user's function returns for a partition.

    Raises:
        ConfigurationError: ``refresh: failed`` is set, and the asset has no ``id_column`` by which
            to tell rows apart.
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
    """Return the claims of a spooled batch run: each partition with its fingerprint."""
    identities = step.identities(partitions)
    return [
        MemberClaim(identity=identity, fingerprint=fingerprint, item_count=count)
        for identity, (fingerprint, count) in zip(
            identities, run.member_fingerprints(len(identities)), strict=True
        )
    ]


def discard(step: Step, run: Run) -> None:
    """Close a spooled batch run that was never sent, and delete its files."""
    run.cancel("nobody needs it")
    run.advance()
    step.runner.artifacts.delete_folder(f"runs/{run.run_id}")


def _items(step: Step, partitions: Sequence[str], rows_of: RowsOf) -> Any:
    """Return the rows of the partitions, each read when its turn comes."""
    if not step.calls_by_partition:
        return rows_of(None)
    members = [MemberRows(name=key, read=partial(rows_of, key)) for key in partitions]
    return MemberItemSource(members, step.declaration.id_column)
