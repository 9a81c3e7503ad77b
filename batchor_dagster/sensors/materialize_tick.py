"""A tick of the materialize sensor: launches materialize runs, and cancels waiters that are moot.

The cost of a tick grows with the number of assets, backfills and finished batch runs. Of the
waiters whose batch runs go on, each tick checks a few hundred in turns, however many there are.
"""

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice

import dagster as dg
from pydantic import Field

from batchor_core import BatchRunner, ConfigurationError
from batchor_core.integration import OrchestratorStore
from batchor_dagster.asset.checks import unanswered
from batchor_dagster.asset.declaration import BatchAssetDeclaration, declarations_of
from batchor_dagster.asset.metadata import observations
from batchor_dagster.constants import META_PROGRESS_BATCH_RUN, META_PROGRESS_STATUS
from batchor_dagster.resources.connections import batchor_resource
from batchor_dagster.sensors.ticks import (
    RUN_REQUESTS_PER_TICK,
    Cursor,
    label_of_sensor,
    runner_of,
)
from batchor_dagster.waiting.attempts import Attempt
from batchor_dagster.waiting.backfills import Backfills
from batchor_dagster.waiting.cancellation import GROUP_FIELDS, Cancellation
from batchor_dagster.waiting.code_location import CodeLocation, Seen
from batchor_dagster.waiting.launched_runs import LaunchedRuns
from batchor_dagster.waiting.launching import Launcher
from batchor_dagster.waiting.sensor_status import MATERIALIZE_SENSOR
from batchor_dagster.waiting.serving import Serving, run_keys
from batchor_dagster.waiting.shared import load_families
from batchor_dagster.waiting.time_box import TimeBox
from batchor_dagster.waiting.waiters import AssetWaiter, load_waiters

RUNS_PER_BACKFILL = 50
"""How many unended Dagster runs one asset and backfill may have. Dagster starts its runs one after
another: those of a big backfill would hold up all others for hours."""

READY_PER_BACKFILL = RUNS_PER_BACKFILL + RUN_REQUESTS_PER_TICK
MOST_READY = 1000

EVENTS_PER_TICK = 200

AWAKE_SECONDS = 3600.0
"""For so long the sensors have to tick before a batch run may be said to stand still: after they
were off, the advance sensor first has to see what has happened meanwhile."""

_AWAKE_GAP_S = 600.0
"""Ticks further apart were not ticks of sensors that were on all the time."""

_MEMBERS_KEPT = 10
"""Of so many batch runs; each may have thousands."""

_ATTEMPTS_KEPT = 10
"""Of so many failed Dagster runs; each may have thousands of partitions."""


class MaterializeCursor(Cursor):
    """What the materialize sensor remembers from one tick to the next.

    The sensor starts over if it cannot read its cursor. At worst it then checks some waiters again,
    and the time for which definitions are missing begins anew.

    Attributes:
        after: The last waiter that was checked in turns.
        looked_at: When the last tick began, as Unix time in seconds.
        awake_since: Since when the sensor has ticked without a longer gap, as Unix time in seconds.
        seen: How the assets that have waiters are defined, by name.
    """

    after: str | None = None
    looked_at: float | None = None
    awake_since: float | None = None
    seen: dict[str, Seen] = Field(default_factory=dict)


def materialize_tick(
    context: dg.SensorEvaluationContext,
    assets: Mapping[str, BatchAssetDeclaration] | None,
    jobs: Collection[str],
) -> dg.SensorResult:
    """Cancel waiters that are moot, and request materialize runs for those that are ready.

    Args:
        context: Of the tick.
        assets: The batch assets to serve; None for all of the code location.
        jobs: Names of the jobs that the sensor may launch beside Dagster's job of all assets.
    """
    before, looked_at = MaterializeCursor.parse(context.cursor), time.time()
    time_box = TimeBox()
    with runner_of(context, MATERIALIZE_SENSOR) as runner:
        store, namespace = runner.store, runner.namespace
        batchor = batchor_resource(context.resources)
        location = _location(context, assets, batchor.gone_after_s)
        backfills = Backfills(context.instance, label_of_sensor(context))
        holds = backfills.open_holds()
        groups = store.waiter_groups(namespace, GROUP_FIELDS)
        mine = {g.asset for g in groups if location.serves(g.asset, g.fields[2])}
        elapsed_s = max(0.0, looked_at - (before.looked_at or looked_at))
        seen = location.see(sorted(mine), before.seen, elapsed_s)
        missing = location.missing()
        for warning in missing:
            context.log.warning(warning)
        cancellation = Cancellation(
            context,
            store=store,
            namespace=namespace,
            location=location,
            backfills=backfills,
            hold_kind=batchor.hold_kind,
            now=runner.clock.now(),
        )
        cancellation.end_groups(groups)
        cancellation.end_terminated(before.looked_at)
        awake_since = _awake_since(before, looked_at)
        if looked_at - awake_since >= AWAKE_SECONDS:
            cancellation.end_stuck()
        after = cancellation.take_turn(before.after)
        tick = _Tick(context, runner, location, cancellation, jobs)
        requests = tick.requests(time_box)
        tick.end_left(time_box)
        waiting = store.waiter_groups(namespace, GROUP_FIELDS)
        closed = backfills.close_unneeded(holds, {group.fields[0] for group in waiting})
    skip = f"{sum(group.count for group in waiting)} waiting, {closed} hold(s) closed"
    return dg.SensorResult(
        run_requests=requests,
        asset_events=list(islice(tick.news(), EVENTS_PER_TICK)),
        cursor=MaterializeCursor(
            after=after, looked_at=looked_at, awake_since=awake_since, seen=seen
        ).model_dump_json(),
        skip_reason=None if requests else "; ".join([skip, *missing]),
    )


