"""The metadata of batch runs, partitions and their rows in Dagster's UI."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from batchor_core import Estimate, Run, RunSummary
from batchor_core.integration import Price
from batchor_dagster import constants as c
from batchor_dagster.asset.console import console_metadata

MOST_EVENTS = 10
"""Of more partitions there is one event at the asset: each costs milliseconds and is kept."""

_SHOWN_ERROR_CODES = 5
_OBSERVED_BATCHES = 5
_PREVIEW_ROWS = 5
_PREVIEW_CHARS = 40
_INVALID_OUTPUT = "invalid_output"


_OWN_COLUMNS = {
    "item_id": "The id column's value, or the row number from 0.",
    "output_text": "The answer.",
    "embedding": "The vector.",
    "batch_status": "`ok` or `failed`.",
    "batch_error_code": "Why a failed row failed: the provider's code, or one of ours.",
    "batch_error_message": "Why a failed row failed.",
    "batch_output_text": "What a failed row was answered, as it came.",
    "batch_finish_reason": "Why the answer ended, in the provider's word.",
    "batch_attempts": "Executed and paid requests.",
    "batch_reused": "Whether the answer was taken over from an earlier batch run, at no cost.",
    "batch_model": "The model that answered.",
    "batch_input_tokens": "Tokens of the prompts, cached ones included, over all attempts.",
    "batch_cached_input_tokens": "Those of batch_input_tokens that the provider's cache had.",
    "batch_output_tokens": "Tokens of the answers, reasoning included, over all attempts.",
    "batch_reasoning_tokens": "Those of batch_output_tokens that were reasoning.",
    "batch_cost_usd": "At batch price, over all attempts; null where the price is unknown.",
    "batch_provider_batch_id": "Id of the provider's batch.",
    "batch_request_id": "The provider's id of the request.",
}
"""Descriptions of the columns that every batch asset has."""


@dataclass(kw_only=True)
class PartitionTotals:
    """Totals of the result rows of one partition."""

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
        """Share of failed rows; 0 without rows."""
        return self.failed / self.rows if self.rows else 0.0

    @property
    def invalid(self) -> int:
        """Rows whose answer does not satisfy the output model."""
        return self.error_codes[_INVALID_OUTPUT]

    @property
    def invalid_output_rate(self) -> float:
        """Share of rows with invalid output; 0 without rows."""
        return self.invalid / self.rows if self.rows else 0.0

    def known_cost(self, price: Price | None) -> float | None:
        """Return the cost of the rows in US dollars; None if a part of it is not known."""
        return None if price is None or self.has_unknown_cost else dollars(self.cost_usd)

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


def definition_metadata(model: str, schema: pa.Schema | None) -> dict[str, Any]:
    """Return the definition metadata of an asset: model and column schema."""
    shown = {} if schema is None else {c.META_COLUMN_SCHEMA: table_schema(schema, _OWN_COLUMNS)}
    return {c.META_MODEL: model, **shown}


def partition_metadata(run: Run, totals: PartitionTotals, *, partitioned: bool) -> dict[str, Any]:
    """Return the metadata of a materialized partition; counts and costs are numbers to plot."""
    config = run.plan.job.provider_config
    count_key = c.META_PARTITION_ROW_COUNT if partitioned else c.META_ROW_COUNT
    metadata: dict[str, Any] = {
        count_key: totals.rows,
        c.META_COLUMN_SCHEMA: table_schema(run.plan.result_schema, _OWN_COLUMNS),
        c.META_BATCH_RUN: run.run_id,
        c.META_PROVIDER: config.provider,
        c.META_MODEL: config.model,
        c.META_ROWS: totals.rows,
        c.META_ROWS_OK: totals.ok,
        c.META_ROWS_FAILED: totals.failed,
        c.META_ROWS_REUSED: totals.reused,
        c.META_FAILURE_RATE: totals.failure_rate,
        c.META_INVALID_OUTPUT_RATE: totals.invalid_output_rate,
        c.META_INPUT_TOKENS: totals.input_tokens,
        c.META_CACHED_INPUT_TOKENS: totals.cached_input_tokens,
        c.META_OUTPUT_TOKENS: totals.output_tokens,
        c.META_REASONING_TOKENS: totals.reasoning_tokens,
        c.META_PROVIDER_BATCHES: dg.MetadataValue.json(sorted(totals.batches)),
    }
    if totals.error_codes:
        metadata[c.META_ERROR_CODES] = dg.MetadataValue.json(dict(totals.error_codes))
    return {
        **metadata,
        **_cost_metadata(totals, run.plan.price),
        **_usage_metadata(f"{config.provider}.{config.model}", totals),
        **console_metadata(run, sorted(totals.batches)),
    }


def preview_metadata(frame: pl.LazyFrame) -> dict[str, Any]:
    """Return the first rows as metadata of a materialization."""
    head = frame.select(~pl.selectors.starts_with("batch_")).head(_PREVIEW_ROWS).collect()
    return {c.META_PREVIEW: table_value(head, most_chars=_PREVIEW_CHARS)}


def table_value(frame: pl.DataFrame, *, most_chars: int) -> dg.TableMetadataValue:
    """Return a frame as a metadata table: long values are cut, lists and structs are JSON."""
    columns = [dg.TableColumn(name, str(dtype)) for name, dtype in frame.schema.items()]
    records = [
        dg.TableRecord({name: _cell(value, most_chars) for name, value in row.items()})
        for row in frame.iter_rows(named=True)
    ]
    return dg.MetadataValue.table(records=records, schema=dg.TableSchema(columns=columns))


def progress_metadata(summary: RunSummary, run: Run) -> dict[str, Any]:
    """Return the metadata of a progress observation, with the newest provider batches."""
    counts = summary.counts
    batches = run.provider_batch_ids()
    newest = batches[-_OBSERVED_BATCHES:]
    metadata: dict[str, Any] = {
        c.META_PROGRESS_BATCH_RUN: run.run_id,
        c.META_PROGRESS_STATUS: _status(summary),
        c.META_PROGRESS_ROWS: counts.total,
        c.META_PROGRESS_ROWS_OK: counts.ok,
        c.META_PROGRESS_ROWS_FAILED: counts.failed,
        c.META_PROGRESS_ROWS_RETRYING: counts.retrying,
        c.META_PROGRESS_ROWS_IN_FLIGHT: counts.in_flight,
        c.META_PROGRESS_ROWS_READY: counts.ready,
        c.META_PROGRESS_BATCH_COUNT: len(batches),
        c.META_PROGRESS_BATCHES: dg.MetadataValue.json(newest),
    }
    if summary.cost_usd is not None:
        metadata[c.META_PROGRESS_COST_USD] = dollars(summary.cost_usd)
    return metadata | console_metadata(run, newest, is_progress=True)


def estimate_metadata(estimate: Estimate) -> dict[str, Any]:
    """Return the metadata of a dry run."""
    metadata: dict[str, Any] = {
        c.META_ESTIMATED_ROWS: estimate.rows,
        c.META_ESTIMATED_INPUT_TOKENS: estimate.input_tokens,
        c.META_ESTIMATED_OUTPUT_TOKENS: estimate.output_tokens,
        c.META_ESTIMATED_BATCHES: estimate.provider_batches,
    }
    costs = {
        c.META_ESTIMATED_COST_USD: estimate.expected_usd,
        c.META_ESTIMATED_MAX_COST_USD: estimate.high_usd,
        c.META_ESTIMATED_SAVING_USD: estimate.saving_usd,
    }
    return metadata | {key: dollars(cost) for key, cost in costs.items() if cost is not None}


def estimate_text(estimate: Estimate) -> str:
    """Return an estimate as a sentence."""
    text = f"{estimate.rows} rows in {estimate.provider_batches} provider batch(es)"
    if estimate.expected_usd is None:
        return f"{text}, at a price that is not known"
    text += f" for about ${estimate.expected_usd:.4f}"
    if estimate.high_usd is not None:
        text += f", at most ${estimate.high_usd:.4f}"
    if estimate.realtime_usd is not None:
        text += f"; in real time about ${estimate.realtime_usd:.4f}"
    return text


def observations(
    key: dg.AssetKey, partitions: Sequence[str], metadata: dict[str, Any]
) -> Iterator[dg.AssetObservation]:
    """Yield observations of some partitions, or of an asset without partitions.

    An observation costs milliseconds and is kept for ever. Of more than ten partitions there is
    one, at the asset as a whole, which names them.
    """
    if len(partitions) > MOST_EVENTS:
        shown = ", ".join(partitions[:MOST_EVENTS])
        text = f"{shown} and {len(partitions) - MOST_EVENTS} more"
        yield dg.AssetObservation(key, metadata={**metadata, c.META_OBSERVED_PARTITIONS: text})
        return
    for partition in partitions or ("",):
        yield dg.AssetObservation(key, partition=partition or None, metadata=metadata)


def observed_partition(partitions: Sequence[str]) -> str | None:
    """Return the first partition that ``observations`` observes; None if it observes the asset."""
    if not partitions or len(partitions) > MOST_EVENTS:
        return None
    return partitions[0] or None


def verdict_text(totals: PartitionTotals, max_failure_rate: float) -> str:
    """Return why a partition does not materialize, with its most frequent error codes."""
    top = totals.error_codes.most_common(_SHOWN_ERROR_CODES)
    codes = ", ".join(f"{code} ({count})" for code, count in top)
    return (
        f"{totals.failed} of {totals.rows} rows failed ({totals.failure_rate:.1%}, at most "
        f"{max_failure_rate:.1%} may): {codes}"
    )


def table_schema(
    schema: pa.Schema, descriptions: Mapping[str, str] = MappingProxyType({})
) -> dg.TableSchema:
    """Return an Arrow schema as Dagster's table schema, with the fields' descriptions.

    Args:
        schema: The schema, whose fields may have an entry ``description`` in their metadata.
        descriptions: By name, those of fields that have none.
    """
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=column.name,
                type=str(column.type),
                description=_description(column) or descriptions.get(column.name),
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for column in schema
        ]
    )


def dollars(amount: float) -> float:
    """Return an amount rounded to a millionth of a cent."""
    return round(amount, 8)


def _cost_metadata(totals: PartitionTotals, price: Price | None) -> dict[str, Any]:
    cost_usd = totals.known_cost(price)
    if cost_usd is None or price is None:
        return {}
    saving_usd = totals.cost_usd * (price.realtime_factor - 1)
    return {c.META_COST_USD: cost_usd, c.META_SAVING_USD: dollars(saving_usd)}


def _usage_metadata(prefix: str, totals: PartitionTotals) -> dict[str, int]:
    return {
        f"{prefix}.{c.USAGE_CALLS}": totals.attempts,
        f"{prefix}.{c.USAGE_TOTAL_TOKENS}": totals.input_tokens + totals.output_tokens,
        f"{prefix}.{c.USAGE_PROMPT_TOKENS}": totals.input_tokens,
        f"{prefix}.{c.USAGE_COMPLETION_TOKENS}": totals.output_tokens,
    }


def _status(summary: RunSummary) -> str:
    if summary.status.is_terminal or summary.control_state == "run":
        return summary.status.value
    reason = f": {summary.control_reason}" if summary.control_reason else ""
    return f"{summary.status.value} ({summary.control_state.value}{reason})"


def _description(column: pa.Field) -> str | None:
    """Return the output model's descriptions of a column and of the fields inside it."""
    own = _said(column)
    inner = [f"- `{path}`: {text}" for path, text in _inner_descriptions(column.type, "")]
    return "\n".join([own or "", "", *inner]).strip() if inner else own


def _inner_descriptions(dtype: pa.DataType, prefix: str) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(dtype):
        for inner in dtype:
            text = _said(inner)
            if text:
                yield f"{prefix}{inner.name}", text
            yield from _inner_descriptions(inner.type, f"{prefix}{inner.name}.")
    elif pa.types.is_list(dtype):
        yield from _inner_descriptions(dtype.value_type, prefix)
    elif pa.types.is_map(dtype):
        yield from _inner_descriptions(dtype.item_type, prefix)


def _said(column: pa.Field) -> str | None:
    text = (column.metadata or {}).get(b"description")
    return text.decode() if text else None


def _cell(value: object, most_chars: int) -> str | int | float | bool | None:
    if value is None or isinstance(value, int | float | bool):
        return value
    is_nested = isinstance(value, dict | list)
    text = json.dumps(value, default=str, ensure_ascii=False) if is_nested else str(value)
    text = " ".join(text.replace("\\n", " ").split())  # line breaks make rows of a hand's breadth
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"
