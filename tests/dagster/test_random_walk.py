"""Whatever changes while a batch is in flight: each request ends, and takes nobody else down."""

import os
import random
import secrets
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from batchor_core.integration import Waiter
from batchor_core.model.states import WaiterState
from batchor_core.planning import tokens
from batchor_dagster.constants import (
    TAG_BACKFILL,
    TAG_KIND,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    RunKind,
)
from batchor_dagster.sensors import materialize_tick
from batchor_dagster.testing import InProcessDaemon, QueuedRun
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import MAX_ATTEMPTS, Launch, LaunchState, launches_of
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR
from tests.core.mortal import DiedError
from tests.dagster.changing_location import (
    BATCH_ASSETS,
    KEYS,
    KINDS,
    SHARED,
    ChangingLocation,
    Deployment,
    prompts_of,
)
from tests.dagster.mortality import MortalBatchorResource
from tests.dagster.world import BATCH_SECONDS, ROWS, World, open_world, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")

EXAMPLES = int(os.environ.get("BATCHOR_WALK_EXAMPLES", "10"))
"""How many walks; a night is good for some thousands."""
SEED = os.environ.get("BATCHOR_WALK_SEED")
"""Which ones; by default the same in each run."""

DAYS = st.sampled_from(KEYS)
REFRESHES = st.sampled_from(["changed", "changed", "changed", "all"])
SENSORS = st.sampled_from([ADVANCE_SENSOR, MATERIALIZE_SENSOR])
SELECTIONS = st.sampled_from(
    [
        ("answers",),
        ("answers", "report"),
        ("answers", "flaky"),
        ("answers", "deeper"),
        ("second", SHARED),
        ("answers", "second", SHARED),
        ("answers", "report", "flaky", "deeper", "second", SHARED),
        ("new_answers", "new_report"),
    ]
)
TICK_S = 60.0
SETTLING_TICKS = 14
"""After so many ticks with five minutes between them, what is missing is gone."""


class Time:
    """What ticks take for the time of day."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now


class Ids:
    """The ids that this thread makes, by a seed: much is sorted by them.

    A walk that failed can be walked again, since Hypothesis prints the seed with its steps.
    """

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self._random = random.Random()
        self._thread = threading.get_ident()
        self._choose_any, self._any_uuid = secrets.choice, uuid.uuid4
        patches.setattr(secrets, "choice", self._choice)
        patches.setattr(uuid, "uuid4", self._uuid4)

    def seed(self, number: int) -> None:
        self._random.seed(number)

    @property
    def _is_walking(self) -> bool:
        return threading.get_ident() == self._thread

    def _choice(self, letters: str) -> str:
        return self._random.choice(letters) if self._is_walking else self._choose_any(letters)

    def _uuid4(self) -> uuid.UUID:
        if not self._is_walking:
            return self._any_uuid()
        return uuid.UUID(int=self._random.getrandbits(128), version=4)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A Dagster run that people have launched.

    Attributes:
        tags: Its own, without those of partitions.
        partitions: One, or the first and the last of a range.
    """

    run_id: str
    root: str
    selection: tuple[str, ...]
    partitions: tuple[str, ...]
    tags: Mapping[str, str]
    version: int
    is_success: bool


@dataclass(kw_only=True)
class Deeds:
    """What people have done, so that it is no surprise in the end.

    Attributes:
        terminated: Dagster runs.
        cancelled: Backfills.
        redeployed: Names of the assets that were changed.
        refreshed: Batch assets and partitions of which all rows were asked again.
        asked: All that was asked.
    """

    terminated: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    redeployed: set[str] = field(default_factory=set)
    refreshed: set[tuple[str, str]] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    deaths: int = 0
    has_flaky_failed: bool = False
    has_check_failed: bool = False
    has_repeated_a_materialize_run: bool = False


