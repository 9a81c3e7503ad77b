"""A request: spool the rows, claim the partition, open the hold, submit, and be gone.

The order matters, and each line says what a crash behind it leaves: a spooled run that nobody has
claimed was never sent; from the claim on the sensors carry on; the hold comes before anything is
sent, so that a backfill never sees its last run end without one.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from batchor_core import BatchJob, Run, RunControlState
from batchor_core.integration import (
    ClaimResult,
    MemberClaim,
    WaiterRequest,
    WaiterState,
    check_importable,
    new_waiter_id,
)
from batchor_dagster.hold import HoldRequest, open_or_join
from batchor_dagster.materialise import materialise_in_step
from batchor_dagster.metadata import progress_metadata
from batchor_dagster.sensor_state import stopped_sensors
from batchor_dagster.step import Step
from batchor_dagster.waiters import Request

SUBMIT_SECONDS = 30.0
"""What does not fit into this time is sent by the advance job."""

CANCEL_SECONDS = 20.0


def request(step: Step) -> Iterator[dg.MaterializeResult[Any]]:
    """Ask for the answers of the step's partition.

    Yields nothing unless they are there already (or the asset waits for them itself): the
    partition is materialised by a later Dagster run.
    """
    spooled = _spool(step)
    waiter = _waiter(step)
    claimed = step.runner.store.claim(
        spooled.run_id, _members(step, spooled), waiter, supersede=True
    )
    if claimed.conflict:
        _discard(step, spooled)
        raise _conflict(step, claimed)
    run = spooled
    if claimed.attached:
        _discard(step, spooled)
        run = step.runner.get_run(claimed.run_id)
        step.context.log.info("joining batch run %s, which asks the same already", run.run_id)
    if claimed.superseded:
        run = step.runner.get_run(spooled.run_id)  # a handle that ends its predecessor first
        step.context.log.warning(
            "batch run %s asks with other rows, another declaration, or is being cancelled: this "
            "request takes its place, and is sent when its provider batches have ended",
            claimed.superseded,
        )
    if run.refresh().is_finished or step.declaration.wait:
        yield from _deliver_here(step, run, waiter.waiter_id)
        return
    if not _open_hold(step, waiter.waiter_id):
        _give_up(step, run, waiter.waiter_id, "the backfill was cancelled")
        return
    run.advance(SUBMIT_SECONDS)
    _observe(step, run)
    _warn_of_pause(step, run)
    _warn_of_stopped_sensors(step)


def _spool(step: Step) -> Run:
    """Read the user's rows to their end into a run that nobody stands for yet."""
    declaration = step.declaration
    if declaration.output is not None and not declaration.wait:
        check_importable(declaration.output)
    job: BatchJob = declaration.job(
        step.read_items(),
        step.provider_config(),
        step.batchor.timing,
        step.runner.store.latest_runs(step.identities, but=""),
    )
    run = step.runner.open(job)
    try:
        return run.ingest()
    except BaseException:
        _discard(step, run)
        raise


def _members(step: Step, run: Run) -> list[MemberClaim]:
    fingerprint = run.record.fingerprint or ""
    return [
        MemberClaim(identity=i, fingerprint=fingerprint, item_count=run.record.total_items)
        for i in step.identities
    ]


def _waiter(step: Step) -> WaiterRequest:
    payload = Request.of_run(
        step.context.run,
        step.waiting_keys,
        in_step=step.declaration.wait,
        cancel_on_termination=step.declaration.cancel_on_termination,
    )
    return WaiterRequest(
        waiter_id=new_waiter_id(),
        namespace=step.runner.namespace,
        asset=step.declaration.name,
        partitions=step.partitions,
        payload=payload.payload(),
    )


def _deliver_here(step: Step, run: Run, waiter_id: str) -> Iterator[dg.MaterializeResult[Any]]:
    """Materialise in this very step: the answers are there, or the asset waits for them."""
    store = step.runner.store
    waiter = store.get_waiter(waiter_id)
    if not waiter.payload["in_step"]:
        store.update_waiter(waiter, payload={**waiter.payload, "in_step": True})
    try:
        run.wait()
    except Exception:
        raise  # the wish stays: the sensors serve it when the run goes on
    except BaseException:  # the step was told to stop, whatever Dagster calls that
        _give_up(step, run, waiter_id, "the Dagster run was terminated")
        raise
    try:
        yield from materialise_in_step(step, run)
    except dg.Failure as failure:
        store.end_waiter(waiter_id, WaiterState.FAILED, failure.description)
        raise
    store.end_waiter(waiter_id, WaiterState.SERVED, None)


def _open_hold(step: Step, waiter_id: str) -> bool:
    """Keep the backfill open; False if it was cancelled, so that nothing may be sent."""
    outcome = open_or_join(
        HoldRequest(
            instance=step.context.instance,
            run=step.context.run,
            asset_keys=step.waiting_keys,
            partition_keys=step.partitions,
            kind=step.batchor.hold_kind,
            unpartitioned_keys=step.unpartitioned_keys if step.partitions else (),
        )
    )
    if outcome.reason:
        step.context.log.warning(outcome.reason)
    if outcome.cancelled:
        return False
    if outcome.hold is not None:
        store = step.runner.store
        waiter = store.get_waiter(waiter_id)
        store.update_waiter(waiter, payload={**waiter.payload, "hold": outcome.hold.run_id})
    return True


def _give_up(step: Step, run: Run, waiter_id: str, reason: str) -> None:
    """End this wish; a batch run that nobody else wants is cancelled."""
    store = step.runner.store
    store.end_waiter(waiter_id, WaiterState.CANCELLED, reason)
    if step.declaration.cancel_on_termination and not store.list_waiters(
        run_id=run.run_id, states=[WaiterState.OPEN]
    ):
        run.cancel(reason).advance(CANCEL_SECONDS)
    step.context.log.warning("%s: nothing is submitted", reason)


def _discard(step: Step, run: Run) -> None:
    """Close a spooled run that was never sent, and remove its files."""
    run.cancel("nobody needs it")
    run.advance()
    step.runner.artifacts.delete_folder(f"runs/{run.run_id}")


def _conflict(step: Step, claimed: ClaimResult) -> dg.Failure:
    names = ", ".join(repr(i.partition) if i.partition else "the asset" for i in claimed.conflict)
    return dg.Failure(
        f"{names} is being answered by batch run {claimed.run_id!r}, together with other "
        f"partitions of namespace {step.runner.namespace!r}: wait until those are materialised, "
        f"or cancel it (batchor cancel --run-id {claimed.run_id}), then ask again",
        allow_retries=False,
    )


def _observe(step: Step, run: Run) -> None:
    metadata = progress_metadata(run.summary(), run)
    for partition in step.partitions or (None,):
        step.context.log_event(
            dg.AssetObservation(step.declaration.key, partition=partition, metadata=metadata)
        )


def _warn_of_pause(step: Step, run: Run) -> None:
    if run.control_state is RunControlState.PAUSE:
        step.context.log.warning(
            "batch run %s is paused: %s; when that is mended: batchor resume --run-id %s",
            run.run_id,
            run.control_reason,
            run.run_id,
        )


def _warn_of_stopped_sensors(step: Step) -> None:
    stopped = stopped_sensors(step.context.instance, step.location)
    if stopped:
        step.context.log.warning(
            "sensor(s) %s are switched off: nothing will advance or materialise this partition "
            "until they are on",
            ", ".join(stopped),
        )
