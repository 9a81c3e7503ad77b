"""Definitions that go, or come, while a batch is in flight; and batch runs that stand still."""

from datetime import datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.clock import SystemClock
from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import BatchorResource, batch_asset, build_batch_sensors
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.sensors import materialize_tick
from batchor_dagster.testing.resources import TimedBatchorResource
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.dagster.test_ranges import SINGLE_RUN, ask
from tests.dagster.world import DAYS, MODEL, World, answers_asset, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")


class Time:
    """What the tick takes for the time of day."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The time of day, which the test moves."""
    time = Time()
    monkeypatch.setattr(materialize_tick, "time", time)
    return time


@pytest.fixture
def patient(world: World) -> World:
    """A world whose missing definitions are taken to be gone after an hour."""
    world.resources["batchor"] = BatchorResource(
        state=str(world.folder / "state.sqlite3"), poll_s=0.001, gone_after_s=3600
    )
    return world


def small_asset() -> dg.AssetsDefinition:
    """Another batch asset."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def small(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    return small


def tick(world: World, time: Time, assets: list[Any], *, minutes: float = 1, times: int = 1) -> Any:
    """Let the materialize sensor tick, some minutes after the last time."""
    for _ in range(times):
        time.now += 60 * minutes
        data = world.tick(MATERIALIZE_SENSOR, assets)
    return data


WITHOUT = {
    "asset": [small_asset()],
    "partition": [answers_asset(partitions_def=dg.StaticPartitionsDefinition(["other"]))],
    "partitions": [answers_asset(partitions_def=None)],
}


@pytest.mark.parametrize("what", WITHOUT)
def test_rollback_cancels_nothing(patient: World, time: Time, what: str) -> None:
    """A batch that was paid for would be cancelled by a deployment that is taken back."""
    answers = answers_asset()
    patient.request(answers)
    data = tick(patient, time, WITHOUT[what], times=30)
    assert patient.waiters[0].state is WaiterState.OPEN
    assert what != "asset" or "'answers' is not defined now" in data.skip_message
    tick(patient, time, [answers])
    tick(patient, time, WITHOUT[what], times=50)
    assert patient.waiters[0].state is WaiterState.OPEN
    patient.finish(answers)
    assert patient.materialized() == ["d0"]


@pytest.mark.parametrize("what", WITHOUT)
def test_what_stays_away_is_gone(patient: World, time: Time, what: str) -> None:
    """A batch of an asset that was removed for good would go on for ever."""
    patient.request(answers_asset())
    tick(patient, time, WITHOUT[what], times=62)
    (waiter,) = patient.waiters
    assert waiter.state is WaiterState.CANCELLED
    assert "not defined any more" in str(waiter.reason)


def test_a_sensor_that_was_off_has_seen_nothing(patient: World, time: Time) -> None:
    """What was seen once, before a weekend without sensors, would count as seen for days."""
    patient.request(answers_asset())
    tick(patient, time, [small_asset()])
    tick(patient, time, [small_asset()], minutes=60 * 48)
    assert patient.waiters[0].state is WaiterState.OPEN


def test_asset_that_moved_to_another_repository(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sensors that it has left would cancel what is waited for at its new place."""
    monkeypatch.setattr(materialize_tick, "label_of_sensor", lambda _: "old@location")
    answers, small = answers_asset(), small_asset()
    world.request(answers)
    world.request(answers, partition="d1")
    for waiter, label in zip(world.waiters, ("old@location", "new@location"), strict=True):
        world.store.update_waiter(waiter, payload={**waiter.payload, "repository": label})
    for _ in range(2):
        world.tick(MATERIALIZE_SENSOR, [small])
    assert [w.state for w in world.waiters] == [WaiterState.CANCELLED, WaiterState.OPEN]


