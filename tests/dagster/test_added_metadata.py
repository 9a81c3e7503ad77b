"""What the function of a batch asset says of what will be stored."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core import ConfigurationError
from batchor_dagster import batch_asset
from batchor_dagster.constants import TAG_PARTITION_RANGE_END, TAG_PARTITION_RANGE_START
from batchor_dagster.step.added_metadata import MAX_BYTES
from batchor_dagster.testing import row_function
from tests.dagster.world import DAYS, MODEL, World, failure, rows_of, while_waiting


def _said(world: World, day: str | None = None) -> dict[str, Any]:
    """The metadata of the newest materialization of ``answers``, or of one of its days."""
    key = dg.AssetKey("answers")
    records = world.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=key, asset_partitions=[day] if day else None), limit=1
    ).records
    (materialization,) = [record.asset_materialization for record in records]
    assert materialization is not None
    return {name: value.value for name, value in materialization.metadata.items()}


def _talkative(context: dg.AssetExecutionContext) -> pl.DataFrame:
    day = context.partition_key if context.has_partition_key else "all"
    context.add_output_metadata({"day": day, "seen": 3, "page": dg.MetadataValue.url("https://x")})
    context.add_asset_metadata({"seen": 4})
    return rows_of(day)


@pytest.mark.parametrize("day", [None, "d1"])
@pytest.mark.parametrize("wait", [False, True])
def test_what_the_function_says_is_shown_at_the_materialization(
    world: World, day: str | None, *, wait: bool
) -> None:
    """What a user adds to the context would be lost in silence, since a request stores nothing."""
    answers = batch_asset(
        model=MODEL, name="answers", partitions_def=DAYS if day else None, wait=wait
    )(_talkative)
    with while_waiting(world, world.provider_works):
        result = world.request(answers, partition=day)
    assert result.success, failure(result)
    world.finish(answers)

    said = _said(world, day)
    assert (said["day"], said["seen"], said["page"]) == (day or "all", 4, "https://x")
    assert said["batchor/rows"] == 3


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`:dagster.BetaWarning")
def test_each_partition_of_a_range_is_told_its_own(world: World) -> None:
    """A day would be shown with what was said of another one."""
    answers = batch_asset(
        model=MODEL,
        name="answers",
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )(_talkative)
    tags = {TAG_PARTITION_RANGE_START: "d0", TAG_PARTITION_RANGE_END: "d1"}
    result = world.request(answers, partition=None, tags=tags)
    assert result.success, failure(result)
    world.finish(answers)

    assert [_said(world, day)["day"] for day in ("d0", "d1")] == ["d0", "d1"]


def test_too_much_to_keep_is_said(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A database of waiters would grow by a log file for each request, or lose it in silence."""

    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        context.add_output_metadata({"log": "x" * MAX_BYTES})
        return rows_of("d0")

    asset = batch_asset(model=MODEL)(answers)
    assert world.request(asset, partition=None).success
    assert "too many to be kept until the asset is materialized" in capfd.readouterr().err
    world.finish(asset)
    assert "log" not in _said(world)


def test_rows_can_be_looked_at_without_a_run() -> None:
    """A unit test of the function would need a store, an account and a Dagster run."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def answers(context: dg.AssetExecutionContext, tickets: pl.DataFrame) -> pl.DataFrame:
        return tickets.filter(pl.lit(context.partition_key == "d1"))

    prefixed = answers.with_attributes(
        asset_key_replacements={answers.key: answers.key.with_prefix("mart")}
    )
    tickets = rows_of("d1")
    for asset in (answers, prefixed):
        context = dg.build_asset_context(partition_key="d1")
        assert row_function(asset)(context, tickets=tickets).equals(tickets)


def test_rows_of_other_assets_are_refused_in_words() -> None:
    """A test would call what is no function, and read an error of ours."""

    @dg.asset
    def plain() -> None: ...

    with pytest.raises(ConfigurationError, match="is no batch asset"):
        row_function(plain)
