"""Refuse requests that could never be served, before they read a row."""

import json

from batchor_core import ConfigurationError
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.constants import (
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    TAG_SERVED_IN_PROCESS,
)
from batchor_dagster.step.step import Step
from batchor_dagster.waiting.sensor_status import SensorState


def check_partitions(step: Step) -> None:
    """Refuse a request that names no partition of a partitioned asset, or an undefined one.

    Raises:
        ConfigurationError: The request is refused; the text says what to launch instead.
    """
    definition = step.partitions_def
    if definition is None:
        return
    about, tags = f"asset {step.declaration.name!r}", step.context.run.tags
    start, end = tags.get(TAG_PARTITION_RANGE_START), tags.get(TAG_PARTITION_RANGE_END)
    if step.context.has_partition_key:
        named = [step.context.partition_key]
    elif start and end:
        named = [start, end]
    else:
        raise ConfigurationError(
            f"{about} has partitions, and this Dagster run names none: launch it with a partition "
            "(`--partition KEY`, `partition_key=`), or as a backfill of several"
        )
    defined = DefinedPartitions(step.context.instance)
    gone = [key for key in named if not defined.has(definition, key)]
    if gone:
        raise ConfigurationError(
            f"{about} has no partition {gone[0]!r}: launch it with one that is defined"
        )
    if not step.partitions:
        raise ConfigurationError(
            f"{about} has no partition from {start!r} to {end!r}: launch a range whose first "
            "partition comes before its last, in each dimension"
        )


def check_served(step: Step) -> None:
    """Refuse a request that no sensor would serve.

    Sensors serve the requests of their code location. A Dagster run of a script or of `dagster
    asset materialize` belongs to no code location. It is taken only if a namespace is configured
    and sensors have ticked for it.

    Raises:
        ConfigurationError: The request is refused; the text says what to do instead.
    """
    run = step.context.run
    if step.waits or step.location is not None or TAG_SERVED_IN_PROCESS in run.tags:
        return
    if step.batchor.namespace is not None and step.sensor_status(None).state is SensorState.WELL:
        return
    op = step.context.op_execution_context.op.name
    config = json.dumps({"ops": {op: {"config": {"wait": True}}}})
    raise ConfigurationError(
        f"nothing was sent: asset {step.declaration.name!r} was launched outside of a code "
        "location, so that no sensor would materialize it. Wait for the answers in this Dagster "
        f"run, with the run configuration {config} (on the command line: --config-json "
        f"'{config}'), or launch it from Dagster's UI"
    )