def test_listed_assets_only(world: World) -> None:
    """Sensors of some assets would cancel the batches of all others."""
    answers, small = answers_asset(), small_asset()
    definitions = dg.Definitions(
        assets=[answers, small],
        sensors=build_batch_sensors([small]),
        resources=world.resources,
    )
    world.request(answers)
    world.request(small)
    world.finish(definitions)
    states = {waiter.asset: waiter.state for waiter in world.waiters}
    assert states == {"answers": WaiterState.OPEN, "small": WaiterState.SERVED}
    assert "cancelled" not in world.batches


def test_partitions_reordered_after_they_were_cut(world: World) -> None:
    """A range would be refused three times, and nothing of it would be stored."""
    keys = ["a", "b", "c", "d"]

    def asset() -> dg.AssetsDefinition:
        definition = dg.StaticPartitionsDefinition(list(keys))
        return answers_asset(partitions_def=definition, backfill_policy=SINGLE_RUN)

    ask(world, asset(), "a", "d")
    world.drive(asset())
    world.materialize_tick(asset())
    keys[:] = ["d", "new", "c", "a", "b"]
    assert all(result.success for result in world.finish(asset()))
    assert sorted(map(str, world.materialized())) == ["a", "b", "c", "d"]


def test_partitions_reordered_while_their_run_is_queued(world: World) -> None:
    """The Dagster run of a range would fail, and nothing of it would be stored."""
    keys = ["a", "b", "c"]

    def asset() -> dg.AssetsDefinition:
        definition = dg.StaticPartitionsDefinition(list(keys))
        return answers_asset(partitions_def=definition, backfill_policy=SINGLE_RUN)

    ask(world, asset(), "a", "c")
    world.drive(asset())
    (queued,) = world.materialize_tick(asset())
    keys[:] = ["a", "x", "c", "b"]
    world.launch(queued, asset())
    world.finish(asset())
    assert sorted(map(str, world.materialized())) == ["a", "b", "c"]


def test_no_key_space_is_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick over a large definition would take longer than its time, whatever waits."""
    days = dg.DailyPartitionsDefinition("2020-01-01", end_date="2026-01-01")
    definition = dg.MultiPartitionsDefinition(
        {"day": days, "region": dg.StaticPartitionsDefinition(["a", "b", "c"])}
    )
    partitions = DefinedPartitions(world.instance)
    for kind in (dg.MultiPartitionsDefinition, dg.TimeWindowPartitionsDefinition):
        monkeypatch.setattr(kind, "get_partition_keys", None)
    assert partitions.has(definition, "2021-01-01|a")
    assert not partitions.has(definition, "2019-01-01|a")
    assert partitions.follows(definition, "2021-01-01|a", "2021-01-01|b")
    assert not partitions.follows(definition, "2021-01-01|c", "2021-01-02|a")
    assert partitions.follows(days, "2020-12-31", "2021-01-01")
    assert not partitions.follows(days, "2020-12-31", "2021-01-02")


@pytest.mark.parametrize("is_paused", [True, False])
def test_what_stands_still_ends_as_a_failure(world: World, time: Time, is_paused: bool) -> None:
    """A backfill would be in progress for ever, and nobody would know why."""
    answers = answers_asset(max_wait_hours=5)
    world.request(answers)
    if is_paused:
        world.store.set_control(world.run.run_id, RunControlState.PAUSE, "insufficient quota")

    class Later(SystemClock):
        def now(self) -> datetime:
            return world.run.updated_at + timedelta(hours=5, minutes=1)

    later = TimedBatchorResource.of(world.resources["batchor"], Later())
    world.resources["batchor"] = dg.ResourceDefinition.hardcoded_resource(later)
    tick(world, time, [answers], times=60)
    assert (
        world.waiters[0].state is WaiterState.OPEN
    )  # the sensors have been on for an hour at most
    data = tick(world, time, [answers])
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "has not moved for 5 hours" in str(waiter.reason)
    assert ("insufficient quota" in str(waiter.reason)) == is_paused
    (check,) = [e for e in data.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    assert (check.passed, check.severity, check.partition) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        "d0",
    )
    world.tick(ADVANCE_SENSOR, [answers])
    assert world.run.control is RunControlState.CANCEL
