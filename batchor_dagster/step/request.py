"""A request: spool the rows, claim the partitions, open the hold, submit, and be gone.

The order matters, and each line says what a crash behind it leaves: a spooled run that nobody has
claimed was never sent; from the claim on the sensors carry on; the hold comes before anything is
sent, so that a backfill never sees its last run end without one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from batchor_core import BatchJob, ConfigurationError, ReusePolicy, Run, RunControlState
from batchor_core.errors import BudgetExceededError
from batchor_core.integration import (
    LimitedItemSource,
    MemberClaim,
    MemberItemSource,
    MemberRows,
    Waiter,
    WaiterRequest,
    WaiterState,
    change_budget,
    check_importable,
    new_waiter_id,
    source_of,
)
from batchor_dagster.asset.metadata import (
    estimate_metadata,
    estimate_text,
    observations,
    progress_metadata,
)
from batchor_dagster.constants import TAG_BACKFILL
from batchor_dagster.step.added_metadata import MAX_BYTES
from batchor_dagster.step.local_places import out_of_reach
from batchor_dagster.step.materialize import Answers, materialize_in_step
from batchor_dagster.step.step import Step
from batchor_dagster.waiting.hold import HoldRequest, open_or_join
from batchor_dagster.waiting.sensor_status import stopped_sensors
from batchor_dagster.waiting.waiters import Request, change_waiter

SUBMIT_SECONDS = 30.0
"""What does not fit into this time is sent by the advance job."""

CANCEL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Asked(Answers):
    """Partitions of the step that one batch run answers, and the waiter that stands for them."""

    waiter_id: str


def request(step: Step) -> Iterator[Any]:
    """Ask for the answers of the step's partitions.

    Yields nothing unless they are all there already (or the asset waits for them itself): the
    partitions are materialized by a later Dagster run.
    """
    if step.config.dry_run:
        _tell_cost(step)
        return
    asked = list(_ask(step, step.partitions))
    if step.waits or all(one.run.refresh().is_finished for one in asked):
        yield from _deliver_here(step, asked)
        return
    if not _open_hold(step, asked):
        for one in asked:
            _give_up(step, one, "the backfill was cancelled")
        return
    _submit(step, asked)
    _warn_of_stopped_sensors(step)
    _warn_of_local_places(step)


def _ask(step: Step, partitions: tuple[str, ...]) -> Iterator[Asked]:
    """Claim partitions, or the asset as a whole.

    Partitions of which some are in work already, or in another version, are not all alike: then
    each group of them is asked for by itself.
    """
    spooled = _spool(step, partitions)
    waiter = _waiter(step, partitions)
    members = _members(step, spooled, partitions)
    claimed = step.runner.store.claim(spooled.run_id, members, waiter, supersede=True)
    if claimed.groups:
        _discard(step, spooled)
        for group in claimed.groups:
            yield from _ask(step, tuple(identity.partition for identity in group))
        return
    run = spooled
    if claimed.attached:
        _discard(step, spooled)
        run = step.runner.get_run(claimed.run_id)
        change_budget(step.runner.store, run.record, step.budget)
        step.context.log.info("joining batch run %s, which asks the same already", run.run_id)
    if claimed.superseded:
        run = step.runner.get_run(spooled.run_id)  # a handle that ends its predecessor first
        step.context.log.warning(
            "batch run %s asks with other rows, another declaration, or is being cancelled: this "
            "request takes its place, and is sent when its provider batches have ended",
            claimed.superseded,
        )
    yield Asked(run=run, waiter_id=waiter.waiter_id, partitions=partitions)


def _spool(step: Step, partitions: tuple[str, ...]) -> Run:
    """Read the user's rows to their end into a run that nobody stands for yet."""
    declaration = step.declaration
    if isinstance(declaration.output, type) and not step.waits:
        check_importable(declaration.output)
    job: BatchJob = declaration.job(
        _items(step, partitions),
        step.provider_config(),
        step.batchor.timing,
        _reuse_policy(step, partitions),
        step.budget,
    )
    run = step.runner.open(job)
    try:
        return run.ingest()
    except BaseException:
        _discard(step, run)
        raise


