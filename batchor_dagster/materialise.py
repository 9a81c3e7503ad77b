"""Turning a finished batch run into a materialised partition, or into a failure that says why."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from batchor_core import Run, RunState
from batchor_core.errors import StaleTransitionError
from batchor_dagster.constants import TAG_SEGMENT, TAG_WAITER
from batchor_dagster.metadata import (
    PartitionTotals,
    partition_metadata,
    preview_metadata,
    verdict_text,
)
from batchor_dagster.step import Step
from batchor_dagster.waiters import Segment, SegmentState, segments_of, with_segment


def materialise(step: Step, run_id: str) -> Iterator[dg.MaterializeResult[Any]]:
    """Materialise what a waiter asked for; launched by the materialise sensor."""
    run = step.runner.get_run(run_id)
    try:
        yield from materialise_in_step(step, run)
    except dg.Failure as failure:
        _store_verdict(step, failure.description or "failed")
        raise


def materialise_in_step(step: Step, run: Run) -> Iterator[dg.MaterializeResult[Any]]:
    """Yield the step's partition, or raise its verdict.

    Raises:
        dagster.Failure: Too many rows failed, or the batch run did not come to its own end.
    """
    totals = PartitionTotals.of(run.result_parts())
    problem = _problem(step, run, totals)
    partitioned = bool(step.partitions)
    metadata = partition_metadata(run, totals, partitioned=partitioned)
    if problem is not None:
        raise dg.Failure(description=problem, metadata=metadata, allow_retries=False)
    frame = run.results_frame()
    value = frame if step.declaration.io_type == "lazy" else frame.collect()
    yield dg.MaterializeResult(
        asset_key=step.declaration.key, value=value, metadata=metadata | preview_metadata(frame)
    )


def has_failed_verdict(step: Step) -> bool:
    """Whether the segment that this Dagster run is tagged with was judged as failed before."""
    return _tagged_segment(step)[1].state is SegmentState.FAILED


def _problem(step: Step, run: Run, totals: PartitionTotals) -> str | None:
    if run.status in (RunState.CANCELLED, RunState.FAILED):
        why = run.control_reason or run.record.error_message or "no reason given"
        return f"batch run {run.run_id!r} was {run.status.value}: {why}"
    most = step.declaration.max_failure_rate
    if totals.rows and (not totals.ok or totals.failure_rate > most):
        return verdict_text(totals, most)
    return None


def _store_verdict(step: Step, reason: str) -> None:
    """Record the verdict before the step fails with it, so that it is not tried again."""
    store = step.runner.store
    waiter_id, segment = _tagged_segment(step)
    failed = Segment(
        index=segment.index,
        partitions=segment.partitions,
        attempt=segment.attempt,
        state=SegmentState.FAILED,
        reason=reason,
    )
    waiter = store.get_waiter(waiter_id)
    try:
        store.update_waiter(waiter, progress=with_segment(waiter, failed))
    except StaleTransitionError:  # ended meanwhile: nobody asks for the verdict any more
        step.context.log.info("the waiter has ended; its verdict is not stored")


def _tagged_segment(step: Step) -> tuple[str, Segment]:
    tags = step.context.run.tags
    waiter_id = tags[TAG_WAITER]
    waiter = step.runner.store.get_waiter(waiter_id)
    return waiter_id, segments_of(waiter)[int(tags[TAG_SEGMENT])]
