"""What is shown in Dagster's UI of a batch run, a partition and its rows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from batchor_core import Run, RunSummary
from batchor_core.integration import Price
from batchor_dagster import constants as c

_SHOWN_ERROR_CODES = 5
_PREVIEW_ROWS = 5
_PREVIEW_CHARS = 120


@dataclass(kw_only=True)
class PartitionTotals:
    """What the result rows of one partition amount to."""

    rows: int = 0
    ok: int = 0
    reused: int = 0
    error_codes: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    has_unknown_cost: bool = False
    batches: set[str] = field(default_factory=set)

    @property
    def failed(self) -> int:
        """Rows without a usable answer."""
        return self.rows - self.ok

    @property
    def failure_rate(self) -> float:
        """Share of failed rows, 0 for none at all."""
        return self.failed / self.rows if self.rows else 0.0

    @classmethod
    def of(cls, parts: Iterable[pa.Table]) -> "PartitionTotals":
        """Add up result parts, one in memory at a time."""
        totals = cls()
        for part in parts:
            totals._add(part)
        return totals

    def _add(self, part: pa.Table) -> None:
        self.rows += part.num_rows
        self.ok += pc.sum(pc.equal(part["batch_status"], "ok")).as_py() or 0
        self.reused += _sum(part, "batch_reused")
        for entry in pc.value_counts(part["batch_error_code"].drop_null()).to_pylist():
            self.error_codes[entry["values"]] += entry["counts"]
        self.attempts += _sum(part, "batch_attempts")
        self.input_tokens += _sum(part, "batch_input_tokens")
        self.cached_input_tokens += _sum(part, "batch_cached_input_tokens")
        self.output_tokens += _sum(part, "batch_output_tokens")
        self.reasoning_tokens += _sum(part, "batch_reasoning_tokens")
        self.cost_usd += _sum(part, "batch_cost_usd")
        answered = pc.is_valid(part["batch_input_tokens"])
        priced = pc.is_valid(part["batch_cost_usd"])
        self.has_unknown_cost |= bool(pc.any(pc.and_not(answered, priced)).as_py())
        self.batches.update(pc.unique(part["batch_provider_batch_id"].drop_null()).to_pylist())


def _sum(part: pa.Table, column: str) -> Any:
    return pc.sum(part[column]).as_py() or 0


def partition_metadata(run: Run, totals: PartitionTotals, *, partitioned: bool) -> dict[str, Any]:
    """Return the metadata of a materialised partition; counts and costs are numbers to plot."""
    config = run.plan.job.provider_config
    count_key = c.META_PARTITION_ROW_COUNT if partitioned else c.META_ROW_COUNT
    metadata: dict[str, Any] = {
        count_key: totals.rows,
        c.META_COLUMN_SCHEMA: table_schema(run.plan.result_schema),
        c.META_BATCH_RUN: run.run_id,
        c.META_PROVIDER: config.provider,
        c.META_MODEL: config.model,
        c.META_ROWS: totals.rows,
        c.META_ROWS_OK: totals.ok,
        c.META_ROWS_FAILED: totals.failed,
        c.META_ROWS_REUSED: totals.reused,
        c.META_FAILURE_RATE: totals.failure_rate,
        c.META_INPUT_TOKENS: totals.input_tokens,
        c.META_CACHED_INPUT_TOKENS: totals.cached_input_tokens,
        c.META_OUTPUT_TOKENS: totals.output_tokens,
        c.META_REASONING_TOKENS: totals.reasoning_tokens,
        c.META_PROVIDER_BATCHES: dg.MetadataValue.json(sorted(totals.batches)),
        f"{config.provider}.{config.model}.calls": totals.attempts,
        f"{config.provider}.{config.model}.total_tokens": (
            totals.input_tokens + totals.output_tokens
        ),
    }
    if totals.error_codes:
        metadata[c.META_ERROR_CODES] = dg.MetadataValue.json(dict(totals.error_codes))
    return metadata | _cost_metadata(totals, run.plan.price)


def preview_metadata(frame: pl.LazyFrame) -> dict[str, Any]:
    """Return the first rows as a Markdown table, long values cut."""
    head = frame.select(~pl.selectors.starts_with("batch_")).head(_PREVIEW_ROWS).collect()
    names = head.columns
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(v) for v in row) + " |" for row in head.iter_rows()]
    return {c.META_PREVIEW: dg.MetadataValue.md("\n".join(lines))}


def progress_metadata(summary: RunSummary, run: Run) -> dict[str, Any]:
    """Return the metadata of a progress observation."""
    counts = summary.counts
    metadata: dict[str, Any] = {
        c.META_BATCH_RUN: run.run_id,
        c.META_STATUS: _status(summary),
        c.META_MODEL: run.plan.job.provider_config.model,
        c.META_ROWS: counts.total,
        c.META_ROWS_OK: counts.ok,
        c.META_ROWS_FAILED: counts.failed,
        c.META_ROWS_RETRYING: counts.retrying,
        c.META_ROWS_IN_FLIGHT: counts.in_flight,
        c.META_ROWS_READY: counts.ready,
        c.META_PROVIDER_BATCHES: dg.MetadataValue.json(run.provider_batch_ids()),
    }
    if summary.cost_usd is not None:
        metadata[c.META_COST_USD] = _dollars(summary.cost_usd)
    return metadata


def verdict_text(totals: PartitionTotals, max_failure_rate: float) -> str:
    """Return why a partition does not materialise, with its most frequent error codes."""
    top = totals.error_codes.most_common(_SHOWN_ERROR_CODES)
    codes = ", ".join(f"{code} ({count})" for code, count in top)
    return (
        f"{totals.failed} of {totals.rows} rows failed ({totals.failure_rate:.1%}, at most "
        f"{max_failure_rate:.1%} may): {codes}"
    )


def table_schema(schema: pa.Schema) -> dg.TableSchema:
    """Return an Arrow schema as Dagster shows it, with the fields' descriptions."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=str(column.type),
                description=_description(column),
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in schema
        ]
    )


def _cost_metadata(totals: PartitionTotals, price: Price | None) -> dict[str, Any]:
    if price is None or totals.has_unknown_cost:
        return {}
    saving_usd = totals.cost_usd * (price.realtime_factor - 1)
    return {c.META_COST_USD: _dollars(totals.cost_usd), c.META_SAVING_USD: _dollars(saving_usd)}


def _dollars(amount: float) -> float:
    """Return an amount as people read it: to a millionth of a cent, without binary dust."""
    return round(amount, 8)


def _status(summary: RunSummary) -> str:
    if summary.status.is_terminal or summary.control_state == "run":
        return summary.status.value
    reason = f": {summary.control_reason}" if summary.control_reason else ""
    return f"{summary.status.value} ({summary.control_state.value}{reason})"


def _description(column: pa.Field) -> str | None:
    text = (column.metadata or {}).get(b"description")
    return text.decode() if text else None


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= _PREVIEW_CHARS else text[: _PREVIEW_CHARS - 1] + "…"