def _awake_since(before: MaterializeCursor, now: float) -> float:
    """Return since when the sensor has ticked without a longer gap, as Unix time."""
    gap_s = now - (before.looked_at or 0.0)
    known = before.awake_since if gap_s <= _AWAKE_GAP_S else None
    return now if known is None else known


def _location(
    context: dg.SensorEvaluationContext,
    assets: Mapping[str, BatchAssetDeclaration] | None,
    gone_after_s: float,
) -> CodeLocation:
    repository = context.repository_def
    if repository is None:  # otherwise all assets would seem to be removed
        raise ConfigurationError("give the sensor's context a repository_def")
    found = declarations_of(repository.assets_defs_by_key.values())
    return CodeLocation(
        found if assets is None else {k: found[k] for k in assets if k in found},
        repository,
        label_of_sensor(context),
        only=None if assets is None else frozenset(assets),
        gone_after_s=gone_after_s,
        instance=context.instance,
    )


class _Tick:
    """Requests the Dagster runs of ready waiters.

    Assets and backfills take turns, each with its oldest waiters first, so that three partitions do
    not wait behind ten thousand that were requested before.
    """

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        runner: BatchRunner,
        location: CodeLocation,
        cancellation: Cancellation,
        jobs: Collection[str],
    ) -> None:
        self._log = context.log
        self._instance = context.instance
        self._store: OrchestratorStore = runner.store
        self._namespace = runner.namespace
        self._location = location
        self._cancellation = cancellation
        self._launcher = Launcher(location.repository, location.partitions, jobs)
        self._moot: list[tuple[AssetWaiter, str]] = []
        self._news: list[dg.AssetCheckEvaluation | dg.AssetObservation] = []

    def requests(self, time_box: TimeBox) -> list[dg.RunRequest]:
        """Return the run requests of this tick."""
        waiters = self._wanted(self._ready())
        runs = LaunchedRuns(self._instance)
        runs.look_up(key for waiter in waiters for key in run_keys(waiter))
        serving = Serving(
            store=self._store,
            members=lru_cache(maxsize=_MEMBERS_KEPT)(self._store.list_members),
            attempt=lru_cache(maxsize=_ATTEMPTS_KEPT)(partial(Attempt.of, self._instance)),
            declarations=self._location.declarations,
            partitions=self._location.partitions,
            is_settled=self._location.is_settled,
            runs=runs,
            launcher=self._launcher,
            families=load_families(
                self._store, self._instance, self._namespace, waiters, self._launcher.ancestors
            ),
            tell=self._tell,
        )
        groups = defaultdict(list)
        for waiter in waiters:
            groups[waiter.stored.asset, waiter.spec.backfill].append(waiter)
        found: list[dg.RunRequest] = []
        turns = [_turn(serving, group) for group in groups.values()]
        while turns:
            for turn in list(turns):
                if len(found) >= RUN_REQUESTS_PER_TICK or time_box.is_over:
                    return found
                request = next(turn, None)
                if request is None:
                    turns.remove(turn)
                else:
                    found.append(request)
        return found

    def end_left(self, time_box: TimeBox) -> None:
        """Cancel ready waiters whose backfill, hold, request or partition is gone."""
        for waiter, reason in self._moot:
            if time_box.is_over:
                return
            self._cancellation.end(waiter.stored, reason)

    def news(self) -> Iterator[dg.AssetCheckEvaluation | dg.AssetObservation]:
        """Yield the observations and failed checks that no Dagster run would show."""
        for waiter, reason in self._cancellation.stuck:
            self._tell(waiter, waiter.stored.partitions, reason, is_final=True)
        yield from self._news

    def _tell(
        self, waiter: AssetWaiter, partitions: Sequence[str], reason: str, *, is_final: bool
    ) -> None:
        self._log.warning("asset %r: %s", waiter.stored.asset, reason)
        declaration = self._location.declarations[waiter.stored.asset]
        status = {META_PROGRESS_BATCH_RUN: waiter.run.run_id, META_PROGRESS_STATUS: reason}
        self._news += observations(declaration.key, partitions, status)
        if is_final:
            active = declaration.active_checks
            self._news += unanswered(declaration.key, active, partitions, reason)

    def _wanted(self, waiters: Sequence[AssetWaiter]) -> list[AssetWaiter]:
        found = [(waiter, self._cancellation.reason_to_cancel(waiter)) for waiter in waiters]
        self._moot += [(waiter, reason) for waiter, reason in found if reason is not None]
        return [waiter for waiter, reason in found if reason is None]

    def _ready(self) -> list[AssetWaiter]:
        waiters = self._store.ready_waiters(
            self._namespace,
            "backfill",
            per_group=READY_PER_BACKFILL,
            limit=MOST_READY,
            assets=sorted(self._location.declarations),
        )
        return [
            waiter
            for waiter in load_waiters(self._store, self._instance, waiters)
            if waiter.is_ready
            and self._location.serves(waiter.stored.asset, waiter.spec.repository)
        ]


def _turn(serving: Serving, waiters: Sequence[AssetWaiter]) -> Iterator[dg.RunRequest]:
    """Yield the run requests of one asset's and backfill's waiters, oldest first."""
    not_ended = 0
    for waiter in waiters:
        for request in serving.serve(waiter):
            not_ended += 1
            if request is not None:
                yield request
            if not_ended >= RUNS_PER_BACKFILL:
                return
