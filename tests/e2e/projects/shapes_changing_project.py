"""Assets whose declaration comes from a file, so that a test can change it while batches work.

``SHAPES_FOLDER`` is where state, artifacts, outputs and ``settings.json`` are kept; the provider is
found by the variables that OpenAI's SDK knows. Every prompt names its asset, partition and row.
"""

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import RetryPolicy
from batchor_dagster import batch_asset, batchor_definitions
from tests.e2e.projects.local_resources import resources

FOLDER = Path(os.environ["SHAPES_FOLDER"])
SETTINGS: dict[str, Any] = json.loads((FOLDER / "settings.json").read_text())
MODEL = "gpt-4.1-mini"
ROWS = 3
DAYS = dg.StaticPartitionsDefinition([f"d{n}" for n in range(10)])
FILES = dg.DynamicPartitionsDefinition(name="files")
RETRIES = RetryPolicy(delay_s=0)


def rows_of(name: str, key: str) -> pl.DataFrame:
    """Return prompts that say where they come from."""
    return pl.DataFrame({"prompt": [f"{name} of {key} row {n};" for n in range(ROWS)]})


@batch_asset(model=SETTINGS["model"], system_prompt=SETTINGS["system_prompt"], partitions_def=DAYS)
def changing(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be declared otherwise while its batch works."""
    return rows_of("changing", context.partition_key)


@batch_asset(
    model=MODEL,
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    keep={"prompt": pl.String},
)
def changing_range(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Have one partition out of a range whose rows change."""
    key = context.partition_key
    word = SETTINGS["words"].get(key, "first")
    return rows_of(f"{word} range", key)


@batch_asset(model=MODEL, partitions_def=DAYS)
def removed(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be removed while its batch works."""
    return rows_of("removed", context.partition_key)


@batch_asset(model=MODEL, partitions_def=FILES, backfill_policy=dg.BackfillPolicy.single_run())
def files(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Lose partitions while their batch works."""
    return rows_of("files", context.partition_key)


@batch_asset(
    model=MODEL,
    partitions_def=DAYS,
    retries=RETRIES,
    backfill_policy=dg.BackfillPolicy.single_run(),
    keep={"prompt": pl.String},
    id_column="id",
    max_failure_rate=0.5,
)
def configured(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be launched with a configuration."""
    rows = rows_of("configured", context.partition_key)
    return rows.with_columns(id=pl.int_range(pl.len()).cast(pl.String))


@dg.asset(partitions_def=DAYS)
def source(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Lie upstream of an automated batch asset."""
    return rows_of("automated", context.partition_key)


@batch_asset(
    model=MODEL,
    partitions_def=DAYS,
    automation_condition=dg.AutomationCondition.eager(),
)
def automated(source: pl.DataFrame) -> pl.DataFrame:
    """Be launched when its upstream is there."""
    return source


@dg.asset(partitions_def=DAYS, automation_condition=dg.AutomationCondition.eager())
def follower(automated: pl.DataFrame) -> pl.DataFrame:
    """Be launched when the answers are there."""
    return automated


@batch_asset(model=MODEL, partitions_def=DAYS)
def asked(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Be launched by a sensor of the user's."""
    return rows_of("asked", context.partition_key)


@dg.asset(partitions_def=DAYS, automation_condition=dg.AutomationCondition.eager())
def watcher(asked: pl.DataFrame) -> pl.DataFrame:
    """Be launched when the answers are there; alone in being automated."""
    return asked


@dg.sensor(
    asset_selection=[dg.AssetKey("asked")],
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def users_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Ask for a partition when a file of its name appears."""
    wanted = FOLDER / "wanted"
    if not wanted.exists():
        return dg.SkipReason("nothing is wanted")
    keys = wanted.read_text().split()
    return dg.SensorResult(
        run_requests=[dg.RunRequest(run_key=f"wanted:{key}", partition_key=key) for key in keys]
    )


everything: list[Any] = [
    changing,
    changing_range,
    files,
    configured,
    source,
    automated,
    follower,
    asked,
    watcher,
    *([removed] if SETTINGS["has_removed"] else []),
]
defs = dg.Definitions.merge(
    batchor_definitions(
        everything,
        resources=resources(FOLDER, lease_s=30, settle_s=2, gone_after_s=10),
        minimum_interval_seconds=3,
    ),
    dg.Definitions(
        executor=dg.in_process_executor,
        sensors=[
            users_sensor,
            dg.AutomationConditionSensorDefinition(
                "automation",
                target=dg.AssetSelection.assets(automated, follower, watcher),
                minimum_interval_seconds=3,
                default_status=dg.DefaultSensorStatus.RUNNING,
            ),
        ],
    ),
)
