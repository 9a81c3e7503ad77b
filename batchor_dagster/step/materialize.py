"""Materialize the partitions of a finished batch run, or fail with their verdict."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import Run
from batchor_core.integration import MemberResults, OrchestratorStore, Waiter
from batchor_dagster.asset.checks import blocking_failures, check_results, evaluations
from batchor_dagster.asset.metadata import (
    PartitionTotals,
    partition_metadata,
    preview_metadata,
    verdict_text,
)
from batchor_dagster.constants import TAG_BATCH_RUN, TAG_LAUNCH, TAG_WAITER
from batchor_dagster.step.rejected import keep_rejected
from batchor_dagster.step.step import Step
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import Launch, launches_of, with_launches
from batchor_dagster.waiting.serving import is_good
from batchor_dagster.waiting.waiters import change_waiter

_SHOWN_PROBLEMS = 3


@dataclass(frozen=True, kw_only=True)
class AnsweringRun:
    """A batch run, and the partitions of the step that it answers.

    Attributes:
        partitions: Empty for an unpartitioned asset.
    """

    run: Run
    partitions: tuple[str, ...]


def materialize(step: Step, waiter: Waiter) -> Iterator[Any]:
    """Materialize a waiter's partitions in the run that the materialize sensor launched for it."""
    run_id = step.context.run.tags[TAG_BATCH_RUN]
    _refuse_if_stale(step, waiter, run_id)
    answers = AnsweringRun(run=step.runner.get_run(run_id), partitions=step.partitions)
    results: list[dg.AssetCheckResult | dg.AssetCheckEvaluation] = []
    try:
        for event in materialize_in_step(step, [answers]):
            yield event
            results += _results_in(event)
    except dg.Failure as failure:
        _store_verdict(step, failure.description or "failed")
        raise
    # Dagster fails the step for a blocking check after its last event: a verdict as well.
    blocked = blocking_failures(results, step.declaration.active_checks)
    if blocked is not None:
        _store_verdict(step, blocked)


def _refuse_if_stale(step: Step, waiter: Waiter, run_id: str) -> None:
    """Refuse to store answers that were superseded while this Dagster run was queued.

    Raises:
        dagster.Failure: The waiter waits for another batch run, or the launch has other partitions.
    """
    launch = _tagged_launch(step.context.run.tags, waiter)
    if waiter.run_id != run_id or launch is None or launch.partitions != step.partitions:
        raise dg.Failure(
            description="partitions that this Dagster run was to materialize have been asked for "
            "again meanwhile, or were defined anew: another one materializes what is asked for",
            allow_retries=False,
        )


def materialize_in_step(step: Step, answers: Sequence[AnsweringRun]) -> Iterator[Any]:
    """Materialize all partitions of the step, or fail with the verdict of the bad ones.

    Raises:
        dagster.Failure: Too many rows of a partition failed, or a batch run was cancelled or
            failed.
    """
    for each in answers:
        refuse_without_results(each.run)
    with ExitStack() as stack:
        found = {}
        for each in answers:
            results = stack.enter_context(each.run.results_by_member())
            for partition in each.partitions or ("",):
                found[partition] = _Partition.of(step, each.run, results, partition)
        _refuse_bad(step, found)
        # The IO manager reads the frames during these yields, while the results are open.
        yield from _events(step, [found[partition] for partition in step.partitions or ("",)])


def refuse_without_results(run: Run) -> None:
    """Refuse a batch run that was cancelled or failed.

    Raises:
        dagster.Failure: It was; the text says why.
    """
    if not run.status.is_complete:
        why = run.control_reason or run.record.error_message or "no reason given"
        text = f"batch run {run.run_id!r} was {run.status.value}: {why}"
        raise dg.Failure(description=text, allow_retries=False)


def has_failed_verdict(tags: Mapping[str, str], store: OrchestratorStore) -> bool:
    """Whether the launch of a materialize run has already ended with a verdict."""
    launch = _tagged_launch(tags, store.get_waiter(tags[TAG_WAITER]))
    return launch is not None and launch.is_verdict


