"""A project as a user would write it: tickets, their answers, a digest of each day, an overview.

``ANSWERS_FOLDER`` is where state, artifacts and outputs are kept; the provider is found by the
variables that OpenAI's SDK knows.
"""

import os
from pathlib import Path

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import batch_asset, batchor_definitions
from tests.e2e.projects.answers_models import Triage
from tests.e2e.projects.local_resources import resources

FOLDER = Path(os.environ["ANSWERS_FOLDER"])
GROUPS = {"straight": 3, "flaky": 2, "stopped": 2, "terminated": 2, "orphaned": 1}
DAYS = dg.StaticPartitionsDefinition(
    [f"{group}-{n}" for group, count in GROUPS.items() for n in range(count)]
)
TICKETS = 6


@dg.asset(partitions_def=DAYS)
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Six tickets a day, in an order that no sorting gives."""
    day = context.partition_key
    numbers = [(5 * n + 2) % TICKETS for n in range(TICKETS)]
    return pl.DataFrame(
        {
            "ticket_id": [f"{day}/{n}" for n in numbers],
            "text": [f"{day} ticket {n} about billing" for n in numbers],
            "amount": [n / 2 for n in numbers],
        }
    )


@batch_asset(
    model="gpt-4.1-mini",
    output=Triage,
    prompt_template="Judge this: {text};",
    id_column="ticket_id",
    keep={"text": pl.String, "amount": pl.Float64},
    retries=RetryPolicy(delay_s=1),
    partitions_def=DAYS,
)
def answers(tickets: pl.DataFrame) -> pl.DataFrame:
    """What the model says of each ticket."""
    return tickets


@dg.asset(partitions_def=DAYS)
def digest(answers: pl.LazyFrame) -> pl.DataFrame:
    """How many tickets of each category the day had."""
    return answers.group_by("category").len().collect()


@dg.asset(ins={"digest": dg.AssetIn(metadata={"allow_missing_partitions": True})})
def overview(context: dg.AssetExecutionContext, digest: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Lie downstream of all days, so that the backfill itself has to launch it."""
    context.add_output_metadata({"days": sorted(digest)})
    return pl.concat(digest.values())


defs = dg.Definitions.merge(
    batchor_definitions(
        [tickets, answers, digest, overview],
        resources=resources(FOLDER),
        minimum_interval_seconds=3,
    ),
    dg.Definitions(executor=dg.in_process_executor),
)
