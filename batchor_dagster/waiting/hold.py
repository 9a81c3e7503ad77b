"""The hold: one run record that keeps a Dagster backfill in progress while a provider works.

Since Dagster 1.13.21 a backfill whose runs have all ended without materializing what it asked for
is marked failed within a minute; one unfinished run that carries the backfill's tag prevents it.
A hold is such a run record, one per backfill and code location. It has no worker and takes no slot:
it is queued on a pool without slots (or recorded as suspended).

This is the only module that imports private Dagster API. An error in it costs the hold and never
the request: the caller gets an outcome without a hold, and a reason to log.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dagster import (
    AssetKey,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunsFilter,
)

from batchor_dagster.constants import (
    HOLD_COPIED_TAGS,
    TAG_BACKFILL,
    TAG_HOLD_CLOSED,
    TAG_HOLD_GENERATION,
    TAG_KIND,
    TAG_MAX_RETRIES,
    TAG_PARTITION_DIMENSION_PREFIX,
    TAG_WAITING_FOR,
    WAITING_POOL,
    HoldKind,
    RunKind,
)
from batchor_dagster.waiting.launch_spec import repository_of

_PRIVATE_API_ERROR: str | None = None
try:
    from dagster._core.errors import DagsterRunAlreadyExists
    from dagster._core.events import AssetMaterializationPlannedData
    from dagster._core.storage.dagster_run import RunOpConcurrency
except ImportError as _error:  # another Dagster: everything but the hold still works
    _PRIVATE_API_ERROR = str(_error)

_RUN_SUSPENDED = DagsterEventType.__members__.get("RUN_SUSPENDED")  # since Dagster 1.13.26
_RUN_ID_NAMESPACE = uuid.UUID("c3a9a3c2-6f0e-5a43-9d43-1d0c9b0f7e52")  # stored: never changed
_PLANNED_PARTITIONS = 500
"""How many partitions of a range are shown as *materializing*: each takes an event, which costs
some 5 ms on SQLite and three times that on PostgreSQL."""
_CONSEQUENCE = (
    "Dagster will mark the backfill as failed before the provider is done; the partitions "
    "materialize all the same."
)


class HoldState(StrEnum):
    """The state of a hold."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    """A user ended it, or Dagster when the backfill was cancelled: its waiters are cancelled."""
    RETIRED = "retired"
    """:func:`close_hold` ended it as cancelled: it says nothing about requests that come later."""
    FAILED = "failed"
    MISSING = "missing"  # its record was deleted


class BackfillState(StrEnum):
    """The state of a backfill, as far as it matters to its waiters."""

    OPEN = "open"
    CANCELLING = "cancelling"
    """It is being cancelled, or was: CANCELING and CANCELED."""
    FAILED = "failed"
    """Dagster gave it up, mostly because a target is not defined any more: FAILING and FAILED.

    Nobody asked for that: what waits in its name goes on, without a hold.
    """
    ENDED = "ended"
    """It ran to its end, with failed partitions or without."""
    UNKNOWN = "unknown"
    """Dagster has no such backfill, or could not be asked."""


@dataclass(frozen=True, kw_only=True)
class HoldRequest:
    """A request that needs a hold, and the partitions to show as *materializing*."""

    instance: DagsterInstance
    run: DagsterRun
    """The request's own Dagster run (``context.run``); the hold is modelled on it."""
    asset_keys: Sequence[AssetKey]
    """The waiting asset and its descendants in the run's selection."""
    partition_keys: Sequence[str]
    """The run's partitions; empty for an asset without partitions."""
    kind: HoldKind = HoldKind.QUEUED
    unpartitioned_keys: Collection[AssetKey] = ()
    """The assets among ``asset_keys`` that have no partitions although the run does."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """An open hold; ``generation`` counts the holds of its backfill that ended before."""

    run_id: str
    generation: int
    created: bool
    """False if the request joined a hold that was already there."""


@dataclass(frozen=True, kw_only=True)
class HoldOutcome:
    """The result of ``open_or_join``."""

    hold: Hold | None = None
    """None when there is none: not needed, not wanted, or not possible."""
    reason: str | None = None
    """What the caller has to log as one warning; None when all is well."""
    cancelled: bool = False
    """The backfill or its hold was cancelled: the caller must not submit."""


@dataclass(frozen=True, kw_only=True)
class HoldStatus:
    """A hold as Dagster has it on record; ``generation`` is None for a missing one."""

    run_id: str
    generation: int | None
    state: HoldState


def open_or_join(request: HoldRequest) -> HoldOutcome:
    """Open the hold of the request's backfill, or join the one that is open.

    Call it inside the request's step: a minute after the step's end the backfill has failed. Safe
    to repeat and to race: all requests of a backfill compute the same run id. Never raises; checks
    everything that it can before it writes anything. A request outside of a backfill gets no hold
    and no reason. To reopen a hold whose record was deleted, call it again, from any process, with
    the request's run as the instance has it.
    """
    backfill_id = request.run.tags.get(TAG_BACKFILL)
    if backfill_id is None:
        return HoldOutcome()
    try:
        match backfill_state(request.instance, backfill_id):
            case BackfillState.CANCELLING:
                return HoldOutcome(cancelled=True)
            # a request that was executed again later
            case BackfillState.ENDED | BackfillState.FAILED:
                return HoldOutcome()
            case BackfillState.UNKNOWN:
                return _no_hold(f"Dagster does not know the backfill {backfill_id!r}")
            case BackfillState.OPEN:
                return _open_or_join(request, backfill_id)
    except Exception as error:  # noqa: BLE001 - private API: the hold is lost, not the request
        return _no_hold(f"{type(error).__name__}: {error}")


def close_hold(
    instance: DagsterInstance,
    run_id: str,
    outcome: Literal["success", "cancelled"],
    message: str,
) -> bool:
    """End a hold; returns whether this call ended it.

    Give ``success`` when its waiters ended by themselves, failed ones included: the materialize
    runs tell Dagster which partitions failed, and a failed hold would name others. Give
    ``cancelled`` only when the waiters were cancelled. A hold that is missing or has ended is left
    alone.
    """
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished or not is_hold(run.tags):
        return False
    instance.add_run_tags(run_id, {TAG_HOLD_CLOSED: outcome})  # before the end: readers see both
    if outcome == "success":
        _report(instance, run, DagsterEventType.RUN_SUCCESS, message)
    else:
        instance.report_run_canceled(run, message)
    return True


def hold_id_for(backfill_id: str, repository: str | None, generation: int) -> str:
    """Return the Dagster run id of a backfill's hold of that generation.

    Args:
        backfill_id: The backfill.
        repository: Of the code location, as ``name@location``. A backfill over several code
            locations has a hold for each: the sensors of one do not see the waiters of another.
        generation: How many of its holds ended before.
    """
    return str(uuid.uuid5(_RUN_ID_NAMESPACE, f"{backfill_id}:{repository}:{generation}"))


def find_hold(
    instance: DagsterInstance, backfill_id: str, repository: str | None
) -> HoldStatus | None:
    """Return the backfill's newest hold on record, or None if there is none (any more)."""
    run = _newest(instance, backfill_id, repository)
    return None if run is None else _status_of(run)


