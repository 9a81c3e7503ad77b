"""A project with nothing in it but the hold: requests wait until a file says that they are done.

The control folder (``HOLD_CONTROL``) holds one JSON file per request run under ``requests/`` and
is told by an empty file ``release-<partition>`` that the provider has answered that partition.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from batchor_dagster.constants import (
    TAG_BACKFILL,
    TAG_BATCH_RUN,
    TAG_KIND,
    TAG_RUN_KEY,
    RunKind,
)
from batchor_dagster.hold import (
    BackfillState,
    HoldKind,
    HoldRequest,
    HoldState,
    backfill_state,
    close_hold,
    hold_status,
    is_hold,
    open_or_join,
)

CONTROL = Path(os.environ["HOLD_CONTROL"])
REQUESTS = CONTROL / "requests"
PARTITIONS = dg.StaticPartitionsDefinition([f"{group}{n}" for group in "abcde" for n in range(3)])
TAG_HOLD_KIND = "test/hold_kind"
WAITING = [dg.AssetKey("answers"), dg.AssetKey("report")]


@dg.asset(partitions_def=PARTITIONS, output_required=False)
def answers(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
    """Open the hold on a request, materialise on a run that the sensor launched."""
    if is_hold(context.run.tags):
        return
    if TAG_BATCH_RUN in context.run.tags:
        yield dg.MaterializeResult(metadata={"dagster/row_count": 3})
        return
    outcome = open_or_join(
        HoldRequest(
            instance=context.instance,
            run=context.run,
            asset_keys=WAITING,
            partition_keys=list(context.partition_keys),
            kind=HoldKind(context.run.tags.get(TAG_HOLD_KIND, "queued")),
        )
    )
    if outcome.reason:
        context.log.warning(outcome.reason)
    if outcome.cancelled:
        context.log.info("cancelled: nothing is submitted")
        return
    REQUESTS.mkdir(parents=True, exist_ok=True)
    request = {
        "run_id": context.run.run_id,
        "backfill": context.run.tags.get(TAG_BACKFILL),
        "partition": context.partition_key,
        "hold": outcome.hold.run_id if outcome.hold else None,
    }
    (REQUESTS / f"{context.run.run_id}.json").write_text(json.dumps(request))
    context.log_event(dg.AssetObservation("answers", partition=context.partition_key))


@dg.asset(partitions_def=PARTITIONS, deps=[answers])
def report() -> None:
    """Stand for what lies downstream in the same Dagster run."""


@dg.sensor(
    asset_selection=dg.AssetSelection.assets(answers, report),
    minimum_interval_seconds=3,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def hold_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Launch what was released; close each hold once none of its requests waits."""
    run_requests: list[dg.RunRequest] = []
    waiting: dict[str, list[str]] = {}
    for path in sorted(REQUESTS.glob("*.json")):
        request = json.loads(path.read_text())
        state = _state(context.instance, request)
        waiting.setdefault(request["hold"], []).append(state)
        if state == "released":
            run_requests.append(_materialise(request))
    for hold, states in waiting.items():
        if hold and set(states) <= {"done", "cancelled"}:
            close_hold(
                context.instance,
                hold,
                "cancelled" if "cancelled" in states else "success",
                "all requests ended",
            )
    return dg.SensorResult(run_requests=run_requests)


def _state(instance: dg.DagsterInstance, request: dict[str, str]) -> str:
    runs = instance.get_runs(dg.RunsFilter(tags={TAG_RUN_KEY: _run_key(request)}), limit=1)
    if runs:
        return "done" if runs[0].is_finished else "materialising"
    backfill = request["backfill"]
    if backfill and backfill_state(instance, backfill) is BackfillState.CANCELLING:
        return "cancelled"
    if request["hold"]:
        hold_state = hold_status(instance, request["hold"]).state
        if hold_state is HoldState.CANCELLED:
            return "cancelled"
        if hold_state is HoldState.MISSING:
            _reopen(instance, request)
    return "released" if (CONTROL / f"release-{request['partition']}").exists() else "waiting"


def _reopen(instance: dg.DagsterInstance, request: dict[str, str]) -> None:
    run = instance.get_run_by_id(request["run_id"])
    if run is not None:
        open_or_join(
            HoldRequest(
                instance=instance,
                run=run,
                asset_keys=WAITING,
                partition_keys=[request["partition"]],
            )
        )


def _materialise(request: dict[str, str]) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=_run_key(request),
        partition_key=request["partition"],
        asset_selection=WAITING,
        tags={
            TAG_BATCH_RUN: request["run_id"],
            TAG_KIND: RunKind.MATERIALISE.value,
            TAG_BACKFILL: request["backfill"],
        },
    )


def _run_key(request: dict[str, str]) -> str:
    return f"hold-project:{request['run_id']}"


defs = dg.Definitions(
    assets=[answers, report], sensors=[hold_sensor], executor=dg.in_process_executor
)
