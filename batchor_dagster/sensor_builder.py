"""The two sensors of a code location: one advances batch runs, one materialises partitions."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, ValidationError

from batchor_core import BatchRunner, TimingPolicy
from batchor_core.executor.due import HEAVY_STEPS, due_steps
from batchor_dagster.advance import build_advance_job, run_config
from batchor_dagster.backfills import Backfills
from batchor_dagster.connections import BATCHOR_RESOURCE, batchor_resource, open_runner
from batchor_dagster.constants import TAG_KIND, TAG_RUN_KEY, RunKind
from batchor_dagster.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.sensor_state import ADVANCE_SENSOR, MATERIALISE_SENSOR
from batchor_dagster.serving import Wish, end_wish, load_wishes, serve

TICK_SECONDS = 30.0
"""A sensor's function is stopped by Dagster after 60 seconds; what is left is for the next tick."""

RUN_REQUESTS_PER_TICK = 50
BATCH_RUNS_PER_ADVANCE = 20
"""Starting a Dagster run takes seconds, so several batch runs share one."""

_LAUNCH_GRACE_S = 60.0
"""How long a requested Dagster run may take to appear."""


class AdvanceCursor(BaseModel):
    """What the advance sensor remembers: which of its Dagster runs are not known to be over.

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
    with open_runner(context.resources, _location(context)) as runner:
        runner.poll_due(TICK_SECONDS)
        due = _due_runs(runner)
        launched = _still_going(context.instance, runner, AdvanceCursor.parse(context.cursor))
    busy = {run_id for entry in launched.values() for run_id in entry.batch_runs}
    free = [run_id for run_id in due if run_id not in busy]
    requests = []
    now = time.time()
    for start in range(0, len(free), BATCH_RUNS_PER_ADVANCE):
        group = free[start : start + BATCH_RUNS_PER_ADVANCE]
        # Dagster skips a run key for ever once it was used, so each launch has a new one.
        run_key = f"batchor:advance:{group[0]}:{int(now * 1000)}"
        launched[run_key] = AdvanceCursor.Launched(batch_runs=group, at=now)
        requests.append(
            dg.RunRequest(
                run_key=run_key,
                run_config=run_config(group),
                tags={TAG_KIND: RunKind.ADVANCE.value},
            )
        )
    return dg.SensorResult(
        run_requests=requests,
        cursor=AdvanceCursor(launched=launched).model_dump_json(),
        skip_reason=None if requests else f"nothing heavy is due for {len(due)} batch run(s)",
    )


def _due_runs(runner: BatchRunner) -> list[str]:
    """Return the batch runs that need more than polling now."""
    now = datetime.now(UTC)
    return [
        work.run.run_id
        for work in runner.store.all_open_work(runner.namespace)
        if any(
            due.step in HEAVY_STEPS and due.at <= now
            for due in due_steps(work, TimingPolicy.model_validate(work.run.spec["timing"]), now)
        )
    ]


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
        for wish in _fair(wishes):
            if len(requests) >= RUN_REQUESTS_PER_TICK or time.monotonic() >= until:
                break
            if wish.is_ready:
                requests += serve(runner.store, context.instance, wish, wishes)
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
    kind = batchor_resource(context.resources).hold_kind
    for wish in load_wishes(runner.store, context.instance, runner.namespace):
        reason = backfills.reason_to_end(wish)
        if wish.waiter.asset not in declarations:
            reason = f"asset {wish.waiter.asset!r} is not defined any more"
        if reason is None:
            warning = backfills.reopen(runner.store, wish, kind)
            if warning:
                context.log.warning(warning)
            wanted.append(wish)
        elif end_wish(runner.store, wish, reason):
            context.log.info("batch run %s is cancelled: %s", wish.run.run_id, reason)
    return wanted


def _fair(wishes: Sequence[Wish]) -> list[Wish]:
    """Return the wishes in the order in which they are served: the oldest first."""
    return sorted(wishes, key=lambda wish: wish.waiter.created_at)


def _location(context: dg.SensorEvaluationContext) -> str | None:
    origin = context.code_location_origin
    return origin.location_name if origin is not None else None
