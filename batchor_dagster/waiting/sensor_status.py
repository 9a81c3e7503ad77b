"""Tell whether the advance sensor and the materialize sensor are running."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dagster import DagsterInstance

from batchor_core.integration import Heartbeat, OrchestratorStore

ADVANCE_SENSOR = "batchor_advance_sensor"
MATERIALIZE_SENSOR = "batchor_materialize_sensor"

SILENT_SECONDS = 300.0
"""A sensor that has not ticked for this long is silent, unless its interval is longer."""

_MISSED_TICKS = 5


class SensorState(StrEnum):
    """How the sensors of a namespace are running, the best first."""

    WELL = "well"
    """Both have ticked lately, or a user has just started them."""
    SILENT = "silent"
    """One has stopped ticking: Dagster's daemon is down, or every tick fails."""
    NEVER = "never ticked"
    """One has never completed a tick for this namespace: it is missing, was never switched on, or
    serves another namespace or another store."""
    STOPPED = "stopped"
    """A user switched one off."""


@dataclass(frozen=True, kw_only=True)
class SensorStatus:
    """Whether the sensors of a namespace will advance and materialize what requests ask for.

    Attributes:
        state: The state of the worse of the two sensors.
        sensors: The sensors in that state; empty if it is ``WELL``.
        last_tick: The older of their last ticks; None if one never ticked.
        reason: What is wrong and what to do, as the rest of a sentence that begins with the
            sensors' names; empty if it is ``WELL``.
    """

    state: SensorState
    sensors: tuple[str, ...] = ()
    last_tick: datetime | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """Name the sensors and what is wrong with them."""
        return f"sensor(s) {', '.join(self.sensors)} {self.reason}"


def status_of_sensors(
    instance: DagsterInstance,
    location: str | None,
    store: OrchestratorStore,
    namespace: str,
    now: datetime,
) -> SensorStatus:
    """Return how the sensors of a namespace are running, from any process that reaches the store.

    Each tick that succeeds leaves a heartbeat in the store. Dagster records only that a user
    started or stopped a sensor, so it cannot tell which sensors are missing or were never started.

    Args:
        instance: The Dagster instance, which knows the sensors that were switched off.
        location: Name of the code location; None looks at all of them.
        store: Where the sensors leave their heartbeats.
        namespace: The namespace that the sensors serve.
        now: The time by the clock of the batch runs.
    """
    by_hand = _started_or_stopped(instance, location)
    beats = store.heartbeats(namespace)
    found: dict[SensorState, list[str]] = {}
    for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
        state = by_hand.get(sensor) or _state(beats.get(sensor), now)
        found.setdefault(state, []).append(sensor)
    worst = max(found, key=list(SensorState).index)
    if worst is SensorState.WELL:
        return SensorStatus(state=worst)
    ticks = [beats[sensor].at if sensor in beats else None for sensor in found[worst]]
    known = [at for at in ticks if at is not None]
    last_tick = min(known) if len(known) == len(ticks) else None
    return SensorStatus(
        state=worst,
        sensors=tuple(found[worst]),
        last_tick=last_tick,
        reason=_reason(worst, last_tick, namespace),
    )


def _state(beat: Heartbeat | None, now: datetime) -> SensorState:
    if beat is None:
        return SensorState.NEVER
    patience = timedelta(seconds=max(SILENT_SECONDS, _MISSED_TICKS * beat.every_s))
    return SensorState.SILENT if now - beat.at > patience else SensorState.WELL


def _reason(state: SensorState, last_tick: datetime | None, namespace: str) -> str:
    match state:
        case SensorState.STOPPED:
            return "are switched off: switch them on"
        case SensorState.NEVER:
            return (
                f"have never ticked for the namespace {namespace!r}: add build_batch_sensors() "
                "to the code location, and switch them on"
            )
        case _:
            return (
                f"have not ticked since {last_tick:%Y-%m-%d %H:%M} UTC: see whether Dagster's "
                "daemon runs and what their ticks say"
            )


def _started_or_stopped(instance: DagsterInstance, location: str | None) -> dict[str, SensorState]:
    """Return the sensors of a code location that a user switched off or has just started.

    A sensor that was just started may not have completed a tick yet.
    """
    if instance.schedule_storage is None:  # an ephemeral instance, as tests use
        return {}
    found = {}
    for state in instance.all_instigator_state():
        theirs = state.origin.repository_origin.code_location_origin.location_name
        if state.status.value == "STOPPED" and location in (None, theirs):
            found[state.name] = SensorState.STOPPED
        elif location == theirs:
            started_at = getattr(state.instigator_data, "last_sensor_start_timestamp", None) or 0.0
            if time.time() - started_at < SILENT_SECONDS:
                found.setdefault(state.name, SensorState.WELL)
    return found
