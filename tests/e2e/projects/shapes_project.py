"""Assets of many shapes: ranges, days, dynamic and multi-dimensional partitions, chains, none.

``SHAPES_FOLDER`` is where state, artifacts and outputs are kept; the provider is found by the
variables that OpenAI's SDK knows. Every prompt names its asset, its partition and its row.
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import BatchParquetIOManager, batch_asset, batchor_definitions
from tests.e2e.projects.local_resources import resources

FOLDER = Path(os.environ["SHAPES_FOLDER"])
MODEL = "gpt-4.1-mini"
ROWS = 2
GROUPS = {
    "range": 6,
    "both": 2,
    "lap": 6,
    "again": 1,
    "retry": 1,
    "halt": 2,
    "upload": 1,
    "create": 1,
    "chain": 1,
}
DAYS = dg.StaticPartitionsDefinition(
    [f"{group}-{n}" for group, count in GROUPS.items() for n in range(count)]
)
DATES = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-07")
GRID = dg.MultiPartitionsDefinition(
    {
        "date": dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-03"),
        "shop": dg.StaticPartitionsDefinition(["east", "north west"]),
    }
)
ODD = dg.DynamicPartitionsDefinition(name="odd_keys")
MANY = dg.StaticPartitionsDefinition([f"item-{n:03}" for n in range(200)])
SINGLE_RUN = dg.BackfillPolicy.single_run()
MULTI_RUN = dg.BackfillPolicy.multi_run(3)
RETRIES = RetryPolicy(delay_s=0)


def rows_of(name: str, context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Return prompts that say where they come from."""
    key = str(context.partition_key)
    return pl.DataFrame({"prompt": [f"{name} of {key} row {n};" for n in range(ROWS)]})


class FailsOnce(BatchParquetIOManager):
    """Cannot store a partition whose key begins with ``retry`` the first time."""

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Store it, the second time."""
        marker = FOLDER / "failed_once"
        key = context.partition_key if context.has_partition_key else ""
        if key.startswith("retry") and not marker.exists():
            marker.touch()
            raise OSError("the disk is full")
        super().handle_output(context, obj)


@dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
def tickets(context: dg.AssetExecutionContext) -> dict[str, pl.DataFrame]:
    """Lie upstream of a range: a frame for each partition."""
    return {
        key: pl.DataFrame({"prompt": [f"ranged of {key} row {n};" for n in range(ROWS)]})
        for key in context.partition_keys
    }


@batch_asset(
    model=MODEL,
    partitions_def=DAYS,
    backfill_policy=SINGLE_RUN,
    max_failure_rate=0.5,
    keep={"prompt": pl.String},
    retries=RETRIES,
)
def ranged(tickets: pl.DataFrame) -> pl.DataFrame:
    """Many partitions in one Dagster run."""
    return tickets


@dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
def report(
    context: dg.AssetExecutionContext, ranged: dict[str, pl.DataFrame]
) -> dict[str, pl.DataFrame]:
    """Lie downstream, in the same ranges."""
    assert set(ranged) == set(context.partition_keys)
    return ranged


@dg.asset(deps=[report])
def total() -> None:
    """Lie downstream of all partitions."""


@batch_asset(
    model=MODEL, partitions_def=DATES, backfill_policy=MULTI_RUN, keep={"prompt": pl.String}
)
def daily(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Three days in one Dagster run."""
    assert context.partition_time_window.start.strftime("%Y-%m-%d") == context.partition_key
    return rows_of("daily", context)


@dg.asset(partitions_def=DATES)
def daily_note(daily: pl.DataFrame) -> pl.DataFrame:
    """One day in each Dagster run."""
    return daily.select("prompt")


@batch_asset(model=MODEL, partitions_def=DAYS, max_failure_rate=0.5, retries=RETRIES)
def plain(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """One partition in each Dagster run."""
    return rows_of("plain", context)


@batch_asset(model=MODEL, partitions_def=DAYS, endpoint="chat")
def slow(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Ask another endpoint, which takes longer."""
    return rows_of("slow", context)


@batch_asset(model=MODEL, partitions_def=DAYS, backfill_policy=SINGLE_RUN)
def lap(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be asked for in ranges that overlap."""
    return rows_of("lap", context)


@batch_asset(model=MODEL, partitions_def=DAYS, io_manager_key="fails_once")
def stored(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be stored at the second try."""
    return rows_of("stored", context)


@batch_asset(
    model=MODEL, partitions_def=ODD, backfill_policy=SINGLE_RUN, keep={"prompt": pl.String}
)
def odd(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Have partition keys that are no file names."""
    return rows_of("odd", context)


@batch_asset(
    model=MODEL, partitions_def=GRID, backfill_policy=SINGLE_RUN, keep={"prompt": pl.String}
)
def grid(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Have two dimensions."""
    key = context.partition_key
    assert isinstance(key, dg.MultiPartitionKey) or "|" in key
    return rows_of("grid", context)


@batch_asset(model=MODEL, partitions_def=DAYS, keep={"prompt": pl.String})
def first(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Feed another batch asset."""
    return rows_of("first", context)


@batch_asset(model=MODEL, partitions_def=DAYS, keep={"prompt": pl.String})
def second(first: pl.DataFrame) -> pl.DataFrame:
    """Ask about the answers."""
    return first.select(prompt=pl.format("second: {}", "output_text"))


@batch_asset(
    model=MODEL,
    ins={"second": dg.AssetIn(metadata={"allow_missing_partitions": True})},
    keep={"prompt": pl.String},
)
def last(second: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Ask about all of them, without partitions."""
    frame = pl.concat(second.values())
    return frame.select(prompt=pl.format("last: {}", "output_text"))


@batch_asset(model=MODEL, partitions_def=MANY, backfill_policy=SINGLE_RUN)
def many(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Have two hundred small partitions."""
    return rows_of("many", context)


ASSETS: list[Any] = [
    tickets,
    ranged,
    report,
    total,
    daily,
    daily_note,
    plain,
    slow,
    lap,
    stored,
    odd,
    grid,
    first,
    second,
    last,
    many,
]
defs = dg.Definitions.merge(
    batchor_definitions(
        ASSETS,
        resources={
            **resources(FOLDER, lease_s=60, settle_s=2),
            "fails_once": FailsOnce(base_path=str(FOLDER / "out")),
        },
        minimum_interval_seconds=3,
    ),
    dg.Definitions(executor=dg.in_process_executor),
)
