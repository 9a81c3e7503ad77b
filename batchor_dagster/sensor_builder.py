"""The two sensors of a code location: one advances batch runs, one materialises partitions."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from batchor_core import BatchRunner, RunControlState, TimingPolicy
from batchor_core.integration import HEAVY_STEPS, OpenWork, RunRecord, due_steps
from batchor_dagster.advance import UNUSABLE, build_advance_job, run_config
from batchor_dagster.backfills import Backfills
from batchor_dagster.connections import BATCHOR_RESOURCE, batchor_resource, open_runner
from batchor_dagster.constants import (
    META_BATCH_RUN,
    META_STATUS,
    TAG_KIND,
    TAG_MAX_RETRIES,
    TAG_RUN_KEY,
    RunKind,
)
from batchor_dagster.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.partitions import DefinedPartitions
from batchor_dagster.sensor_state import ADVANCE_SENSOR, MATERIALISE_SENSOR
from batchor_dagster.serving import (
    Wish,
    end_wish,
    has_to_wait,
    load_wishes,
    serve,
    siblings_of,
)

TICK_SECONDS = 30.0
"""A sensor's function is stopped by Dagster after 60 seconds; what is left is for the next tick."""

RUN_REQUESTS_PER_TICK = 50
BATCH_RUNS_PER_ADVANCE = 20
"""Starting a Dagster run takes seconds, so several batch runs share one."""

PAUSES_TOLD_PER_TICK = 50

_LAUNCH_GRACE_S = 60.0
"""How long a requested Dagster run may take to appear."""


class AdvanceCursor(BaseModel):
    """What the advance sensor remembers: which of its Dagster runs are not known to be over.

    And of which paused batch runs it has told their partitions.

    A cursor that cannot be read is started over: at worst a batch run is asked to advance twice,
    and its lease sorts that out.
    """

    model_config = ConfigDict(frozen=True)

    class Launched(BaseModel):
        """One requested Dagster run; ``at`` is Unix time in seconds."""

        batch_runs: list[str]
        at: float

    version: int = 1
    launched: dict[str, Launched] = {}
    paused: list[str] = []

    @classmethod
    def parse(cls, text: str | None) -> "AdvanceCursor":
        """Read a stored cursor."""
        try:
            cursor = cls.model_validate_json(text or "{}")
        except ValidationError:
            return cls()
        return cursor if cursor.version == 1 else cls()