class Walk(RuleBasedStateMachine):
    """People who ask, cancel and deploy, beside a daemon whose processes die."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        patches = self._stack.enter_context(pytest.MonkeyPatch.context())
        patches.setattr(tokens, "load_vocabulary", lambda model: None)
        self.ids = Ids(patches)
        self.time = Time()
        patches.setattr(materialize_tick, "time", self.time)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.world: World = self._stack.enter_context(open_world(Path(folder)))
        self.deeds = Deeds()
        self.deployment = Deployment()
        self.backfills: list[str] = []
        self.queue: list[QueuedRun] = []
        self.is_full = False
        self.is_put_back = False

    @initialize(
        is_patient=st.booleans(),
        is_put_back=st.booleans(),
        names=SELECTIONS,
        day=DAYS,
        ids=st.integers(0, 2**32),
    )
    def somebody_waits(
        self, names: Sequence[str], day: str, *, is_patient: bool, is_put_back: bool, ids: int
    ) -> None:
        """The upstream asset is materialized, and nobody will touch the calm one."""
        self.ids.seed(ids)
        gone_after_s = 3600.0 if is_patient else 0.0
        self.is_patient = is_patient
        self.death = MortalBatchorResource.of(self.world, gone_after_s=gone_after_s)
        self.is_put_back = is_put_back
        self.location = ChangingLocation(make=self.world.definitions)
        self.daemon: InProcessDaemon = self.world.daemon(
            [self.location.definitions(self.deployment)]
        )
        self._store_tickets()
        assert self._launch(("calm",), ("d1",)).is_success
        self.deeds.asked.clear()  # nobody touches those
        self.ask(names, day, in_backfill=is_patient, refresh="changed")

    # -- people who ask -----------------------------------------------------------------------

    @rule(names=SELECTIONS, day=DAYS, in_backfill=st.booleans(), refresh=REFRESHES)
    def ask(self, names: Sequence[str], day: str, *, in_backfill: bool, refresh: str) -> None:
        """A request, alone or in a backfill, with what is downstream of it or without."""
        there = [names[0]] if self.deployment.runs(names[:1], [day]) else []
        for name in names[1:]:
            there += [name] if self.deployment.runs([*there, name], [day]) else []
        if not set(there) & {*BATCH_ASSETS, "new_answers"}:
            return
        config = {}
        if refresh == "all" and "second" in there:
            config = {"ops": {"second": {"config": {"refresh": "all"}}}}
            self.deeds.refreshed.add(("second", day))
        self._launch(there, (day,), self._backfill(there) if in_backfill else {}, config)

    @rule(days=st.tuples(DAYS, DAYS), with_report=st.booleans(), in_backfill=st.booleans())
    def ask_for_a_range(
        self, days: tuple[str, str], *, with_report: bool, in_backfill: bool
    ) -> None:
        """A request for several partitions at once."""
        names = ("ranged", "ranged_report") if with_report else ("ranged",)
        tags = self._backfill(names) if in_backfill else {}
        self._launch(names, tuple(sorted(days)), tags)

    @precondition(lambda self: self.deeds.asked)
    @rule(data=st.data())
    def execute_again(self, data: st.DataObject) -> None:
        """Somebody executes a request again, by the definitions of now."""
        before = data.draw(st.sampled_from(self.deeds.asked))
        if not self.deployment.runs(before.selection, before.partitions):
            return  # Dagster refuses it
        parents = {"dagster/parent_run_id": before.run_id, "dagster/root_run_id": before.root}
        self._launch(before.selection, before.partitions, {**before.tags, **parents})

    @precondition(lambda self: self._failed_materialize_runs())
    @rule(data=st.data())
    def execute_a_materialize_run_again(self, data: st.DataObject) -> None:
        """Somebody executes a materialize run again that has failed."""
        run = data.draw(st.sampled_from(self._failed_materialize_runs()))
        names = tuple(sorted(key.to_user_string() for key in run.asset_selection or ()))
        start, end = run.tags.get(TAG_PARTITION_RANGE_START), run.tags.get(TAG_PARTITION_RANGE_END)
        keys = (start, end) if start and end else (run.tags["dagster/partition"],)
        if not self.deployment.runs(names, keys):
            return
        tags = {key: value for key, value in run.tags.items() if key != "dagster/partition"}
        tags |= {"dagster/parent_run_id": run.run_id}
        tags |= {"dagster/root_run_id": run.root_run_id or run.run_id}
        self.deeds.has_repeated_a_materialize_run = True
        self._launch(names, keys, tags)

    # -- people who stop something ------------------------------------------------------------

    @precondition(lambda self: self.deeds.asked)
    @rule(data=st.data())
    def terminate(self, data: st.DataObject) -> None:
        """Somebody terminates a request."""
        self._terminate(data.draw(st.sampled_from(self.deeds.asked)).run_id)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def terminate_queued(self, data: st.DataObject) -> None:
        """Somebody terminates what waits in the queue."""
        self._terminate(data.draw(st.sampled_from(self.queue)).run_id)

    @precondition(lambda self: self.backfills)
    @rule(data=st.data())
    def cancel_backfill(self, data: st.DataObject) -> None:
        """Somebody cancels a backfill."""
        chosen = data.draw(st.sampled_from(self.backfills))
        backfill = self.world.instance.get_backfill(chosen)
        assert backfill is not None
        self.world.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELING))
        self.deeds.cancelled.add(chosen)

    # -- people who deploy --------------------------------------------------------------------

    @rule(what=st.sampled_from(["tickets", "answers", "report"]), kind=st.sampled_from(KINDS))
    def deploy(self, what: str, kind: str) -> None:
        """An asset up- or downstream is renamed, repartitioned, removed, or as it was."""
        self._deploy(**{what: kind})

    @rule()
    def deploy_prompt(self) -> None:
        """The prompt becomes another one."""
        self._deploy(version=self.deployment.version + 1)

    @rule(flaky_fails=st.booleans(), check_passes=st.booleans())
    def moods(self, *, flaky_fails: bool, check_passes: bool) -> None:
        """What is downstream, and the blocking check, fail from now on, or do not any more."""
        self.location.mood.flaky_fails = flaky_fails
        self.location.mood.check_passes = check_passes
        self.deeds.has_flaky_failed |= flaky_fails
        self.deeds.has_check_failed |= not check_passes

    # -- machines -----------------------------------------------------------------------------

    @rule()
    def provider_works(self) -> None:
        """Time passes."""
        self.world.pass_time(BATCH_SECONDS)

    @rule(passing=st.integers(1, 12))
    def somebody_will_die(self, passing: int) -> None:
        """The process that comes to this commit from now dies at it."""
        self.death.die_at(passing)
        self.deeds.deaths += 1

    @rule(is_full=st.booleans())
    def slots(self, *, is_full: bool) -> None:
        """The run queue is full, or has slots again."""
        self.is_full = is_full

    @rule(sensor=SENSORS, launches=st.sampled_from(["all", "all", "all", "half"]))
    def tick(self, sensor: str, launches: str) -> None:
        """A sensor ticks, and what it asks for is executed, or waits for a slot.

        The daemon may die before it has launched all of it: the cursor is stored afterwards.
        """
        self.time.now += TICK_S
        cursor = self.world.cursors.get(sensor)
        try:
            requests = self.daemon.requests(sensor)
        except DiedError:
            return
        if launches == "half":
            requests = requests[: len(requests) // 2]
            self.world.cursors[sensor] = cursor
        queued = [self.daemon.enqueue(request) for request in requests]
        self.queue += queued
        if not self.is_full:
            for run in queued:
                self._execute(run)

    @precondition(lambda self: self.is_patient and self.deeds.redeployed)
    @rule()
    def an_hour_of_ticks(self) -> None:
        """What is missing for so long is gone."""
        for _ in range(SETTLING_TICKS if self.is_patient else 2):
            self.time.now += 4 * TICK_S
            self.tick(MATERIALIZE_SENSOR, "all")

    @rule()
    def the_daemon_works(self) -> None:
        """Time passes, and each sensor ticks."""
        self.provider_works()
        self.tick(ADVANCE_SENSOR, "all")
        self.tick(MATERIALIZE_SENSOR, "all")

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def execute_queued(self, data: st.DataObject) -> None:
        """A slot becomes free for any of the queued runs."""
        self._execute(data.draw(st.sampled_from(self.queue)))

    def teardown(self) -> None:
        """Come to rest, and look what has become of everybody."""
        try:
            if self.deeds.asked:
                self._come_to_rest()
                Outcome(self.world, self.deeds, self.deployment).check()
        finally:
            self._stack.close()

    # -- how it is done -----------------------------------------------------------------------

    def _store_tickets(self) -> None:
        manager = self.world.resources["io_manager"]
        for key in KEYS:
            with dg.build_output_context(asset_key=dg.AssetKey("tickets"), partition_key=key) as to:
                manager.handle_output(to, rows_of(key))

    def _launch(
        self,
        names: Sequence[str],
        partitions: tuple[str, ...],
        tags: Mapping[str, str] | None = None,
        config: Any = None,
    ) -> Asked:
        """Launch as the UI does; note it."""
        is_range = len(partitions) > 1
        own = dict(tags or {})
        span = {TAG_PARTITION_RANGE_START: partitions[0], TAG_PARTITION_RANGE_END: partitions[-1]}
        result = self.daemon.materialize(
            [dg.AssetKey(name) for name in names],
            partition_key=None if is_range else partitions[0],
            tags=own | (span if is_range else {}),
            run_config=config,
        )
        asked = Asked(
            run_id=result.run_id,
            root=own.get("dagster/root_run_id", result.run_id),
            selection=tuple(names),
            partitions=partitions,
            tags={k: v for k, v in own.items() if k == TAG_BACKFILL},
            version=self.deployment.version,
            is_success=result.success,
        )
        self.deeds.asked.append(asked)
        return asked

    def _backfill(self, names: Sequence[str]) -> dict[str, str]:
        backfill_id = uuid.uuid4().hex[:8]
        self.world.instance.add_backfill(
            PartitionBackfill(
                backfill_id=backfill_id,
                status=BulkActionStatus.REQUESTED,
                from_failure=False,
                tags={},
                backfill_timestamp=1.0,
                asset_selection=[dg.AssetKey(name) for name in names],
                partition_names=KEYS,
            )
        )
        self.backfills.append(backfill_id)
        return {TAG_BACKFILL: backfill_id}

    def _failed_materialize_runs(self) -> list[dg.DagsterRun]:
        failed = dg.RunsFilter(
            tags={TAG_KIND: RunKind.MATERIALIZE.value}, statuses=[dg.DagsterRunStatus.FAILURE]
        )
        return list(self.world.instance.get_runs(failed))

    def _terminate(self, run_id: str) -> None:
        run = self.world.instance.get_run_by_id(run_id)
        assert run is not None
        self.world.instance.report_run_canceled(run)
        self.deeds.terminated.add(run_id)

    def _deploy(self, **changes: Any) -> None:
        self.deployment = replace(self.deployment, **changes)
        self.daemon.deploy(self.location.definitions(self.deployment))
        self.deeds.redeployed |= set(changes)

    def _execute(self, run: QueuedRun) -> None:
        self.queue.remove(run)
        self.daemon.execute(run)

    def _come_to_rest(self) -> None:
        self.death.live()
        self.is_full = False
        self.moods(flaky_fails=False, check_passes=True)
        if self.is_put_back:
            self._deploy(tickets="there", answers="there", report="there")
        while self.queue:
            self._execute(self.queue[0])
        self.world.pass_time(BATCH_SECONDS)  # leases of the dead run out
        self.daemon.drive()
        self.daemon.serve()
        assert self.world.materialized("calm") == ["d1"], "who was not touched was not served"
        for _ in range(3):
            self.daemon.finish()
            if not self.world.open_waiters:
                break
            self.world.pass_time(BATCH_SECONDS)
            self.an_hour_of_ticks()


@dataclass(frozen=True)
class Outcome:
    """What has become of everybody, at the end of a walk."""

    world: World
    deeds: Deeds
    deployment: Deployment

    def check(self) -> None:
        """Fail if somebody is worse off than what was done explains."""
        self._check_all_ended()
        for waiter in self.world.waiters:
            self._check_waiter(waiter)
        self._check_requests()
        self._check_paid_once()

    def _check_all_ended(self) -> None:
        still_open = [w for w in self.world.waiters if w.state is WaiterState.OPEN]
        assert still_open == [], "a request has not ended"
        unfinished = [run for run in self.world.runs if not run.state.is_terminal]
        assert unfinished == [], "a batch run has not ended"
        going = [run.run_id for run in self.world.instance.get_runs() if not run.is_finished]
        assert going == [], "a Dagster run has not ended"

    def _check_waiter(self, waiter: Waiter) -> None:
        match waiter.state:
            case WaiterState.CANCELLED:
                assert self._is_unwanted(waiter), f"cancelled by nobody: {waiter}"
            case WaiterState.FAILED:
                assert self._has_failed(waiter), f"failed for no reason: {waiter}"
            case _:
                for partition in waiter.partitions:
                    self._check_table(waiter.asset, partition)
        for launch in launches_of(waiter, LaunchSpec.of_waiter(waiter)):
            self._check_launch(waiter, launch)

    def _is_unwanted(self, waiter: Waiter) -> bool:
        spec = LaunchSpec.of_waiter(waiter)
        if spec.backfill in self.deeds.cancelled:
            return True
        if {spec.dagster_run, *spec.joined} <= self.deeds.terminated:
            return True
        reason = waiter.reason or ""
        if "not defined any more" in reason:
            return "answers" in waiter.asset and "answers" in self.deeds.redeployed
        return "its Dagster run was terminated" in reason and bool(self.deeds.terminated)

    def _has_failed(self, waiter: Waiter) -> bool:
        reason = waiter.reason or ""
        if "blocking asset check" in reason:
            return waiter.asset == "answers" and self.deeds.has_check_failed
        if "failed 3 times" in reason:
            return self.deeds.deaths >= MAX_ATTEMPTS
        return False

    def _check_launch(self, waiter: Waiter, launch: Launch) -> None:
        """What is downstream is materialized too, unless something was done to it."""
        if waiter.state is not WaiterState.SERVED or "launches" not in waiter.progress:
            return
        for name in launch.done:
            self._check_materialized(name, launch.partitions)
        further = {n for n in launch.assets if n in BATCH_ASSETS and n != waiter.asset}
        missing = set(launch.assets) - set(launch.done) - further
        if launch.state is LaunchState.MATERIALIZED:
            for name in further:
                self._check_was_asked(name, launch.partitions)
        if launch.state is LaunchState.CANCELLED:
            assert self.deeds.terminated or "answers" in self.deeds.redeployed, (waiter, launch)
        elif "report" in self.deeds.redeployed or self.deeds.has_check_failed:
            return
        elif missing:
            causes = {"flaky"} if self.deeds.has_flaky_failed else set()
            assert missing <= causes or self.deeds.deaths >= MAX_ATTEMPTS, (waiter, launch)

    def _check_was_asked(self, asset: str, partitions: Sequence[str]) -> None:
        """A batch asset further downstream is asked for by the run that materializes the first.

        Its request may have joined an equal one, of another root run.
        """
        found = {key for w in self.world.waiters if w.asset == asset for key in w.partitions}
        assert set(partitions) <= found, (asset, partitions)

    def _check_materialized(self, asset: str, partitions: Sequence[str]) -> None:
        assert set(partitions) <= set(self.world.materialized(asset)), (asset, partitions)

    def _check_table(self, asset: str, partition: str) -> None:
        self._check_materialized(asset, [partition])
        table = self.world.table(asset, partition)
        assert table["batch_status"].to_list() == ["ok"] * ROWS
        prompts = table["prompt"].to_list()
        for prompt, text in zip(prompts, table["output_text"], strict=True):
            assert prompt in text, "an answer to another row"
        assert len(set(prompts)) == ROWS
        assert all(f"Judge {partition} row {n};" in p for n, p in enumerate(prompts)), prompts
        if asset not in ("answers", "new_answers", "deeper"):
            assert prompts == prompts_of(asset, partition)["prompt"].to_list()
        elif asset != "deeper" and not self.deeds.has_repeated_a_materialize_run:
            self._check_newest(asset, partition, prompts[0])

    def _check_newest(self, asset: str, partition: str, prompt: str) -> None:
        """The answers are those to the prompt of whoever has asked last."""
        asked = [a for a in self.deeds.asked if asset in a.selection and partition in a.partitions]
        if self.deeds.cancelled or self.deeds.terminated or not all(a.is_success for a in asked):
            return
        assert prompt.startswith(f"{asset} v{asked[-1].version}: "), (prompt, asked)

    def _check_requests(self) -> None:
        """Whoever has asked, and was not told that it went wrong, has a waiter."""
        known = set()
        for waiter in self.world.waiters:
            spec = LaunchSpec.of_waiter(waiter)
            known |= {
                (waiter.asset, run) for run in (spec.dagster_run, spec.root_run, *spec.joined)
            }
        for asked in self.deeds.asked:
            if not asked.is_success or asked.run_id in self.deeds.terminated:
                continue
            for name in set(asked.selection) & {"answers", "new_answers", "second", "ranged"}:
                assert {(name, asked.run_id), (name, asked.root)} & known, (name, asked)

    def _check_paid_once(self) -> None:
        ledger = self.world.sim.ledger()
        assert ledger.paid_twice() == []
        asked_again = {
            run.run_id
            for run in self.world.store.list_runs()
            for member in self.world.store.list_members(run.run_id)
            if (member.identity.asset, member.identity.partition) in self.deeds.refreshed
        }
        paid: Counter[str] = Counter()
        where: dict[str, list[Any]] = {}
        for entry in ledger.entries():
            if entry["billed"] and not entry["fault"] and entry["run"] not in asked_again:
                paid[entry["digest"]] += 1
                where.setdefault(entry["digest"], []).append(entry)
        twice = [where[digest] for digest, times in paid.items() if times > 1]
        assert twice == [], "the same request was paid for twice, in two batch runs"


TestRandomWalk = pytest.mark.timeout(3600)(
    seed(int(SEED))(Walk.TestCase) if SEED else Walk.TestCase
)
TestRandomWalk.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    derandomize=SEED is None,
    database=None,
    print_blob=True,
    phases=[Phase.generate],  # a walk is short, and shrinking one takes minutes
    suppress_health_check=list(HealthCheck),
)
