"""What the code locations of the deployment tests are made of."""

from typing import Any

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import (
    BatchorResource,
    BatchParquetIOManager,
    OpenAIBatchResource,
    batch_asset,
    batchor_definitions,
)
from tests.e2e.projects.answers_models import Triage

DAYS = dg.StaticPartitionsDefinition(["d0", "d1"])
ROWS = 3


def rows_of(place: str, day: str) -> pl.DataFrame:
    """Return prompts that nobody else asks."""
    return pl.DataFrame({"prompt": [f"Judge {place} {day} ticket {n};" for n in range(ROWS)]})


def resources() -> dict[str, Any]:
    """Return what all processes reach by the same variables, on whatever machine they are."""
    return {
        "batchor": BatchorResource(
            state=dg.EnvVar("BATCHOR_STATE"), artifacts=dg.EnvVar("BATCHOR_ARTIFACTS"), poll_s=2
        ),
        "openai": OpenAIBatchResource(
            api_key=dg.EnvVar("OPENAI_API_KEY"), base_url=dg.EnvVar("OPENAI_BASE_URL")
        ),
        "io_manager": BatchParquetIOManager(base_path=dg.EnvVar("BATCHOR_OUT")),
    }


def answers_asset(place: str, **options: Any) -> dg.AssetsDefinition:
    """Return the batch asset ``<place>_answers``."""

    @batch_asset(
        name=f"{place}_answers",
        **{
            "model": "gpt-4.1-mini",
            "output": Triage,
            "partitions_def": DAYS,
            "retries": RetryPolicy(delay_s=1),
            **options,
        },
    )
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(place, context.partition_key)

    return answers


def report_asset(place: str, **options: Any) -> dg.AssetsDefinition:
    """Return ``<place>_report``, which reads the answers of its partition."""

    @dg.asset(
        name=f"{place}_report",
        ins={"answers": dg.AssetIn(f"{place}_answers")},
        partitions_def=DAYS,
        **options,
    )
    def report(answers: pl.DataFrame) -> pl.DataFrame:
        return answers.group_by("category").len()

    return report


def definitions(
    assets: list[dg.AssetsDefinition], executor: dg.ExecutorDefinition
) -> dg.Definitions:
    """Return a code location, whose sensors tick often."""
    return dg.Definitions.merge(
        batchor_definitions(assets, resources=resources(), minimum_interval_seconds=3),
        dg.Definitions(executor=executor),
    )