def _items(step: Step, partitions: tuple[str, ...]) -> Any:
    """Return the rows of the partitions, each read when its turn comes."""
    if not step.calls_by_partition:
        return _asked_rows(step, step.read(None))

    def rows_of(partition: str) -> MemberRows:
        return MemberRows(name=partition, read=lambda: _asked_rows(step, step.read(partition)))

    return MemberItemSource([rows_of(p) for p in partitions], step.declaration.id_column)


def _asked_rows(step: Step, items: Any) -> Any:
    """Return the rows that are asked of what the user's function gave.

    Raises:
        ConfigurationError: Failed rows are to be asked again, and rows cannot be told apart.
    """
    id_column = step.declaration.id_column
    limit, keeps_by_id = step.config.limit_rows, step.config.refresh == "failed"
    if limit is None and not keeps_by_id:
        return items
    source = source_of(items, id_column)
    if keeps_by_id and id_column is None and source.columns is not None:
        raise ConfigurationError(
            "refresh: failed keeps the answers of rows by their ids, and row numbers tell nothing "
            "of which row it is: give the asset an id_column"
        )
    return source if limit is None else LimitedItemSource(source, limit)


def _reuse_policy(step: Step, partitions: Sequence[str]) -> ReusePolicy:
    if step.config.refresh == "all":
        return ReusePolicy(source="off")
    earlier = step.runner.store.latest_runs(step.identities(partitions), but="")
    if step.config.refresh == "failed":
        return ReusePolicy(match="item", run_ids=tuple(earlier))
    return step.declaration.reuse_policy(earlier)


def _members(step: Step, run: Run, partitions: Sequence[str]) -> list[MemberClaim]:
    identities = step.identities(partitions)
    return [
        MemberClaim(identity=identity, fingerprint=fingerprint, item_count=count)
        for identity, (fingerprint, count) in zip(
            identities, run.member_fingerprints(len(identities)), strict=True
        )
    ]


def _waiter(step: Step, partitions: tuple[str, ...]) -> WaiterRequest:
    payload = Request.of_run(
        step.context.run,
        step.waiting_keys,
        in_step=step.waits,
        cancel_on_termination=step.declaration.cancel_on_termination,
    )
    return WaiterRequest(
        waiter_id=new_waiter_id(),
        namespace=step.runner.namespace,
        asset=step.declaration.name,
        partitions=partitions,
        payload={**payload.payload(), **_added_metadata(step, partitions)},
    )


def _added_metadata(step: Step, partitions: Sequence[str]) -> Mapping[str, Any]:
    """Return what the user's function said of the partitions, to be kept with their waiter."""
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


def _deliver_here(step: Step, asked: Sequence[Asked]) -> Iterator[Any]:
    """Materialize in this very step: the answers are there, or the asset waits for them."""
    for one in asked:
        _note(step, one, in_step=True)
    try:
        for one in asked:
            _wait(step, one)
    except Exception:
        raise  # the wishes stay: the sensors serve them when the batch runs go on
    except BaseException:  # the step was told to stop, whatever Dagster calls that
        for one in asked:
            _give_up(step, one, "the Dagster run was terminated")
        raise
    _check_still_asked(step, asked)
    store = step.runner.store
    try:
        yield from materialize_in_step(step, asked)
    except dg.Failure as failure:
        for one in asked:
            store.end_waiter(one.waiter_id, WaiterState.FAILED, failure.description)
        raise
    for one in asked:
        store.end_waiter(one.waiter_id, WaiterState.SERVED, None)


def _check_still_asked(step: Step, asked: Sequence[Asked]) -> None:
    """Leave it to the sensors if partitions were taken over while the step waited.

    Raises:
        dagster.Failure: They were: a step materializes all of its partitions or none.
    """
    for one in asked:
        waiter = step.runner.store.get_waiter(one.waiter_id)
        if (waiter.run_id, waiter.partitions) != (one.run.run_id, one.partitions):
            raise dg.Failure(
                description="some of these partitions have been asked for again meanwhile, in "
                "another way: the sensors materialize all of them when they are answered",
                allow_retries=False,
            )


