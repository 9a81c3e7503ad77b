"""What the ticks of both sensors share: bounds, cursors, the runner, the code location."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from batchor_core import BatchRunner
from batchor_dagster.resources.connections import open_runner

MINIMUM_INTERVAL_SECONDS = 30
"""Default of the seconds between two ticks."""

RUN_REQUESTS_PER_TICK = 50
"""Dagster's daemon takes a tenth of a second for each; no other sensor ticks meanwhile."""


class Cursor(BaseModel):
    """What a sensor remembers from one tick to the next."""

    model_config = ConfigDict(frozen=True)

    version: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the stored cursor, or a new one if it cannot be read."""
        try:
            cursor = cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
        return cursor if cursor.version == 1 else cls()


@contextmanager
def runner_of(context: dg.SensorEvaluationContext, sensor: str) -> Iterator[BatchRunner]:
    """Open a runner on the code location's resources; record a heartbeat if the tick succeeds.

    Args:
        context: Of the tick.
        sensor: Name of the sensor.
    """
    repository = context.repository_def
    others = repository.get_top_level_resources() if repository else {}
    with open_runner(context.resources, location_of_sensor(context), others) as runner:
        yield runner
        every_s = MINIMUM_INTERVAL_SECONDS
        if repository and repository.has_sensor_def(sensor):
            every_s = repository.get_sensor_def(sensor).minimum_interval_seconds or every_s
        runner.store.note_heartbeat(runner.namespace, sensor, every_s)


def location_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Return the name of the code location that a sensor belongs to, where it has one."""
    origin = context.code_location_origin
    return origin.location_name if origin is not None else None


def label_of_sensor(context: dg.SensorEvaluationContext) -> str | None:
    """Return the repository that a sensor belongs to, as ``name@location``, where it has one."""
    location = location_of_sensor(context)
    return f"{context.repository_name}@{location}" if location else None
