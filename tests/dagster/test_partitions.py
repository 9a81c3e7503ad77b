"""Partition keys of every kind, and those that are gone."""

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from batchor_core.ids import path_segment
from batchor_core.model.states import WaiterState
from batchor_dagster import batch_asset
from tests.dagster.world import MODEL, World, rows_of


def _answers(partitions_def: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    @batch_asset(model=MODEL, partitions_def=partitions_def)
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(str(context.partition_key))

    return answers


@pytest.mark.filterwarnings("ignore:Non-compliant tag keys:DeprecationWarning")  # Dagster's own
def test_multi_dimensional_partition_materializes(world: World) -> None:
    """Assets by day and region could not be batch assets."""
    dimensions = {
        "region": dg.StaticPartitionsDefinition(["eu", "us"]),
        "day": dg.DailyPartitionsDefinition("2025-01-01"),
    }
    answers = _answers(dg.MultiPartitionsDefinition(dimensions))
    key = dg.MultiPartitionKey({"region": "eu", "day": "2025-01-02"})
    assert world.request(answers, partition=key).success
    world.finish(answers)

    assert world.materialized() == [str(key)]


def test_any_text_is_a_partition_key(world: World) -> None:
    """A key with a slash or a percent sign would end up in another's place."""
    keys = ["a/b", "50%", "..", "ü b"]
    answers = _answers(dg.StaticPartitionsDefinition(keys))
    for key in keys:
        assert world.request(answers, partition=key).success
    world.finish(answers)

    assert sorted(filter(None, world.materialized())) == sorted(keys)
    for key in keys:
        path = Path(world.folder / "out" / "answers" / f"{path_segment(key)}.parquet")
        assert key in pl.read_parquet(path)["output_text"][0]


def test_removed_partition_ends_its_waiters(world: World) -> None:
    """One deleted partition would make every tick fail, and stop all others with it."""
    answers = _answers(dg.DynamicPartitionsDefinition(name="files"))
    world.instance.add_dynamic_partitions("files", ["kept", "deleted"])
    world.request(answers, partition="kept")
    world.request(answers, partition="deleted")
    world.instance.delete_dynamic_partition("files", "deleted")
    world.finish(answers)

    assert world.materialized() == ["kept"]
    ended = {waiter.partitions[0]: waiter for waiter in world.waiters}
    assert ended["deleted"].state is WaiterState.CANCELLED
    assert "'deleted'" in (ended["deleted"].reason or "")
    assert ended["kept"].state is WaiterState.SERVED


def test_asset_that_lost_its_partitions_ends_its_waiters(world: World) -> None:
    """A renamed partitions definition would make every tick fail."""
    before = _answers(dg.StaticPartitionsDefinition(["a", "b"]))
    world.request(before, partition="a")
    after = _answers(dg.StaticPartitionsDefinition(["c"]))
    world.finish(after)

    assert [waiter.state for waiter in world.waiters] == [WaiterState.CANCELLED]
    assert world.batches == ["cancelled"]
