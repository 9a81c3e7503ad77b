"""A dry run: estimate the cost of a request without sending it."""

from batchor_dagster.asset.metadata import estimate_metadata, estimate_text
from batchor_dagster.step.spooling import discard, spool
from batchor_dagster.step.step import Step


def dry_run(step: Step) -> None:
    """Read the rows, log and observe the estimated cost, and delete what was written."""
    run = spool(step, step.partitions)
    estimate = run.estimate()
    discard(step, run)
    step.context.log.info("dry run, nothing is sent: %s", estimate_text(estimate))
    step.observe(step.partitions, estimate_metadata(estimate))
    warn_of_backfill(step, "a dry run")


def warn_of_backfill(step: Step, what: str) -> None:
    """Warn a Dagster run of a backfill that the backfill fails, since it materializes nothing."""
    if step.is_in_backfill:
        step.context.log.warning(
            "%s materializes nothing: Dagster will mark its backfill as failed", what
        )