def hold_status(instance: DagsterInstance, run_id: str) -> HoldStatus:
    """Return the status of one hold, by its run id: ``MISSING`` if its record was deleted."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return HoldStatus(run_id=run_id, generation=None, state=HoldState.MISSING)
    return _status_of(run)


def is_hold(run_tags: Mapping[str, str]) -> bool:
    """Return whether a Dagster run with these tags is a hold; one that starts must do nothing."""
    return run_tags.get(TAG_KIND) == RunKind.HOLD


def backfill_state(instance: DagsterInstance, backfill_id: str) -> BackfillState:
    """Return the state of a backfill for its waiters. Never raises."""
    try:
        backfill = instance.get_backfill(backfill_id)
        status = None if backfill is None else backfill.status.value
    except Exception:  # noqa: BLE001 - private API: not being able to tell is an answer
        return BackfillState.UNKNOWN
    match status:
        case None:
            return BackfillState.UNKNOWN
        case "REQUESTED":
            return BackfillState.OPEN
        case "CANCELING" | "CANCELED":
            return BackfillState.CANCELLING
        case "FAILING" | "FAILED":
            return BackfillState.FAILED
        case _:
            return BackfillState.ENDED


def _open_or_join(request: HoldRequest, backfill_id: str) -> HoldOutcome:
    instance, reason, generation = request.instance, None, 0
    newest = _newest(instance, backfill_id, repository_of(request.run))
    state = None if newest is None else _status_of(newest).state
    if state is HoldState.CANCELLED:
        return HoldOutcome(cancelled=True)
    if request.kind is HoldKind.NONE:
        return HoldOutcome()
    if (obstacle := _obstacle(request.run)) is not None:
        return _no_hold(obstacle)
    kind: HoldKind = request.kind
    if newest is not None:
        generation = _generation(newest) + (0 if state is HoldState.OPEN else 1)
    if state is not HoldState.OPEN:
        kind, reason = _possible_kind(instance, request.kind)
        if kind is HoldKind.NONE:
            return _no_hold(str(reason))
    hold = _record(request, backfill_id, generation, kind)
    try:
        _log_planned(request, hold.run_id)
    except Exception as error:  # noqa: BLE001 - private API: the hold itself stands
        reason = f"The waiting partitions are not shown as materializing: {error}"
    return HoldOutcome(hold=hold, reason=reason)


def _obstacle(run: DagsterRun) -> str | None:
    if _PRIVATE_API_ERROR is not None:
        return f"this version of Dagster lacks what is needed: {_PRIVATE_API_ERROR}"
    if run.remote_job_origin is None:
        # Dagster refuses to queue such a run, but only after its record was written
        return "the run was started in its own process and has no remote job origin"
    return None


def _possible_kind(instance: DagsterInstance, wanted: HoldKind) -> tuple[HoldKind, str | None]:
    """Return the kind that can be opened, and a reason where it is not the one wanted."""
    if wanted is HoldKind.SUSPENDED and _RUN_SUSPENDED is not None:
        return wanted, None
    hazard = _queue_hazard(instance)
    if hazard is None:
        missing = "This Dagster has no suspended runs (1.13.26 has): the hold is queued."
        return HoldKind.QUEUED, missing if wanted is HoldKind.SUSPENDED else None
    if _RUN_SUSPENDED is not None:
        return HoldKind.SUSPENDED, f"A queued hold would start, so it is suspended: {hazard}."
    return HoldKind.NONE, f"a queued hold would start: {hazard}"


def _queue_hazard(instance: DagsterInstance) -> str | None:
    """Return the setting under which a run on a pool without slots would be started."""
    queue = instance.get_concurrency_config().run_queue_config
    if queue is None:
        return "the instance does not use Dagster's run queue"
    if not queue.should_block_op_concurrency_limited_runs:
        return "`block_op_concurrency_limited_runs` is switched off"
    if queue.op_concurrency_slot_buffer > 0:
        return "the run buffer of pools (`op_granularity_run_buffer`) is above 0"
    if not instance.event_log_storage.supports_global_concurrency_limits:
        return "the event log storage has no pools"
    return None


def _record(request: HoldRequest, backfill_id: str, generation: int, kind: HoldKind) -> Hold:
    instance = request.instance
    run_id = hold_id_for(backfill_id, repository_of(request.run), generation)
    created = False
    run = instance.get_run_by_id(run_id)
    if run is None:
        if kind is HoldKind.QUEUED:
            instance.event_log_storage.set_concurrency_slots(WAITING_POOL, 0)
        try:
            run = instance.add_run(_hold_run(request, backfill_id, generation, kind))
            created = True
        except DagsterRunAlreadyExists:  # another request of the backfill was faster
            run = instance.get_run_by_id(run_id)
    if run is not None and run.status is DagsterRunStatus.NOT_STARTED:
        _start_waiting(instance, run, kind)  # also heals a record whose writer died before this
    return Hold(run_id=run_id, generation=generation, created=created)


def _hold_run(
    request: HoldRequest, backfill_id: str, generation: int, kind: HoldKind
) -> DagsterRun:
    copied = {
        key: value
        for key, value in request.run.tags.items()
        if key in HOLD_COPIED_TAGS or key.startswith(TAG_PARTITION_DIMENSION_PREFIX)
    }
    own = {
        TAG_KIND: RunKind.HOLD.value,
        TAG_WAITING_FOR: backfill_id,
        TAG_HOLD_GENERATION: str(generation),
        TAG_MAX_RETRIES: "0",
    }
    pool = RunOpConcurrency(
        root_key_counts={WAITING_POOL: 1},
        has_unconstrained_root_nodes=False,
        all_pools={WAITING_POOL},
    )
    return request.run._replace(
        run_id=hold_id_for(backfill_id, repository_of(request.run), generation),
        status=DagsterRunStatus.NOT_STARTED,
        tags=copied | own,
        parent_run_id=None,
        root_run_id=None,
        asset_selection=frozenset(request.asset_keys),
        asset_check_selection=None,  # all of its assets': without them they cannot be loaded
        run_op_concurrency=pool if kind is HoldKind.QUEUED else None,
    )


def _start_waiting(instance: DagsterInstance, run: DagsterRun, kind: HoldKind) -> None:
    # Before the planned events: until here the record can neither be terminated nor cancelled.
    try:
        if kind is HoldKind.SUSPENDED and _RUN_SUSPENDED is not None:
            _report(instance, run, _RUN_SUSPENDED, "Waiting for provider batches.")
        else:
            instance.report_dagster_event(DagsterEvent.job_enqueue(run), run_id=run.run_id)
    except Exception:
        instance.delete_run(run.run_id)  # a record that never waits would end as failed
        raise


def _report(
    instance: DagsterInstance, run: DagsterRun, event_type: DagsterEventType, message: str
) -> None:
    event = DagsterEvent(event_type_value=event_type.value, job_name=run.job_name, message=message)
    instance.report_dagster_event(event, run_id=run.run_id)


def _log_planned(request: HoldRequest, run_id: str) -> None:
    # One event per partition: on SQLite, one with a subset does not show up on the asset's page.
    shown = request.partition_keys[:_PLANNED_PARTITIONS]
    for key in request.asset_keys:
        is_partitioned = request.partition_keys and key not in request.unpartitioned_keys
        for partition in shown if is_partitioned else (None,):
            planned = AssetMaterializationPlannedData(key, partition=partition)
            event = DagsterEvent.build_asset_materialization_planned_event(
                request.run.job_name, key.to_python_identifier(), planned
            )
            request.instance.report_dagster_event(event, run_id=run_id)


def _newest(
    instance: DagsterInstance, backfill_id: str, repository: str | None
) -> DagsterRun | None:
    holds = instance.get_runs(
        RunsFilter(tags={TAG_WAITING_FOR: backfill_id, TAG_KIND: RunKind.HOLD.value})
    )
    mine = [run for run in holds if repository_of(run) == repository]
    return max(mine, key=_generation, default=None)


def _generation(run: DagsterRun) -> int:
    return int(run.tags.get(TAG_HOLD_GENERATION, "0"))


def _status_of(run: DagsterRun) -> HoldStatus:
    match run.status:
        case DagsterRunStatus.SUCCESS:
            state = HoldState.SUCCEEDED
        case DagsterRunStatus.FAILURE:
            state = HoldState.FAILED
        case DagsterRunStatus.CANCELED | DagsterRunStatus.CANCELING:
            state = HoldState.RETIRED if TAG_HOLD_CLOSED in run.tags else HoldState.CANCELLED
        case _:
            state = HoldState.OPEN
    return HoldStatus(run_id=run.run_id, generation=_generation(run), state=state)


def _no_hold(why: str) -> HoldOutcome:
    return HoldOutcome(reason=f"The backfill cannot be kept open: {why}. {_CONSEQUENCE}")
