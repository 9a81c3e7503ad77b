"""A request: spool the rows, claim the partitions, open the hold, submit, and end.

The order matters for a crash in between. A batch run that was spooled and has no claim is never
sent. From the claim on the sensors carry on. The request opens the hold before it sends anything,
so that a backfill never sees its last run end without a hold.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg

from batchor_core import Run, RunControlState
from batchor_core.errors import BudgetExceededError
from batchor_core.integration import (
    Waiter,
    WaiterRequest,
    WaiterState,
    change_budget,
    new_waiter_id,
)
from batchor_dagster.asset.metadata import progress_metadata
from batchor_dagster.asset.partitions import partitions_defs
from batchor_dagster.constants import RESUME_JOB
from batchor_dagster.step.added_metadata import MAX_BYTES
from batchor_dagster.step.dry_run import dry_run
from batchor_dagster.step.guards import check_partitions, check_served
from batchor_dagster.step.local_places import out_of_reach
from batchor_dagster.step.materialize import AnsweringRun, materialize_in_step
from batchor_dagster.step.preview import preview
from batchor_dagster.step.spooling import discard, member_claims, spool
from batchor_dagster.step.step import CANCEL_SECONDS, Step
from batchor_dagster.waiting.hold import HoldRequest, open_or_join
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import with_verdict
from batchor_dagster.waiting.sensor_status import SensorState
from batchor_dagster.waiting.waiters import change_waiter

SUBMIT_SECONDS = 30.0
"""How long a request sends; ``batchor_advance`` sends the rest."""

_JOINED_REQUESTS = 20
"""How many requests that share a waiter it remembers: it lives as long as one of them."""


@dataclass(frozen=True, kw_only=True)
class ClaimedRun(AnsweringRun):
    """A batch run, the partitions of the step that it answers, and their waiter."""

    waiter_id: str


def request(step: Step) -> Iterator[Any]:
    """Ask for the answers to the rows of the step's partitions.

    Yields materializations only if all answers are there already, or if the step waits for them.
    Otherwise a later Dagster run materializes the partitions.
    """
    check_partitions(step)
    if step.config.dry_run:
        dry_run(step)
        return
    if step.config.preview_rows is not None:
        preview(step, step.config.preview_rows)
        return
    check_served(step)
    asked = list(_ask(step, step.partitions))
    if step.waits or all(one.run.refresh().is_finished for one in asked):
        yield from _deliver_here(step, asked)
        return
    if not _open_hold(step, asked):
        for one in asked:
            _give_up(step, one, "the backfill was cancelled")
        return
    _submit(step, asked)
    _warn_of_idle_sensors(step)
    _warn_of_local_places(step)


def _ask(step: Step, partitions: tuple[str, ...]) -> Iterator[ClaimedRun]:
    """Claim partitions, or the asset as a whole, each with its batch run.

    If some partitions are in flight and others not, or some have changed, the store returns groups
    of partitions that are alike, and the request asks for each group by itself.
    """
    spooled = spool(step, partitions)
    waiter = _waiter(step, partitions)
    members = member_claims(step, spooled, partitions)
    claimed = step.runner.store.claim(spooled.run_id, members, waiter, supersede=True)
    if claimed.groups:
        discard(step, spooled)
        for group in claimed.groups:
            yield from _ask(step, tuple(identity.partition for identity in group))
        return
    run = spooled
    if claimed.attached:
        discard(step, spooled)
        run = step.runner.get_run(claimed.run_id)
        change_budget(step.runner.store, run.record, step.budget)
        step.context.log.info("joining batch run %s, which asks the same already", run.run_id)
    if claimed.superseded:
        run = step.runner.get_run(spooled.run_id)  # a new handle, which ends its predecessor first
        step.context.log.warning(
            "batch run %s asks with other rows, another declaration, or is being cancelled: this "
            "request takes its place, and is sent when its provider batches have ended",
            claimed.superseded,
        )
    if claimed.joined:
        _join(step, claimed.joined)
    waiter_id = claimed.joined or waiter.waiter_id
    yield ClaimedRun(run=run, waiter_id=waiter_id, partitions=partitions)


def _waiter(step: Step, partitions: tuple[str, ...]) -> WaiterRequest:
    return WaiterRequest(
        waiter_id=new_waiter_id(),
        namespace=step.runner.namespace,
        asset=step.declaration.name,
        partitions=partitions,
        payload={**step.launch_spec.payload(), **_added_metadata(step, partitions)},
        demand=step.launch_spec.demand,
    )


def _join(step: Step, waiter_id: str) -> None:
    """Add this request to the waiter of an earlier one that asked for the same."""
    spec = step.launch_spec

    def change(waiter: Waiter) -> Mapping[str, Any] | None:
        theirs = LaunchSpec.of_waiter(waiter)
        if spec.dagster_run in (theirs.dagster_run, *theirs.joined):
            return None
        if spec.root_run == theirs.root_run:  # a re-execution takes the failed run's place
            return {"payload": {**waiter.payload, "dagster_run": spec.dagster_run}}
        joined = (*theirs.joined, spec.dagster_run)[-_JOINED_REQUESTS:]
        return {"payload": {**waiter.payload, "joined": list(joined)}}

    change_waiter(step.runner.store, waiter_id, change)


def _added_metadata(step: Step, partitions: Sequence[str]) -> Mapping[str, Any]:
    """Return the metadata that the user's function added, for the payload of the waiter."""
    try:
        return step.added_metadata.payload(step.declaration.key, partitions)
    except ValueError as exc:
        step.context.log.warning(
            "%s that the function added to its context are too many to be kept until the asset is "
            "materialized (at most %s): they are lost",
            exc,
            MAX_BYTES,
        )
        return {}


