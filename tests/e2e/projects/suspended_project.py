"""Another code location on the same store, whose holds are suspended runs."""

import os
from pathlib import Path

import dagster as dg
import polars as pl

from batchor_dagster import HoldKind, batch_asset, batchor_definitions
from tests.e2e.projects.local_resources import resources

DAYS = dg.StaticPartitionsDefinition(["suspended-0"])


@batch_asset(model="gpt-4.1-mini", partitions_def=DAYS)
def notes(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Free text, without an output model."""
    return pl.DataFrame({"prompt": [f"{context.partition_key} note {n}" for n in range(3)]})


defs = dg.Definitions.merge(
    batchor_definitions(
        [notes],
        resources=resources(Path(os.environ["ANSWERS_FOLDER"]), HoldKind.SUSPENDED),
        minimum_interval_seconds=3,
    ),
    dg.Definitions(executor=dg.in_process_executor),
)