def _wait(step: Step, one: Asked) -> None:
    try:
        one.run.wait()
    except BudgetExceededError as exc:
        _give_up(step, one, str(exc), WaiterState.FAILED)
        raise


def _open_hold(step: Step, asked: Sequence[Asked]) -> bool:
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
        for one in asked:
            _note(step, one, hold=outcome.hold.run_id)
    return True


def _note(step: Step, one: Asked, **values: Any) -> None:
    """Change what is stored with a waiter, unless it says so already."""

    def change(waiter: Waiter) -> Mapping[str, Any] | None:
        payload = {**waiter.payload, **values}
        return None if payload == waiter.payload else {"payload": payload}

    change_waiter(step.runner.store, one.waiter_id, change)


def _submit(step: Step, asked: Sequence[Asked]) -> None:
    """Send what fits, and tell how far it has come.

    Raises:
        BudgetExceededError: A batch run is too much for its budget; the others were sent.
    """
    until = time.monotonic() + SUBMIT_SECONDS
    refused = []
    for one in asked:
        left = until - time.monotonic()
        if left > 0:  # the sensors send the rest
            one.run.advance(left)
        _observe(step, one)
        try:
            one.run.refresh().check_affordable()
        except BudgetExceededError as exc:  # as a whole, so that nothing of it was sent
            _give_up(step, one, str(exc), WaiterState.FAILED)
            refused.append(exc)
        _warn_of_pause(step, one.run)
    if refused:
        raise refused[0]


def _give_up(step: Step, one: Asked, reason: str, end: WaiterState = WaiterState.CANCELLED) -> None:
    """End this wish; a batch run that nobody else wants is cancelled."""
    store = step.runner.store
    keeps_work = not step.declaration.cancel_on_termination
    store.end_waiter(one.waiter_id, end, reason, keeps_work=keeps_work)
    if step.declaration.cancel_on_termination and not store.list_waiters(
        run_id=one.run.run_id, states=[WaiterState.OPEN]
    ):
        one.run.cancel(reason).advance(CANCEL_SECONDS)
    step.context.log.warning("%s: nothing is submitted", reason)


def _discard(step: Step, run: Run) -> None:
    """Close a spooled run that was never sent, and remove its files."""
    run.cancel("nobody needs it")
    run.advance()
    step.runner.artifacts.delete_folder(f"runs/{run.run_id}")


def _tell_cost(step: Step) -> None:
    """Read the rows, log what asking them would come to, and leave nothing behind."""
    run = _spool(step, step.partitions)
    estimate = run.estimate()
    _discard(step, run)
    step.context.log.info("dry run, nothing is sent: %s", estimate_text(estimate))
    _log_observations(step, step.partitions, estimate_metadata(estimate))
    if step.context.run.tags.get(TAG_BACKFILL):
        step.context.log.warning(
            "a dry run materializes nothing: Dagster will mark its backfill as failed"
        )


def _observe(step: Step, one: Asked) -> None:
    _log_observations(step, one.partitions, progress_metadata(one.run.summary(), one.run))


def _log_observations(step: Step, partitions: Sequence[str], metadata: dict[str, Any]) -> None:
    for observation in observations(step.declaration.key, partitions, metadata):
        step.context.log_event(observation)


def _warn_of_pause(step: Step, run: Run) -> None:
    """Warn of a pause of the batch run, and of the one that it takes the place of."""
    store = step.runner.store
    record = run.record
    before = store.get_run(record.predecessor) if record.predecessor else None
    for each in (record, before):
        if each and each.control is RunControlState.PAUSE and not each.state.is_terminal:
            step.context.log.warning(
                "batch run %s is paused: %s; when that is mended: batchor resume --run-id %s",
                each.run_id,
                each.control_reason,
                each.run_id,
            )


def _warn_of_stopped_sensors(step: Step) -> None:
    stopped = stopped_sensors(step.context.instance, step.location)
    if stopped:
        step.context.log.warning(
            "sensor(s) %s are switched off: nothing will advance or materialize this partition "
            "until they are on",
            ", ".join(stopped),
        )


def _warn_of_local_places(step: Step) -> None:
    context = step.context
    warning = out_of_reach(step.runner, context.instance, context.job_def.executor_def)
    if warning:
        context.log.warning(warning)