def _deliver_here(step: Step, asked: Sequence[ClaimedRun]) -> Iterator[Any]:
    """Wait for the answers if need be, and materialize the partitions in this step."""
    for one in asked:
        _note(step, one, in_step=True)
    try:
        for one in asked:
            _wait(step, one)
    except Exception:
        raise  # the waiters stay open, and the sensors serve them
    except BaseException:  # Dagster terminates the step
        for one in asked:
            _give_up(step, one, "the Dagster run was terminated")
        raise
    _check_still_asked(step, asked)
    store = step.runner.store
    try:
        yield from materialize_in_step(step, asked)
    except dg.Failure as failure:
        reason = failure.description or "failed"
        for one in asked:
            change_waiter(store, one.waiter_id, partial(_judged, reason=reason))
            store.end_waiter(one.waiter_id, WaiterState.FAILED, reason)
        raise
    for one in asked:
        store.end_waiter(one.waiter_id, WaiterState.SERVED, None)


def _judged(waiter: Waiter, reason: str) -> Mapping[str, Any]:
    return {"progress": with_verdict(waiter, reason)}


def _check_still_asked(step: Step, asked: Sequence[ClaimedRun]) -> None:
    """Fail if another request took partitions over while the step waited; the sensors serve them.

    Raises:
        dagster.Failure: It did. A step materializes all of its partitions or none.
    """
    for one in asked:
        waiter = step.runner.store.get_waiter(one.waiter_id)
        if (waiter.run_id, waiter.partitions) != (one.run.run_id, one.partitions):
            raise dg.Failure(
                description="some of these partitions have been asked for again meanwhile, in "
                "another way: the sensors materialize all of them when they are answered",
                allow_retries=False,
            )


def _wait(step: Step, one: ClaimedRun) -> None:
    try:
        one.run.wait()
    except BudgetExceededError as exc:
        _give_up(step, one, str(exc), WaiterState.FAILED)
        raise


def _open_hold(step: Step, asked: Sequence[ClaimedRun]) -> bool:
    """Open or join the backfill's hold; return False if the backfill was cancelled."""
    graph = step.context.job_def.asset_layer.asset_graph
    found = partitions_defs(graph, step.launch_spec.selection)
    unpartitioned = frozenset(key for key, definition in found.items() if definition is None)
    outcome = open_or_join(
        HoldRequest(
            instance=step.context.instance,
            run=step.context.run,
            asset_keys=list(found),
            partition_keys=step.partitions,
            kind=step.batchor.hold_kind,
            unpartitioned_keys=unpartitioned if step.partitions else (),
        )
    )
    if outcome.reason:
        step.context.log.warning(outcome.reason)
    if outcome.cancelled:
        return False
    if outcome.hold is not None:
        for one in asked:
            _note(step, one, hold=outcome.hold.run_id)
    return True


def _note(step: Step, one: ClaimedRun, **values: Any) -> None:
    """Set fields of a waiter's payload, if they differ."""

    def change(waiter: Waiter) -> Mapping[str, Any] | None:
        payload = {**waiter.payload, **values}
        return None if payload == waiter.payload else {"payload": payload}

    change_waiter(step.runner.store, one.waiter_id, change)


def _submit(step: Step, asked: Sequence[ClaimedRun]) -> None:
    """Send what fits into the time, and observe the progress of each batch run.

    Raises:
        BudgetExceededError: A batch run costs more than its budget; the others were sent.
    """
    until = time.monotonic() + SUBMIT_SECONDS
    refused = []
    for one in asked:
        left = until - time.monotonic()
        if left > 0:  # the sensors send the rest
            one.run.advance(left)
        step.observe(one.partitions, progress_metadata(one.run.summary(), one.run))
        try:
            one.run.refresh().check_affordable()
        except BudgetExceededError as exc:  # as a whole, so that nothing of it was sent
            _give_up(step, one, str(exc), WaiterState.FAILED)
            refused.append(exc)
        _warn_of_pause(step, one.run)
    if refused:
        raise refused[0]


def _give_up(
    step: Step, one: ClaimedRun, reason: str, end: WaiterState = WaiterState.CANCELLED
) -> None:
    """End the waiter; without other waiters, its batch run is cancelled."""
    keeps_work = not step.declaration.cancel_on_termination
    ended = step.runner.store.end_waiter(one.waiter_id, end, reason, keeps_work=keeps_work)
    if ended.run_cancelled:
        one.run.refresh().advance(CANCEL_SECONDS)
    step.context.log.warning("%s: nothing is submitted", reason)


def _warn_of_pause(step: Step, run: Run) -> None:
    """Warn if the batch run, or the one that it supersedes, is paused."""
    store = step.runner.store
    record = run.record
    before = store.get_run(record.predecessor) if record.predecessor else None
    for each in (record, before):
        if each and each.control is RunControlState.PAUSE and not each.state.is_terminal:
            step.context.log.warning(
                "batch run %s is paused: %s; when that is mended, launch the job %s with "
                "batch_runs: [%s], or: batchor resume --run-id %s",
                each.run_id,
                each.control_reason,
                RESUME_JOB,
                each.run_id,
                each.run_id,
            )


def _warn_of_idle_sensors(step: Step) -> None:
    status = step.sensor_status(step.location)
    if status.state is not SensorState.WELL:
        step.context.log.warning(
            "%s; until then nothing advances or materializes what was asked for", status.text
        )


def _warn_of_local_places(step: Step) -> None:
    context = step.context
    warning = out_of_reach(step.runner, context.instance, context.job_def.executor_def)
    if warning:
        context.log.warning(warning)
