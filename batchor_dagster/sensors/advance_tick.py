"""A tick of the advance sensor: polls providers and launches runs of ``batchor_advance``.

The cost of a tick grows with the number of accounts, of scopes, and of batch runs that have work. A
batch run that waits for its provider costs its share of a list call.
"""

import time
from collections.abc import Sequence
from itertools import chain, zip_longest

import dagster as dg
from pydantic import BaseModel, Field

from batchor_core import BatchRunner, RunControlState, TimingPolicy
from batchor_core.integration import HEAVY_STEPS, OpenWork, Walk, due_steps
from batchor_dagster.constants import (
    ADVANCE_JOB,
    RESUME_JOB,
    TAG_KIND,
    TAG_MAX_RETRIES,
    TAG_PRIORITY,
    RunKind,
)
from batchor_dagster.sensors.advance_job import UNUSABLE, run_config
from batchor_dagster.sensors.launched_advances import Launched, still_going
from batchor_dagster.sensors.pause_news import news_of_pauses
from batchor_dagster.sensors.ticks import RUN_REQUESTS_PER_TICK, Cursor, runner_of
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR
from batchor_dagster.waiting.time_box import TICK_SECONDS

BATCH_RUNS_PER_ADVANCE = 20
"""Starting a Dagster run takes seconds, so several batch runs share one."""

ADVANCES_AT_ONCE = 50
"""How many unended runs of ``batchor_advance`` there may be: more would block Dagster's queue."""

SENDING_AT_ONCE = 100
"""How many batch runs of one scope may be advanced at once only to send what is ready."""

FULL_SCOPE_SECONDS = 300.0
"""The sensor tries a full scope again after this time, or when one of its batches has ended."""

POLL_SECONDS = TICK_SECONDS * 2 / 3


class AdvanceCursor(Cursor):
    """What the advance sensor remembers from one tick to the next.

    The sensor starts over if it cannot read its cursor. At worst it then launches a batch run
    twice, of which the lease lets one advance, reads the list of batches again from the first page,
    and repeats observations of pauses.

    Attributes:
        launched: The runs of ``batchor_advance`` that may still be going on, by run key.
        told: The number of the last pause event that was shown as an observation.
        walks: Where reading an account's list of batches was cut off, by account.
        tried: The last attempt to send in each scope.
    """

    class Tried(BaseModel):
        """Batch runs that were launched to send what is ready.

        Attributes:
            live: How many provider batches of the scope were live then.
            at: When, as Unix time in seconds.
        """

        batch_runs: list[str]
        live: int
        at: float

    launched: dict[str, Launched] = Field(default_factory=dict)
    told: int = 0
    walks: dict[str, Walk] = Field(default_factory=dict)
    tried: dict[str, Tried] = Field(default_factory=dict)