@dataclass(frozen=True, kw_only=True)
class _Partition:
    """The results of one partition, or of an asset without partitions.

    Attributes:
        key: Empty for an asset without partitions.
        frame: The rows, not read yet.
    """

    key: str
    run: Run
    totals: PartitionTotals
    frame: pl.LazyFrame
    input_rows: int
    is_partitioned: bool

    @classmethod
    def of(cls, step: Step, run: Run, results: MemberResults, partition: str) -> "_Partition":
        return cls(
            key=partition,
            run=run,
            totals=PartitionTotals.of(results.tables(partition)),
            frame=results.frame(partition),
            input_rows=results.row_count(partition),
            is_partitioned=bool(step.partitions),
        )

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of its materialization."""
        return partition_metadata(
            self.run, self.totals, partitioned=self.is_partitioned
        ) | preview_metadata(self.frame)

    def check_results(self, step: Step) -> list[dg.AssetCheckResult]:
        """Evaluate the asset's checks."""
        return check_results(
            step.declaration.key,
            step.declaration.active_checks,
            self.totals,
            input_rows=self.input_rows,
            cost_usd=self.totals.known_cost(self.run.plan.price),
        )


def _events(step: Step, partitions: Sequence[_Partition]) -> Iterator[Any]:
    key, active = step.declaration.key, step.declaration.active_checks
    if len(partitions) == 1:
        (only,) = partitions
        yield dg.MaterializeResult(
            asset_key=key,
            value=_value(step, only.frame),
            metadata=only.metadata(),
            check_results=only.check_results(step),
        )
        return
    for one in partitions:
        # A result's own metadata would go to every partition alike.
        step.context.add_asset_metadata(one.metadata(), asset_key=key, partition_key=one.key)
    yield dg.MaterializeResult(
        asset_key=key, value={one.key: _value(step, one.frame) for one in partitions}
    )
    for one in partitions:
        yield from evaluations(one.check_results(step), active, one.key)


def _value(step: Step, frame: pl.LazyFrame) -> pl.LazyFrame | pl.DataFrame:
    return frame if step.declaration.io_type == "lazy" else frame.collect()


def _results_in(event: Any) -> Sequence[dg.AssetCheckResult | dg.AssetCheckEvaluation]:
    if isinstance(event, dg.AssetCheckEvaluation):
        return [event]
    return event.check_results or () if isinstance(event, dg.MaterializeResult) else ()


def _refuse_bad(step: Step, partitions: Mapping[str, _Partition]) -> None:
    """Fail if a partition has too many failed rows; keep the rows of such partitions first."""
    most = step.declaration.max_failure_rate
    bad = [p for p in partitions.values() if not is_good(p.totals.rows, p.totals.ok, most)]
    if not bad:
        return
    texts = [verdict_text(one.totals, most) for one in bad[:_SHOWN_PROBLEMS]]
    if len(partitions) > 1:
        texts = [f"{one.key!r}: {text}" for one, text in zip(bad, texts, strict=False)]
        more = "; …" if len(bad) > _SHOWN_PROBLEMS else ""
        text = f"{len(bad)} of {len(partitions)} partitions failed: {'; '.join(texts)}{more}"
    else:
        text = texts[0]
    rejected = keep_rejected(step, bad[0].run.run_id, {one.key: one.frame for one in bad})
    metadata = bad[0].metadata() if len(bad) == 1 else {}
    raise dg.Failure(
        description=f"{text}; {rejected.text}",
        metadata=metadata | rejected.metadata,
        allow_retries=False,
    )


def _store_verdict(step: Step, reason: str) -> None:
    """Store a verdict before the step fails with it, so that no further attempt is launched.

    The partitions are released: the next request asks for new answers.
    """

    def change(waiter: Waiter) -> Mapping[str, Any] | None:
        launch = _tagged_launch(step.context.run.tags, waiter)
        if launch is None or launch.partitions != step.partitions:
            return None
        judged = launch.judged(reason)
        return {"progress": with_launches(waiter, LaunchSpec.of_waiter(waiter), [judged])}

    if not change_waiter(step.runner.store, step.context.run.tags[TAG_WAITER], change):
        step.context.log.info("the waiter has ended: the verdict is not stored")
    run_id = step.context.run.tags[TAG_BATCH_RUN]
    step.runner.store.release_members(run_id, step.identities(step.partitions))


def _tagged_launch(tags: Mapping[str, str], waiter: Waiter) -> Launch | None:
    """Return the launch of a materialize run; None if the waiter no longer has it."""
    launches = launches_of(waiter, LaunchSpec.of_waiter(waiter))
    index = int(tags[TAG_LAUNCH])
    return launches[index] if index < len(launches) else None
