"""Whether the sensors that do the work are running."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from dagster import DagsterInstance

from batchor_core.integration import Heartbeat, Store

ADVANCE_SENSOR = "batchor_advance_sensor"
MATERIALIZE_SENSOR = "batchor_materialize_sensor"

SILENT_SECONDS = 300.0
"""A sensor that ticks every half minute, and has not for so long, is not merely late."""

_MISSED_TICKS = 5


class Serving(StrEnum):
    """What is known of the sensors of a namespace, the best first."""

    WELL = "well"
    """Both have ticked lately, or were started just now."""
    SILENT = "silent"
    """One has ticked before, and does not any more: no daemon, or each of its ticks fails."""
    NEVER = "never ticked"
    """One has never ended a tick in this namespace: it is missing, was never switched on, or
    serves another namespace or another store."""
    STOPPED = "stopped"
    """Somebody switched one off."""


@dataclass(frozen=True, kw_only=True)
class ServingStatus:
    """Whether what is asked for in a namespace will be advanced and materialized.

    Attributes:
        serving: The worst that is known of one of the two sensors.
        sensors: Names of those of which it is; empty where all is well.
        last_tick: The oldest of their last ticks; None if one never ticked.
        reason: What is wrong and what to do, as the rest of a sentence that begins with the
            sensors' names; empty where all is well.
    """

    serving: Serving
    sensors: tuple[str, ...] = ()
    last_tick: datetime | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """Name the sensors and what is wrong with them."""
        return f"sensor(s) {', '.join(self.sensors)} {self.reason}"


def serving_status(
    instance: DagsterInstance, location: str | None, store: Store, namespace: str, now: datetime
) -> ServingStatus:
    """Tell whether the sensors serve a namespace; works in any process that reaches the store.

    The sensors leave a heartbeat in the store with each tick that ends well. Dagster knows of
    sensors only what was done to them by hand, so that it cannot tell which are missing, or were
    never started.

    Args:
        instance: Where it is on record which sensors were switched off.
        location: Name of the code location; None looks at all of them.
        store: Where the sensors leave their heartbeats.
        namespace: Whose batch runs they advance.
        now: In the store's time.
    """
    by_hand = _started_or_stopped(instance, location)
    beats = store.heartbeats(namespace)
    found: dict[Serving, list[str]] = {}
    for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
        serving = by_hand.get(sensor) or _serving(beats.get(sensor), now)
        found.setdefault(serving, []).append(sensor)
    worst = max(found, key=list(Serving).index)
    if worst is Serving.WELL:
        return ServingStatus(serving=worst)
    ticks = [beats[sensor].at if sensor in beats else None for sensor in found[worst]]
    known = [at for at in ticks if at is not None]
    last_tick = min(known) if len(known) == len(ticks) else None
    return ServingStatus(
        serving=worst,
        sensors=tuple(found[worst]),
        last_tick=last_tick,
        reason=_reason(worst, last_tick, namespace),
    )


def _serving(beat: Heartbeat | None, now: datetime) -> Serving:
    if beat is None:
        return Serving.NEVER
    patience = timedelta(seconds=max(SILENT_SECONDS, _MISSED_TICKS * beat.every_s))
    return Serving.SILENT if now - beat.at > patience else Serving.WELL


def _reason(serving: Serving, last_tick: datetime | None, namespace: str) -> str:
    match serving:
        case Serving.STOPPED:
            return "are switched off: switch them on"
        case Serving.NEVER:
            return (
                f"have never ticked for the namespace {namespace!r}: add build_batch_sensors() "
                "to the code location, and switch them on"
            )
        case _:
            return (
                f"have not ticked since {last_tick:%Y-%m-%d %H:%M} UTC: see whether Dagster's "
                "daemon runs and what their ticks say"
            )


def _started_or_stopped(instance: DagsterInstance, location: str | None) -> dict[str, Serving]:
    """Return which sensors of a code location are switched off, or were started just now.

    One that was just started may not have ended a tick yet.
    """
    if instance.schedule_storage is None:  # an ephemeral instance, as tests use
        return {}
    found = {}
    for state in instance.all_instigator_state():
        theirs = state.origin.repository_origin.code_location_origin.location_name
        if state.status.value == "STOPPED" and location in (None, theirs):
            found[state.name] = Serving.STOPPED
        elif location == theirs:
            started_at = getattr(state.instigator_data, "last_sensor_start_timestamp", None) or 0.0
            if time.time() - started_at < SILENT_SECONDS:
                found.setdefault(state.name, Serving.WELL)
    return found