def build_batch_sensors(
    assets: Iterable[object],
    *,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> list[dg.SensorDefinition]:
    """Return the two sensors that batch assets need; one pair per code location.

    Args:
        assets: All batch assets of the location (other definitions are passed over).
        minimum_interval_seconds: Seconds between two ticks.
        default_status: Whether they run without being switched on.
    """
    declarations = declarations_of(assets)
    resource_keys = {BATCHOR_RESOURCE, *(d.provider for d in declarations.values())}
    common: dict[str, Any] = {
        "minimum_interval_seconds": minimum_interval_seconds,
        "default_status": default_status,
        "required_resource_keys": resource_keys,
    }

    @dg.sensor(
        name=ADVANCE_SENSOR,
        job=build_advance_job(declarations.values()),
        description="Polls provider batches; launches what collects, retries and submits.",
        **common,
    )
    def advance_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _advance_tick(context)

    @dg.sensor(
        name=MATERIALISE_SENSOR,
        asset_selection=_with_descendants(declarations.values()),
        description="Materialises the partitions whose batch runs are finished.",
        **common,
    )
    def materialise_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _materialise_tick(context, declarations)

    return [advance_sensor, materialise_sensor]


def _with_descendants(declarations: Iterable[BatchAssetDeclaration]) -> dg.AssetSelection:
    return dg.AssetSelection.assets(*(d.key for d in declarations)).downstream()


def _advance_tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    before = AdvanceCursor.parse(context.cursor)
    with open_runner(context.resources, _location(context)) as runner:
        runner.poll_due(TICK_SECONDS)
        work = runner.store.all_open_work(runner.namespace)
        launched = _still_going(context.instance, runner, before)
        paused = [one.run for one in work if one.run.control is RunControlState.PAUSE]
        news = [run for run in paused if run.run_id not in before.paused][:PAUSES_TOLD_PER_TICK]
        observations = [event for run in news for event in _observations_of_pause(runner, run)]
    busy = {run_id for entry in launched.values() for run_id in entry.batch_runs}
    requests = _launches([run_id for run_id in _due_runs(work) if run_id not in busy], launched)
    told = {*before.paused, *(run.run_id for run in news)}
    cursor = AdvanceCursor(
        launched=launched, paused=[run.run_id for run in paused if run.run_id in told]
    )
    return dg.SensorResult(
        run_requests=requests,
        asset_events=observations,
        cursor=cursor.model_dump_json(),
        skip_reason=None if requests else _what_waits(work, paused),
    )


def _launches(
    due: Sequence[str], launched: dict[str, AdvanceCursor.Launched]
) -> list[dg.RunRequest]:
    """Return the Dagster runs that advance what is due, and note them in ``launched``."""
    requests = []
    now = time.time()
    for start in range(0, len(due), BATCH_RUNS_PER_ADVANCE):
        group = list(due[start : start + BATCH_RUNS_PER_ADVANCE])
        # Dagster skips a run key for ever once it was used, so each launch has a new one.
        run_key = f"batchor:advance:{group[0]}:{int(now * 1000)}"
        launched[run_key] = AdvanceCursor.Launched(batch_runs=group, at=now)
        requests.append(
            dg.RunRequest(
                run_key=run_key,
                run_config=run_config(group),
                tags={TAG_KIND: RunKind.ADVANCE.value, TAG_MAX_RETRIES: "0"},
            )
        )
    return requests


def _due_runs(work: Iterable[OpenWork]) -> list[str]:
    """Return the batch runs that need more than polling now."""
    now = datetime.now(UTC)
    return [
        one.run.run_id
        for one in work
        if not _is_unusable(one.run)
        and any(
            due.step in HEAVY_STEPS and due.at <= now
            for due in due_steps(one, TimingPolicy.model_validate(one.run.spec["timing"]), now)
        )
    ]


def _is_unusable(run: RunRecord) -> bool:
    return run.control is RunControlState.PAUSE and (run.control_reason or "").startswith(UNUSABLE)


def _observations_of_pause(runner: BatchRunner, run: RunRecord) -> list[dg.AssetObservation]:
    """Return what tells a paused run's partitions why they wait: no Dagster run is there to."""
    metadata = {
        META_BATCH_RUN: run.run_id,
        META_STATUS: f"{run.state.value} (pause: {run.control_reason})",
    }
    return [
        dg.AssetObservation(
            dg.AssetKey.from_user_string(member.identity.asset),
            partition=member.identity.partition or None,
            metadata=metadata,
        )
        for member in runner.store.list_members(run.run_id)
    ]


def _what_waits(work: Sequence[OpenWork], paused: Sequence[RunRecord]) -> str:
    text = f"{len(work)} batch run(s) in progress, none of them has anything heavy due"
    if paused:
        first = paused[0]
        text += f"; {len(paused)} paused, as {first.run_id}: {first.control_reason}"
    return text


def _still_going(
    instance: dg.DagsterInstance, runner: BatchRunner, cursor: AdvanceCursor
) -> dict[str, AdvanceCursor.Launched]:
    """Return the launched Dagster runs whose batch runs are to be left alone.

    One that is finished, that never appeared, or that advances nothing (no lease is in force) is
    forgotten: the next launch has a new run key.
    """
    going = {}
    for run_key, entry in cursor.launched.items():
        runs = instance.get_runs(dg.RunsFilter(tags={TAG_RUN_KEY: run_key}), limit=1)
        age_s = time.time() - entry.at
        if not runs:
            keeps = age_s < _LAUNCH_GRACE_S
        elif runs[0].is_finished:
            keeps = False
        else:
            keeps = age_s < _longest_silence_s(runner, entry) or any(
                runner.store.lease_of(run_id) for run_id in entry.batch_runs
            )
        if keeps:
            going[run_key] = entry
    return going


def _longest_silence_s(runner: BatchRunner, entry: AdvanceCursor.Launched) -> float:
    """Return how long a launched run may hold no lease: queueing and starting take a while."""
    spec = runner.store.get_run(entry.batch_runs[0]).spec
    return _LAUNCH_GRACE_S + TimingPolicy.model_validate(spec["timing"]).lease_s


def _materialise_tick(
    context: dg.SensorEvaluationContext, declarations: dict[str, BatchAssetDeclaration]
) -> dg.SensorResult:
    location = _location(context)
    until = time.monotonic() + TICK_SECONDS
    requests: list[dg.RunRequest] = []
    with open_runner(context.resources, location) as runner:
        backfills = Backfills(context.instance, location)
        holds = backfills.open_holds()
        wishes = _still_wanted(context, runner, backfills, declarations)
        siblings, launched = siblings_of(wishes), set[str]()
        for wish in _fair(wishes):
            if len(requests) >= RUN_REQUESTS_PER_TICK or time.monotonic() >= until:
                break
            theirs = siblings[wish.waiter.waiter_id]
            if not wish.is_ready or has_to_wait(context.instance, theirs, launched):
                continue
            asked = list(serve(runner.store, context.instance, wish, theirs))
            launched.update(wish.waiter.waiter_id for _ in asked)
            requests += asked
        remaining = load_wishes(runner.store, context.instance, runner.namespace)
        closed = backfills.close_unneeded(holds, remaining)
    skip = f"{len(remaining)} waiting, {closed} hold(s) closed"
    return dg.SensorResult(run_requests=requests, skip_reason=None if requests else skip)


def _still_wanted(
    context: dg.SensorEvaluationContext,
    runner: BatchRunner,
    backfills: Backfills,
    declarations: dict[str, BatchAssetDeclaration],
) -> list[Wish]:
    """End the wishes that nobody has any more, and return the others."""
    wanted = []
    partitions = DefinedPartitions(context.instance)
    kind = batchor_resource(context.resources).hold_kind
    for wish in load_wishes(runner.store, context.instance, runner.namespace):
        reason = _what_is_gone(wish, declarations, partitions) or backfills.reason_to_end(wish)
        if reason is None:
            warning = backfills.reopen(runner.store, wish, kind)
            if warning:
                context.log.warning(warning)
            wanted.append(wish)
        elif end_wish(runner.store, wish, reason):
            context.log.info("batch run %s is cancelled: %s", wish.run.run_id, reason)
    return wanted


def _what_is_gone(
    wish: Wish,
    declarations: dict[str, BatchAssetDeclaration],
    partitions: DefinedPartitions,
) -> str | None:
    declaration = declarations.get(wish.waiter.asset)
    if declaration is None:
        return f"asset {wish.waiter.asset!r} is not defined any more"
    for key in wish.waiter.partitions or ("",):
        if not partitions.has(declaration.partitions_def, key):
            return f"partition {key!r} of {wish.waiter.asset!r} is not defined any more"
    return None


def _fair(wishes: Sequence[Wish]) -> list[Wish]:
    """Return the wishes in the order in which they are served: the oldest first."""
    return sorted(wishes, key=lambda wish: wish.waiter.created_at)


def _location(context: dg.SensorEvaluationContext) -> str | None:
    origin = context.code_location_origin
    return origin.location_name if origin is not None else None
