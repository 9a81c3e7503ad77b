"""What is refused before a row is read, let alone paid."""

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_dagster import BatchorResource, batch_asset
from batchor_dagster.constants import (
    TAG_PARTITION,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
)
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.dagster.world import DAYS, MODEL, World, answers_asset, events, failure, while_waiting

START, END = TAG_PARTITION_RANGE_START, TAG_PARTITION_RANGE_END
GRID = dg.MultiPartitionsDefinition(
    {"day": DAYS, "shop": dg.StaticPartitionsDefinition(["a", "b"])}
)


def reading_asset(
    called: list[str], partitions_def: dg.PartitionsDefinition[Any] | None = DAYS, **options: Any
) -> dg.AssetsDefinition:
    """Return an asset that notes when its function is called."""

    @batch_asset(model=MODEL, partitions_def=partitions_def, **options)
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        called.append(context.partition_key if context.has_partition_key else "")
        return pl.DataFrame({"prompt": ["Judge it;"]})

    return answers


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({}, "names none: launch it with a partition"),
        ({START: "d4", END: "d2"}, "no partition from 'd4' to 'd2'"),
        ({TAG_PARTITION: "gone"}, "no partition 'gone'"),
    ],
)
@pytest.mark.parametrize("policy", [None, dg.BackfillPolicy.single_run()])
@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_partitions_that_are_not_there_are_refused(
    world: World, tags: Mapping[str, str], says: str, policy: dg.BackfillPolicy | None
) -> None:
    """Rows would be paid for a partition that nobody can materialize."""
    called: list[str] = []
    answers = reading_asset(called, backfill_policy=policy)
    result = world.request(answers, partition=None, tags=tags)
    assert says in failure(result)
    assert "asset 'answers'" in failure(result)
    assert (called, world.batches, world.store.list_runs()) == ([], [], [])


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_range_that_is_reversed_in_one_dimension_is_refused(world: World) -> None:
    """A rectangle without an inside would be paid as a partition without a name."""
    called: list[str] = []
    answers = reading_asset(called, GRID, backfill_policy=dg.BackfillPolicy.single_run())
    result = world.request(answers, partition=None, tags={START: "d1|b", END: "d2|a"})
    assert "in each dimension" in failure(result)
    assert called == []
    assert world.request(answers, partition=None, tags={START: "d1|a", END: "d2|b"}).success
    assert called == ["d1|a", "d1|b", "d2|a", "d2|b"]


def test_dynamic_partition_that_was_removed_is_refused(world: World) -> None:
    """Rows would be sent for a partition that was removed between a click and its launch."""
    called: list[str] = []
    answers = reading_asset(called, dg.DynamicPartitionsDefinition(name="files"))
    world.instance.add_dynamic_partitions("files", ["f1"])
    assert world.request(answers, partition=None, tags={TAG_PARTITION: "f1"}).success
    world.instance.delete_dynamic_partition("files", "f1")
    result = world.request(answers, partition=None, tags={TAG_PARTITION: "f1"})
    assert "no partition 'f1'" in failure(result)
    assert called == ["f1"]


def test_dry_run_without_a_partition_is_refused(world: World) -> None:
    """The cost of nothing would be told."""
    called: list[str] = []
    config = {"ops": {"answers": {"config": {"dry_run": True}}}}
    result = world.request(reading_asset(called), partition=None, run_config=config)
    assert "names none" in failure(result)
    assert called == []


def test_unpartitioned_assets_go_along_with_partitioned_ones(world: World) -> None:
    """A selection of both kinds would be refused, or the one asked for the other's partition."""

    @batch_asset(model=MODEL)
    def whole() -> pl.DataFrame:
        return pl.DataFrame({"prompt": ["Judge all;"]})

    assets = [answers_asset(), whole]
    result = world.request(*assets)
    assert result.success
    assert {waiter.asset: waiter.partitions for waiter in world.waiters} == {
        "answers": ("d0",),
        "whole": (),
    }
    world.finish(*assets)
    assert (world.materialized(), world.materialized("whole")) == (["d0"], [None])


def launch_outside(world: World, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
    """Materialize assets as a script does, or `dagster asset materialize`."""
    return dg.materialize(
        list(assets),
        partition_key="d0",
        instance=world.instance,
        resources=world.resources,
        raise_on_error=False,
        **options,
    )


def test_request_that_no_sensor_serves_is_refused(world: World) -> None:
    """What a script asks for would be paid, and never be collected."""
    called: list[str] = []
    result = launch_outside(world, reading_asset(called, key_prefix="team"))
    assert not result.success
    said = failure(result)
    assert "nothing was sent: asset 'team/answers'" in said
    config = json.dumps({"ops": {"team__answers": {"config": {"wait": True}}}})
    assert f"--config-json '{config}'" in said
    assert (called, world.batches, world.store.list_runs()) == ([], [], [])
    # What it says is what works.
    answers = reading_asset(called, key_prefix="team")
    with while_waiting(world, world.provider_works):
        result = launch_outside(world, answers, run_config=json.loads(config))
    assert (result.success, called) == (True, ["d0"])


def test_waiting_asset_needs_no_sensor(world: World) -> None:
    """A script could not materialize a batch asset at all."""

    @dg.asset(partitions_def=DAYS)
    def report(answers: pl.DataFrame) -> pl.DataFrame:
        return answers.select("output_text")

    with while_waiting(world, world.provider_works):
        result = launch_outside(world, answers_asset(wait=True, output=None), report)
    assert result.success, failure(result)
    assert events(result, "report") == ["ASSET_MATERIALIZATION"]


def test_dry_run_needs_no_sensor(world: World) -> None:
    """The cost could be told in the UI only."""
    config = {"ops": {"answers": {"config": {"dry_run": True}}}}
    assert launch_outside(world, answers_asset(), run_config=config).success


@pytest.mark.parametrize(
    ("namespace", "served", "is_served"),
    [(None, "default", False), ("shop", "shop", True), ("shop", "default", False)],
)
def test_namespace_that_sensors_may_serve_is_taken(
    world: World, namespace: str | None, served: str, is_served: bool
) -> None:
    """Who names the namespace of the location's sensors would be kept from using them."""
    for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
        world.store.note_heartbeat(served, sensor, 30)
    world.resources["batchor"] = BatchorResource(
        state=str(world.folder / "state.sqlite3"), namespace=namespace
    )
    assert launch_outside(world, answers_asset()).success is is_served
    assert bool(world.batches) is is_served
