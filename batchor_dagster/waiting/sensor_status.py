"""Whether the sensors that do the work are running."""

from dagster import DagsterInstance

ADVANCE_SENSOR = "batchor_advance_sensor"
MATERIALIZE_SENSOR = "batchor_materialize_sensor"


def stopped_sensors(instance: DagsterInstance, location: str | None) -> list[str]:
    """Return which of our sensors of a code location somebody switched off."""
    if instance.schedule_storage is None:  # an ephemeral instance, as tests use
        return []
    stopped = []
    for state in instance.all_instigator_state():
        origin = state.origin.repository_origin.code_location_origin
        if state.name not in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
            continue
        if location in (None, origin.location_name) and state.status.value == "STOPPED":
            stopped.append(state.name)
    return sorted(stopped)
