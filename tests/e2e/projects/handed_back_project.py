"""A batch asset with a job of its own, and descendants of which one goes while batches work.

``ANSWERS_FOLDER`` is where state, artifacts and outputs are kept, and whether there is a file
``removed``; the provider is found by the variables that OpenAI's SDK knows.
"""

import os
from pathlib import Path

import dagster as dg
import polars as pl

from batchor_dagster import batch_asset, batchor_definitions
from tests.e2e.projects.local_resources import resources

FOLDER = Path(os.environ["ANSWERS_FOLDER"])
DAYS = dg.StaticPartitionsDefinition(["job", "backfill", "paused", "cancelled", "shell"])
ROWS = 3


class Threshold(dg.Config):
    """What cannot be left out of a launch."""

    threshold: float


@batch_asset(model="gpt-4.1-mini", partitions_def=DAYS)
def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Some questions a day."""
    return pl.DataFrame({"prompt": [f"{context.partition_key} {n};" for n in range(ROWS)]})


@dg.asset(partitions_def=DAYS)
def judged(answers: pl.DataFrame, config: Threshold) -> pl.DataFrame:
    """Need configuration."""
    return answers.select(threshold=pl.lit(config.threshold))


@dg.asset(partitions_def=DAYS)
def kept(answers: pl.DataFrame) -> pl.DataFrame:
    """Stay when another one goes."""
    return answers


@dg.asset(partitions_def=DAYS)
def removed(answers: pl.DataFrame) -> pl.DataFrame:
    """Go while its batch asset waits."""
    return answers


@dg.success_hook
def told(context: dg.HookContext) -> None:
    """Note which steps of which Dagster runs have succeeded."""
    with (FOLDER / "told").open("a") as file:
        file.write(f"{context.run_id} {context.job_name} {context.op.name}\n")


nightly = dg.define_asset_job(
    "nightly", [answers, judged], hooks={told}, tags={"dagster/max_runtime": "600"}
)
defs = batchor_definitions(
    [answers, judged, kept, *([] if (FOLDER / "removed").exists() else [removed])],
    jobs=[nightly],
    resources=resources(FOLDER),
    minimum_interval_seconds=3,
    executor=dg.in_process_executor,
)