def advance_tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Poll the providers, and request runs of ``batchor_advance`` for batch runs with work."""
    before = AdvanceCursor.parse(context.cursor)
    walks = dict(before.walks)
    with runner_of(context, ADVANCE_SENSOR) as runner:
        runner.poll_due(POLL_SECONDS, walks)
        planner = _Planner(context, runner, before)
        requests = planner.launch()
        told, news = news_of_pauses(runner, before.told)
        skip = None if requests else _what_waits(runner)
    cursor = AdvanceCursor(launched=planner.launched, told=told, walks=walks, tried=planner.tried)
    return dg.SensorResult(
        run_requests=requests,
        asset_events=news,
        cursor=cursor.model_dump_json(),
        skip_reason=skip,
    )


class _Planner:
    """Decides which batch runs to advance now.

    Attributes:
        launched: See ``AdvanceCursor``; with the Dagster runs that this tick requests.
        tried: See ``AdvanceCursor``.
    """

    def __init__(
        self, context: dg.SensorEvaluationContext, runner: BatchRunner, before: AdvanceCursor
    ) -> None:
        self._store = runner.store
        self._namespace = runner.namespace
        self._now = runner.clock.now()
        self.launched = still_going(context.instance, self._store, before.launched)
        self.tried = dict(before.tried)

    def launch(self) -> list[dg.RunRequest]:
        """Return the Dagster runs to launch."""
        free = min(RUN_REQUESTS_PER_TICK, ADVANCES_AT_ONCE - len(self.launched))
        if free <= 0:
            return []
        heavy = _grouped(self._heavy(free * BATCH_RUNS_PER_ADVANCE))
        sending = [
            (scope, group) for scope in self._scopes() for group in _grouped(self._sending(scope))
        ]
        taking_turns = zip_longest(((None, group) for group in heavy), sending)
        plans = [plan for plan in chain.from_iterable(taking_turns) if plan is not None]
        return [self._request(scope, group) for scope, group in plans[:free]]

    def _heavy(self, limit: int) -> list[str]:
        """Return batch runs that have to collect, pack, recover, cancel or finish something."""
        work = self._store.due_work(
            self._namespace, self._now, limit, but=self._busy, but_paused=UNUSABLE
        )
        return [one.run.run_id for one in work if self._is_due(one)]

    def _sending(self, scope: str) -> list[str]:
        """Return batch runs that may send something; none while the scope is known to be full."""
        launched = self.launched.values()
        going = sum(len(one.batch_runs) for one in launched if one.sends_in == scope)
        room = SENDING_AT_ONCE - going
        if room <= 0:
            return []
        work = self._store.due_work(self._namespace, self._now, room, scope=scope, but=self._busy)
        found = [one.run.run_id for one in work if self._is_due(one)]
        if not found:
            return []
        live, at = self._store.live_batches([scope]).get(scope, 0), self._now.timestamp()
        last = self.tried.get(scope)
        is_full = last and last.live == live and set(found) <= set(last.batch_runs)
        if last and is_full and at - last.at < FULL_SCOPE_SECONDS:
            return []
        self.tried[scope] = AdvanceCursor.Tried(batch_runs=found, live=live, at=at)
        return found[:BATCH_RUNS_PER_ADVANCE] if is_full else found

    def _scopes(self) -> list[str]:
        """Return the scopes in which batch runs may send; forget attempts in other scopes."""
        counts = self._store.count_open_runs(self._namespace)
        scopes = sorted({scope for scope, control in counts if control is RunControlState.RUN})
        self.tried = {scope: self.tried[scope] for scope in scopes if scope in self.tried}
        return scopes

    @property
    def _busy(self) -> list[str]:
        return [run_id for one in self.launched.values() for run_id in one.batch_runs]

    def _is_due(self, work: OpenWork) -> bool:
        timing = TimingPolicy.model_validate(work.run.spec["timing"])
        return any(
            due.step in HEAVY_STEPS and due.at <= self._now
            for due in due_steps(work, timing, self._now)
        )

    def _request(self, scope: str | None, group: list[str]) -> dg.RunRequest:
        at = time.time()
        # Dagster skips a run key for ever once it was used, so each launch has a new one.
        run_key = f"batchor:advance:{group[0]}:{int(at * 1000)}"
        self.launched[run_key] = Launched(batch_runs=group, at=at, sends_in=scope)
        return dg.RunRequest(
            run_key=run_key,
            job_name=ADVANCE_JOB,
            run_config=run_config(group),
            tags={
                TAG_KIND: RunKind.ADVANCE.value,
                TAG_MAX_RETRIES: "0",
                TAG_PRIORITY: "1",  # short, and others wait for it
            },
        )


def _grouped(run_ids: Sequence[str]) -> list[list[str]]:
    starts = range(0, len(run_ids), BATCH_RUNS_PER_ADVANCE)
    return [list(run_ids[start : start + BATCH_RUNS_PER_ADVANCE]) for start in starts]


def _what_waits(runner: BatchRunner) -> str:
    counts = runner.store.count_open_runs(runner.namespace)
    text = f"{sum(counts.values())} batch run(s) in progress, none of them has anything heavy due"
    paused = sum(n for (_, control), n in counts.items() if control is RunControlState.PAUSE)
    for pause in runner.store.pauses_since(runner.namespace, 0, 1):
        first = runner.store.get_run(pause.run_id)
        text += f"; {paused} paused, as {first.run_id}: {first.control_reason}"
        text += f" (the job {RESUME_JOB} lets them go on)"
    return text
