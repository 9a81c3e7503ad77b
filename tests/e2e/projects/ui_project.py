"""A project whose answers are not all good: what the UI is given to show of them.

``ANSWERS_FOLDER`` is where state, artifacts and outputs are kept; the provider is found by the
variables that OpenAI's SDK knows.
"""

import os
from pathlib import Path

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import BatchChecks, CheckThreshold, batch_asset, batchor_definitions
from tests.e2e.projects.answers_models import Triage
from tests.e2e.projects.local_resources import resources

FOLDER = Path(os.environ["ANSWERS_FOLDER"])
DAYS = dg.StaticPartitionsDefinition(["good", "bad", "later"])
TICKETS = 4


@dg.asset(partitions_def=DAYS)
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Some tickets a day."""
    day = context.partition_key
    return pl.DataFrame(
        {
            "ticket_id": [f"{day}/{n}" for n in range(TICKETS)],
            "text": [f"{day} ticket {n} about billing" for n in range(TICKETS)],
        }
    )


@batch_asset(
    model="gpt-4.1-mini",
    output=Triage,
    prompt_template="Judge this: {text};",
    id_column="ticket_id",
    keep={"text": pl.String},
    retries=RetryPolicy(max_attempts=1),
    budget_usd=1,
    max_failure_rate=0.5,
    checks=BatchChecks(
        rows_answered=CheckThreshold(warn_above=1),
        failure_rate=CheckThreshold(warn_above=0.1, error_above=0.2),
    ),
    partitions_def=DAYS,
)
def answers(tickets: pl.DataFrame) -> pl.DataFrame:
    """What the model says of each ticket."""
    return tickets


@dg.asset_check(asset=answers)
def users_own() -> dg.AssetCheckResult:
    """Stand for whatever users check beside what comes with the asset."""
    return dg.AssetCheckResult(passed=True)


@batch_asset(
    model="gpt-4.1-mini",
    max_failure_rate=0.5,
    checks=BatchChecks(failure_rate=CheckThreshold(error_above=0.2, blocking=True)),
)
def notes() -> pl.DataFrame:
    """Text answers, without partitions, one of them bad."""
    return pl.DataFrame({"prompt": [f"bad ticket {n} of no day" for n in range(TICKETS)]})


@dg.asset
def digest(notes: pl.DataFrame) -> pl.DataFrame:
    """Lie downstream of what a check blocks."""
    return notes


defs = dg.Definitions.merge(
    batchor_definitions(
        [tickets, answers, notes, digest], resources=resources(FOLDER), minimum_interval_seconds=3
    ),
    dg.Definitions(executor=dg.in_process_executor, asset_checks=[users_own]),
)
