"""A code location for an instance that executes failed Dagster runs again.

What feeds ``flaky`` fails the first time, and so does its report; ``strict`` takes no failed row.
"""

import os
from pathlib import Path

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import batch_asset
from tests.deployment.projects.parts import DAYS, answers_asset, definitions, rows_of
from tests.e2e.projects.answers_models import Triage

MARKS = Path(os.environ["MARKS"])


def fail_once(what: str) -> None:
    """Fail the first time, as whatever talks to other systems does."""
    mark = MARKS / what
    if not mark.exists():
        mark.touch()
        raise ConnectionError("the warehouse is being restarted")


@batch_asset(
    model="gpt-4.1-mini", output=Triage, partitions_def=DAYS, retries=RetryPolicy(delay_s=1)
)
def flaky_answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Rows that cannot be read at first, on one of the days."""
    if context.partition_key == "d1":
        fail_once("rows")
    return rows_of("flaky", context.partition_key)


@dg.asset(partitions_def=DAYS)
def flaky_report(context: dg.AssetExecutionContext, flaky_answers: pl.DataFrame) -> pl.DataFrame:
    """A report that cannot be made at first, on either day."""
    fail_once(f"report-{context.partition_key}")
    return flaky_answers.group_by("category").len()


retried = definitions(
    [flaky_answers, flaky_report, answers_asset("strict", max_failure_rate=0.0)],
    dg.in_process_executor,
)
