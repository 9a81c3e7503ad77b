"""Refusing what could never be served, before a row is read."""

import json

from batchor_core import ConfigurationError
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.constants import (
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    TAG_SERVED_IN_PROCESS,
)
from batchor_dagster.step.step import Step
from batchor_dagster.waiting.sensor_status import Serving, serving_status


def check_partitions(step: Step) -> None:
    """Refuse a Dagster run that names no partition of a partitioned asset, or one that is gone.

    Raises:
        ConfigurationError: It does; says what to launch instead.
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
    """Refuse a request that no sensor would ever look after.

    Those of a code location look after what was launched there. Other Dagster runs (of a script,
    or of `dagster asset materialize`) belong to no code location: a namespace that is configured
    may still be one that sensors serve, if there are any.

    Raises:
        ConfigurationError: Nothing would be materialized; says what to do instead.
    """
    run = step.context.run
    if step.waits or step.location is not None or TAG_SERVED_IN_PROCESS in run.tags:
        return
    if step.batchor.namespace is not None and _has_sensors(step):
        return
    op = step.context.op_execution_context.op.name
    config = json.dumps({"ops": {op: {"config": {"wait": True}}}})
    raise ConfigurationError(
        f"nothing was sent: asset {step.declaration.name!r} was launched outside of a code "
        "location, so that no sensor would materialize it. Wait for the answers in this Dagster "
        f"run, with the run configuration {config} (on the command line: --config-json "
        f"'{config}'), or launch it from Dagster's UI"
    )


def _has_sensors(step: Step) -> bool:
    """Whether sensors serve this store's namespace, those of whichever code location."""
    store, namespace = step.runner.store, step.runner.namespace
    now = step.batchor.clock.now()
    status = serving_status(step.context.instance, None, store, namespace, now)
    return status.serving in (Serving.WELL, Serving.SILENT)
