"""A preview: ask the first rows of a request, show the answers, and materialize nothing.

A preview has a batch run of its own, which claims no partition and has no waiter: it neither joins
nor replaces a batch run in flight. The store notes which partitions it asked about, so that their
next request reuses its answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import Run
from batchor_core.integration import LimitedItemSource, MemberResults, source_of
from batchor_dagster import constants as c
from batchor_dagster.asset.metadata import PartitionTotals, dollars, table_value
from batchor_dagster.step.dry_run import warn_of_backfill
from batchor_dagster.step.materialize import refuse_without_results
from batchor_dagster.step.spooling import all_rows, member_claims, spool
from batchor_dagster.step.step import CANCEL_SECONDS, Step

_SHOWN_ROWS = 100
_SHOWN_CHARS = 200
_SHOWN_OF_OURS = ("batch_status", "batch_error_code", "batch_error_message", "batch_output_text")


def preview(step: Step, row_count: int) -> None:
    """Ask the first rows of the step's partitions, wait for the answers, and show them.

    Args:
        step: The request's step.
        row_count: How many rows to ask in all; each partition gives its share.
    """
    warn_of_backfill(step, "a preview")
    sample = _Sample(step, row_count)
    run = spool(step, step.partitions, sample.rows_of)
    step.runner.store.note_members(run.run_id, member_claims(step, run, step.partitions))
    step.context.log.info(
        "preview of %d of %d rows: the step waits for batch run %s, which ends if it is stopped",
        run.record.total_items,
        sample.whole_count,
        run.run_id,
    )
    try:
        run.wait()
    except BaseException:  # only this step wants the answers
        run.cancel("its preview was stopped").advance(CANCEL_SECONDS)
        raise
    refuse_without_results(run)
    _show(step, run, sample.whole_count)


class _Sample:
    """The first rows of each partition of a step; counts all rows on the way."""

    def __init__(self, step: Step, row_count: int) -> None:
        self._step = step
        self._read: dict[str | None, LimitedItemSource] = {}
        keys = step.partitions if step.calls_by_partition else (None,)
        share, more = divmod(row_count, len(keys))
        self._shares = {key: share + (place < more) for place, key in enumerate(keys)}

    @property
    def whole_count(self) -> int:
        """How many rows the partitions have in all, once they were read."""
        return sum(source.row_count for source in self._read.values())

    def rows_of(self, partition: str | None) -> LimitedItemSource:
        """Return a partition's share of the rows."""
        rows = source_of(all_rows(self._step, partition), self._step.declaration.id_column)
        self._read[partition] = LimitedItemSource(rows, self._shares[partition])
        return self._read[partition]


@dataclass(frozen=True, kw_only=True)
class _Shown:
    """The result of a preview.

    Attributes:
        whole_count: How many rows the partitions have in all.
    """

    run: Run
    totals: PartitionTotals
    whole_count: int

    @property
    def cost_usd(self) -> float | None:
        """What the preview has cost in US dollars; None if a part of it is not known."""
        return self.totals.known_cost(self.run.plan.price)

    @property
    def whole_cost_usd(self) -> float | None:
        """What all rows would cost at the same rate, if none is reused; None if not known."""
        paid_for = self.totals.rows - self.totals.reused
        if self.cost_usd is None or not paid_for:
            return None
        return dollars(self.cost_usd / paid_for * self.whole_count)

    def text(self) -> str:
        """Return the result as a sentence."""
        totals = self.totals
        text = f"preview of {totals.rows} of {self.whole_count} rows: {totals.failed} failed"
        if self.cost_usd is not None:
            text += f", for ${self.cost_usd:.4f}"
        if self.whole_cost_usd is not None:
            text += f"; all rows would cost about ${self.whole_cost_usd:.4f}"
        return text

    def metadata(self) -> dict[str, Any]:
        """Return the result as metadata of an observation."""
        totals = self.totals
        known = {
            c.META_PREVIEW_BATCH_RUN: self.run.run_id,
            c.META_PREVIEW_ROWS: totals.rows,
            c.META_PREVIEW_ROWS_OF: self.whole_count,
            c.META_PREVIEW_ROWS_FAILED: totals.failed,
            c.META_PREVIEW_ROWS_REUSED: totals.reused,
            c.META_PREVIEW_FAILURE_RATE: totals.failure_rate,
            c.META_PREVIEW_ERROR_CODES: dg.MetadataValue.json(dict(totals.error_codes)),
            c.META_PREVIEW_INPUT_TOKENS: totals.input_tokens,
            c.META_PREVIEW_OUTPUT_TOKENS: totals.output_tokens,
            c.META_PREVIEW_COST_USD: self.cost_usd,
            c.META_PREVIEW_WHOLE_COST_USD: self.whole_cost_usd,
        }
        return {key: value for key, value in known.items() if value is not None}


def _show(step: Step, run: Run, whole_count: int) -> None:
    keys = step.partitions or ("",)
    with run.results_by_member() as results:
        totals = PartitionTotals.of(chain.from_iterable(results.tables(key) for key in keys))
        answers = table_value(_answers(results, keys), most_chars=_SHOWN_CHARS)
    shown = _Shown(run=run, totals=totals, whole_count=whole_count)
    step.context.log.info("%s", shown.text())
    # Several partitions share one observation: the whole table at each would be n² rows.
    partition = keys[0] if len(keys) == 1 else None
    metadata = {**shown.metadata(), c.META_PREVIEW_ANSWERS: answers}
    step.context.log_event(
        dg.AssetObservation(step.declaration.key, partition=partition or None, metadata=metadata)
    )


def _answers(results: MemberResults, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows to show, with their partition if there are several."""
    ours = pl.selectors.starts_with("batch_") - pl.selectors.by_name(*_SHOWN_OF_OURS)
    frames = []
    for key in keys:
        frame = results.frame(key).select(~ours)
        frames.append(
            frame if len(keys) == 1 else frame.select(pl.lit(key).alias("batch_partition"), "*")
        )
    return pl.concat(frames).head(_SHOWN_ROWS).collect()
