"""Whether a request can tell that no sensor will carry it on."""

import time
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
)

from batchor_core.clock import Clock
from batchor_core.store.sql import SQLiteStorage
from batchor_core.testing.clock import ManualClock
from batchor_dagster.waiting.sensor_status import (
    ADVANCE_SENSOR,
    MATERIALIZE_SENSOR,
    SensorState,
    SensorStatus,
    status_of_sensors,
)
from tests.dagster.world import World, answers_asset

BOTH = (ADVANCE_SENSOR, MATERIALIZE_SENSOR)


@pytest.fixture
def clock() -> ManualClock:
    """Time stands still unless a test moves it."""
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> SQLiteStorage:
    """An empty store."""
    return SQLiteStorage(tmp_path / "beats.sqlite3", clock=clock)


def test_ticks_are_signs_of_life(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A request would warn for ever, or never, of sensors that are missing."""
    world.has_sensors = False
    answers = answers_asset()
    assert status(world, world.store, datetime.now(UTC)).state is SensorState.NEVER
    world.request(answers)
    assert f"{', '.join(BOTH)} have never ticked" in capfd.readouterr().err

    world.advance_tick(answers)
    half = status(world, world.store, datetime.now(UTC))
    assert (half.state, half.sensors) == (SensorState.NEVER, (MATERIALIZE_SENSOR,))
    world.materialize_tick(answers)
    assert status(world, world.store, datetime.now(UTC)) == SensorStatus(state=SensorState.WELL)
    world.request(answers, partition="d1")
    assert "ticked" not in capfd.readouterr().err


def test_tick_that_fails_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sensors that fail with each tick would pass for sensors that serve."""
    answers = answers_asset()

    def broken(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("batchor_core.BatchRunner.poll_due", broken)
    with pytest.raises(OSError, match="no space left"):
        world.advance_tick(answers)
    assert world.store.heartbeats("default") == {}


@pytest.mark.parametrize(("every_s", "patience_s"), [(30, 300), (600, 3000)])
def test_silence(
    world: World, store: SQLiteStorage, clock: ManualClock, every_s: float, patience_s: float
) -> None:
    """A daemon that is gone would not be noticed, or slow sensors be taken for dead ones."""
    for sensor in BOTH:
        store.note_heartbeat("default", sensor, every_s)
    last = clock.now()
    clock.advance(patience_s)
    assert status(world, store, clock).state is SensorState.WELL
    clock.advance(1)
    silent = status(world, store, clock)
    assert (silent.state, silent.sensors, silent.last_tick) == (SensorState.SILENT, BOTH, last)
    assert f"have not ticked since {last:%Y-%m-%d %H:%M} UTC" in silent.text
    store.note_heartbeat("default", ADVANCE_SENSOR, every_s)
    assert status(world, store, clock).sensors == (MATERIALIZE_SENSOR,)


def test_other_namespaces_do_not_count(
    world: World, store: SQLiteStorage, clock: ManualClock
) -> None:
    """A request from the command line would believe that the code location's sensors serve it."""
    for sensor in BOTH:
        store.note_heartbeat("location", sensor, 30)
    assert status(world, store, clock).state is SensorState.NEVER
    assert "for the namespace 'default'" in status(world, store, clock).text


def test_switched_off(world: World, store: SQLiteStorage, clock: ManualClock) -> None:
    """A sensor that was just switched off would pass for one that serves."""
    for sensor in BOTH:
        store.note_heartbeat("default", sensor, 30)
    _add_state(world.instance, MATERIALIZE_SENSOR, "location", InstigatorStatus.STOPPED, 10)
    assert status(world, store, clock, "elsewhere").state is SensorState.WELL
    stopped = status(world, store, clock, "location")
    assert (stopped.state, stopped.sensors) == (SensorState.STOPPED, (MATERIALIZE_SENSOR,))
    assert stopped.text == f"sensor(s) {MATERIALIZE_SENSOR} are switched off: switch them on"


@pytest.mark.parametrize(("age_s", "expected"), [(10, SensorState.WELL), (400, SensorState.NEVER)])
def test_just_started(
    world: World, store: SQLiteStorage, clock: ManualClock, age_s: float, expected: SensorState
) -> None:
    """The first request after a deployment would be told, or refused, as if nobody served it."""
    for sensor in BOTH:
        _add_state(world.instance, sensor, "location", InstigatorStatus.DECLARED_IN_CODE, age_s)
    assert status(world, store, clock, "location").state is expected
    assert status(world, store, clock, "elsewhere").state is SensorState.NEVER
    assert status(world, store, clock).state is SensorState.NEVER  # as from the command line


def status(
    world: World, store: SQLiteStorage, now: Clock | datetime, location: str | None = None
) -> SensorStatus:
    """Ask for the namespace of the tests' code location."""
    at = now if isinstance(now, datetime) else now.now()
    return status_of_sensors(world.instance, location, store, "default", at)


def _add_state(
    instance: dg.DagsterInstance,
    sensor: str,
    location: str,
    status: InstigatorStatus,
    started_ago_s: float,
) -> None:
    """Let Dagster know of a sensor, as its daemon or a user's click does."""
    repository = RemoteRepositoryOrigin(
        code_location_origin=RegisteredCodeLocationOrigin(location), repository_name="repo"
    )
    origin = RemoteInstigatorOrigin(repository_origin=repository, instigator_name=sensor)
    data = SensorInstigatorData(last_sensor_start_timestamp=time.time() - started_ago_s)
    instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, status, data))
