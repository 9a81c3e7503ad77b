"""Partitions definitions in YAML."""

from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import Field

from batchor_dagster.components.fields import python_object

_TIME_WINDOWS: dict[str, Any] = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "weekly": dg.WeeklyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
}


_OFFSETS = {
    "hourly": {"minute_offset"},
    "daily": {"minute_offset", "hour_offset"},
    "weekly": {"minute_offset", "hour_offset", "day_offset"},
    "monthly": {"minute_offset", "hour_offset", "day_offset"},
}


class TimePartitions(dg.Model):
    """One partition for each hour, day, week or month."""

    type: Literal["hourly", "daily", "weekly", "monthly"]
    start_date: str
    end_date: str | None = None
    timezone: str | None = None
    minute_offset: int | None = None
    hour_offset: int | None = None
    day_offset: int | None = None

    def definition(self) -> dg.PartitionsDefinition[Any]:
        """Return Dagster's partitions.

        Raises:
            ValueError: The kind of partitions has no such offset; Dagster would ignore it.
        """
        arguments = self.model_dump(exclude={"type"}, exclude_none=True)
        unknown = arguments.keys() & (_OFFSETS["monthly"] - _OFFSETS[self.type])
        if unknown:
            raise ValueError(f"{self.type} partitions have no {min(unknown)}")
        made: dg.PartitionsDefinition[Any] = _TIME_WINDOWS[self.type](**arguments)
        return made


class StaticPartitions(dg.Model):
    """A fixed list of partitions."""

    type: Literal["static"]
    partition_keys: list[str]

    def definition(self) -> dg.PartitionsDefinition[Any]:
        """Return Dagster's partitions."""
        return dg.StaticPartitionsDefinition(self.partition_keys)


class DynamicPartitions(dg.Model):
    """Partitions that are added at run time, such as by a sensor."""

    type: Literal["dynamic"]
    name: str

    def definition(self) -> dg.PartitionsDefinition[Any]:
        """Return Dagster's partitions."""
        return dg.DynamicPartitionsDefinition(name=self.name)


Partitions = Annotated[
    TimePartitions | StaticPartitions | DynamicPartitions, Field(discriminator="type")
]


def read_partitions(context: dg.ResolutionContext, value: Any) -> Any:
    """Return the partitions definition of a model, a template or an import path."""
    found = python_object(context, value)
    if isinstance(found, (TimePartitions, StaticPartitions, DynamicPartitions)):
        return found.definition()
    return found
