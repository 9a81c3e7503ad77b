"""A tick of the materialize sensor: it serves finished batch runs, and ends what nobody wants.

What it costs grows with the number of assets, backfills and finished batch runs; waiters whose
batch runs go on cost it a few hundred looks in turns, however many they are.
"""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import dagster as dg

from batchor_core import BatchRunner
from batchor_core.integration import Store, WaiterState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.sensors.ticks import (
    RUN_REQUESTS_PER_TICK,
    Cursor,
    location_of_sensor,
    runner_of,
)
from batchor_dagster.waiting.backfills import Backfills
from batchor_dagster.waiting.cancellation import GROUP_FIELDS, Unwanted
from batchor_dagster.waiting.launched_runs import LaunchedRuns
from batchor_dagster.waiting.segments import cut, give_up_gone
from batchor_dagster.waiting.sensor_status import MATERIALIZE_SENSOR
from batchor_dagster.waiting.serving import (
    Wish,
    has_to_wait,
    load_wishes,
    run_keys,
    serve,
)
from batchor_dagster.waiting.siblings import descendants_by_partition, load_relatives, siblings_of
from batchor_dagster.waiting.time_box import TimeBox

RUNS_PER_BACKFILL = 50
"""Dagster runs of one asset and backfill that have not ended: Dagster starts its runs one after
another, and those of a big backfill would stand in front of all others for hours."""

READY_PER_BACKFILL = RUNS_PER_BACKFILL + RUN_REQUESTS_PER_TICK
MOST_READY = 1000


class MaterializeCursor(Cursor):
    """What the materialize sensor remembers from one tick to the next.

    A cursor that cannot be read is started over: at worst some waiters are looked at again.

    Attributes:
        after: The waiter that was looked at last, of those that are looked at in turns.
        looked_at: When the last tick began, as Unix time.
    """

    after: str | None = None
    looked_at: float | None = None


def materialize_tick(
    context: dg.SensorEvaluationContext, declarations: Mapping[str, BatchAssetDeclaration]
) -> dg.SensorResult:
    """End what nobody wants any more, and ask for Dagster runs that materialize what is ready."""
    before, looked_at = MaterializeCursor.parse(context.cursor), time.time()
    time_box = TimeBox()
    with runner_of(context, MATERIALIZE_SENSOR) as runner:
        store, namespace = runner.store, runner.namespace
        backfills = Backfills(context.instance, location_of_sensor(context))
        holds = backfills.open_holds()
        unwanted = Unwanted(context, runner, declarations, backfills)
        unwanted.end_groups(store.waiter_groups(namespace, GROUP_FIELDS))
        unwanted.end_terminated(before.looked_at)
        after = unwanted.take_turn(before.after)
        serving = _Serving(context, runner, declarations, unwanted)
        requests = serving.requests(time_box)
        serving.end_unwanted(time_box)
        waiting = store.waiter_groups(namespace, GROUP_FIELDS)
        closed = backfills.close_unneeded(holds, {group.fields[0] for group in waiting})
    skip = f"{sum(group.count for group in waiting)} waiting, {closed} hold(s) closed"
    return dg.SensorResult(
        run_requests=requests,
        cursor=MaterializeCursor(after=after, looked_at=looked_at).model_dump_json(),
        skip_reason=None if requests else skip,
    )


class _Serving:
    """Asks for the Dagster runs of ready wishes, fairly.

    The assets and backfills take turns, each with its oldest wishes first: three partitions do not
    wait for ten thousand that were asked for before.
    """

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        runner: BatchRunner,
        declarations: Mapping[str, BatchAssetDeclaration],
        unwanted: Unwanted,
    ) -> None:
        self._instance = context.instance
        self._store: Store = runner.store
        self._namespace = runner.namespace
        self._declarations = declarations
        self._unwanted = unwanted
        self._runs = LaunchedRuns(context.instance)
        self._launched: set[str] = set()
        self._nobodys: list[tuple[Wish, str]] = []

    def requests(self, time_box: TimeBox) -> list[dg.RunRequest]:
        """Return what to launch now."""
        wishes = self._wanted(self._ready())
        relatives = load_relatives(self._store, self._instance, self._namespace, wishes)
        ended = [one for one in relatives if one.waiter.state is not WaiterState.OPEN]
        still_open = [one for one in relatives if one.waiter.state is WaiterState.OPEN]
        self._siblings = siblings_of([*wishes, *self._wanted(still_open), *ended])
        self._runs.look_up(key for wish in wishes for key in run_keys(wish))
        groups = defaultdict(list)
        for wish in wishes:
            groups[wish.waiter.asset, wish.request.backfill].append(wish)
        found: list[dg.RunRequest] = []
        turns = [self._of_group(group) for group in groups.values()]
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

    def end_unwanted(self, time_box: TimeBox) -> None:
        """End those of the ready wishes that turned out to be nobody's any more."""
        for wish, reason in self._nobodys:
            if time_box.is_over:
                return
            self._unwanted.end(wish.waiter, reason)

    def _wanted(self, wishes: Sequence[Wish]) -> list[Wish]:
        reasons = [(wish, self._unwanted.reason(wish)) for wish in wishes]
        self._nobodys += [(wish, reason) for wish, reason in reasons if reason is not None]
        return [wish for wish, reason in reasons if reason is None]

    def _ready(self) -> list[Wish]:
        waiters = self._store.ready_waiters(
            self._namespace, "backfill", per_group=READY_PER_BACKFILL, limit=MOST_READY
        )
        wishes = load_wishes(self._store, self._instance, waiters)
        return [wish for wish in wishes if wish.is_ready]

    def _of_group(self, wishes: Sequence[Wish]) -> Iterator[dg.RunRequest]:
        """Yield what the wishes of one asset and backfill need now, oldest first."""
        not_ended = 0
        for wish in wishes:
            theirs = self._siblings[wish.waiter.waiter_id]
            if has_to_wait(self._runs, theirs, self._launched):
                continue
            along = descendants_by_partition(wish, theirs)
            for request in serve(self._store, self._runs, self._cut(wish, along), along):
                not_ended += 1
                if request is not None:
                    self._launched.add(wish.waiter.waiter_id)
                    yield request
                if not_ended >= RUNS_PER_BACKFILL:
                    return

    def _cut(self, wish: Wish, along: Callable[[str], frozenset[str]]) -> Wish:
        """Return a wish whose partitions are cut into what one Dagster run can materialize."""
        declaration = self._declarations[wish.waiter.asset]
        if len(wish.waiter.partitions) < 2 or declaration.partitions_def is None:
            return wish
        partitions, definition = self._unwanted.partitions, declaration.partitions_def
        places = partitions.places(definition)
        waiter = cut(
            self._store,
            wish.waiter,
            wish.run,
            places=places,
            is_rectangle=partitions.is_rectangle(definition, wish.waiter.partitions),
            along=along,
            max_failure_rate=declaration.max_failure_rate,
        )
        return dataclasses.replace(wish, waiter=give_up_gone(self._store, waiter, places))
