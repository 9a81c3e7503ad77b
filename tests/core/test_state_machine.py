"""One run under everything at once: faults, crashes, control, two owners, clocks that jump.

A Hypothesis machine drives a run against a dict of what each row's answer has to be, and the
simulator's ledger of what was paid. ``BATCHOR_SOAK_EXAMPLES`` makes it long; ``scripts/soak`` sets
it.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from batchor_core import BatchRunner, Run
from batchor_core.artifacts import LocalArtifactStore
from batchor_core.errors import LeaseLostError
from batchor_core.executor.cycle import Progress
from batchor_core.model.policies import ArtifactPolicy, ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.model.records import ArtifactRef
from batchor_core.model.states import RunControlState, RunState, SubmissionState
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions
from batchor_core.simulator.answers import NOTICE
from batchor_core.store.sql import SQLiteStorage
from tests.core.mortal import AtProbe, DiedError, MortalStore, Passing
from tests.core.world import BATCH_SECONDS, SharedClock, check_conserved, items, job_for

RUN_ID = "run-1"
LEASE_S = 120.0
SLEEPS = (LEASE_S + 1, 500.0)
"""Seconds that outlast the lease, and the settling time as well."""
LONGEST_RUN_CYCLES = 600
EXAMPLES = int(os.environ.get("BATCHOR_SOAK_EXAMPLES", "0"))
STEPS = 30

CREATE = {"route": "batches.create"}
ROUTES = (
    "files.create",
    "files.content",
    "files.delete",
    "batches.create",
    "batches.get",
    "batches.list",
    "batches.cancel",
)
CALL_FAULTS: tuple[dict[str, Any], ...] = (
    *(
        {"kind": "http_error", "status": s, "match": {"route": r}}
        for s in (429, 500)
        for r in ROUTES
    ),
    *(
        {"kind": "http_error", "status": 401, "code": "invalid_api_key", "match": {"route": route}}
        for route in ROUTES
    ),
    {"kind": "drop_after_commit", "match": CREATE},
    {"kind": "drop_before_commit", "match": CREATE},
    {"kind": "http_error", "status": 200, "body": "<html>", "match": CREATE},
    {"kind": "truncate_download", "match": {"route": "files.content"}},
)
BATCH_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "expire", "fraction": 0.6},
    {"kind": "expire", "fraction": 0.0},
    {"kind": "fail_batch"},
    {
        "kind": "fail_batch",
        "code": "token_limit_exceeded",
        "message": "Enqueued token limit reached for gpt-4.1-mini in organization org-simulator. "
        "Limit: 130 enqueued tokens. Please try again once some batches have completed.",
    },
    {"kind": "list_lag_seconds", "seconds": 100.0},
    {"kind": "not_found_after_create", "gets": 3},
    {"kind": "late_files"},
    {"kind": "late_files", "fields": ["output_file_id"]},
)
LINE_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "line_error", "status": 500},
    {"kind": "line_status_zero"},
    {"kind": "missing_line"},
    {"kind": "duplicate_line", "copies": 3},
    {"kind": "bad_line", "variant": "invalid_utf8"},
    {"kind": "bad_line", "variant": "truncated", "instead": True},
    {"kind": "unknown_line"},
    {"kind": "wrong_custom_id", "custom_id": "never-sent"},
)
REFUSED_FOR_GOOD: dict[str, Any] = {"kind": "line_error", "status": 400, "code": "bad_prompt"}
NAMED_LINE: dict[str, Any] = {
    "kind": "fail_batch",
    "code": "named_line",
    "message": "No.",
    "times": 1,
}


SILENT_TRUNCATION: dict[str, Any] = {
    "kind": "truncate_download",
    "with_length": False,
    "times": 1,
    "match": {"route": "files.content"},
}
ONE_CALL_FAULTS: tuple[dict[str, Any], ...] = (
    SILENT_TRUNCATION,
    {"kind": "hang", "seconds": 5.0, "times": 1, "match": CREATE},
    {"kind": "hang", "seconds": 5.0, "times": 1, "match": CREATE, "after_commit": True},
)
LATE_BATCHES = tuple(
    (
        {"kind": "drop_after_commit", "times": 1, "skip": skip, "match": CREATE},
        {"kind": "list_lag_seconds", "seconds": 150.0},
    )
    for skip in (0, 1)
)
"""A create call without an answer, whose batch is listed late."""
FAULTS = st.one_of(
    st.sampled_from(ONE_CALL_FAULTS),
    st.builds(
        lambda fault, times, skip: {**fault, "times": times, "skip": skip},
        st.sampled_from(CALL_FAULTS),
        st.integers(1, 3),
        st.integers(0, 2),
    ),
    st.builds(
        lambda fault, times: {**fault, "times": times},
        st.sampled_from(BATCH_FAULTS),
        st.integers(1, 2),
    ),
    st.builds(
        lambda fault, row: {**fault, "rounds": 1, "match": {"prompt": f"number {row};"}},
        st.sampled_from(LINE_FAULTS),
        st.integers(0, 14),
    ),
    st.builds(lambda line: {**NAMED_LINE, "line": line}, st.integers(1, 12)),
    st.builds(
        lambda row: {**REFUSED_FOR_GOOD, "match": {"prompt": f"number {row};"}},
        st.integers(0, 14),
    ),
)
WHO = st.integers(0, 1)
PASSING = st.one_of(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["submit.create_allowed", "submit.created", "submit.create_unknown"]),
    ),
    st.tuples(st.integers(1, 12), st.none()),
)
"""The n-th passing of a probe around the create call, where money is at stake, or of any."""


class SkewedClock(SharedClock):
    """Our clock, whose wall time may jump without any time passing."""

    jumped_s = 0.0

    def now(self) -> Any:
        return super().now() + timedelta(seconds=self.jumped_s)


class Process:
    """One process that advances the run: a runner, and what shall happen at its probes."""

    def __init__(self, machine: "RunMachine") -> None:
        self.store = MortalStore(machine.store)
        self.probe = AtProbe()
        self._run: Run | None = None
        self._machine = machine
        self.runner = BatchRunner(
            self.store,  # type: ignore[arg-type]  # a store, but for being alive
            machine.artifacts,
            clock=machine.clock,
            probe=self.probe,
        )

    def advance(self, deadline_s: float | None = None) -> Progress | None:
        """One cycle; None where the run cannot be opened because another process reads its rows."""
        try:
            if self._run is None:
                self._run = self.runner.open(self._machine.job(), run_id=RUN_ID)
            return self._run.advance(deadline_s)
        except LeaseLostError:
            return None

    def close(self) -> None:
        """Close connections; the store is the machine's."""
        self.runner.close()


class RunMachine(RuleBasedStateMachine):
    """A run, two processes that advance it, and a provider in trouble."""

    def __init__(self, simulator: Simulator, folders: Iterator[Path]) -> None:
        super().__init__()
        self.sim = simulator
        self.sim.reset()
        self.clock = SkewedClock(simulator)
        self.store = SQLiteStorage.in_memory(clock=self.clock)
        self.artifacts = LocalArtifactStore(next(folders))
        self.model: dict[str, str] = {}
        self.scripted: list[dict[str, Any]] = []
        self.cancelled = False
        self.cut_short = False
        self.skew_s = 0.0
        self.all_processes: list[Process] = []
        self.processes: list[Process] = []

    @initialize(
        count=st.integers(10, 40),
        size=st.integers(3, 12),
        skew_s=st.sampled_from([0.0, 7200.0, -7200.0]),
        faults=st.lists(FAULTS, min_size=3, max_size=10),
        late=st.sampled_from([*LATE_BATCHES, ()]),
        remote_files=st.sampled_from(["keep", "delete"]),
    )
    def begin(
        self,
        *,
        count: int,
        size: int,
        skew_s: float,
        faults: list[dict[str, Any]],
        late: tuple[dict[str, Any], ...],
        remote_files: str,
    ) -> None:
        """Kept request files let a batch go on that would otherwise lose its input: no net."""
        self.model = {
            item.item_id: f"Simulated answer ({NOTICE}) to: {item.payload}" for item in items(count)
        }
        self.size = size
        self.artifact_policy = ArtifactPolicy(remote_files=remote_files)
        self._skew(skew_s)
        self._script(*late, *faults)
        self.processes = [self._new_process(), self._new_process()]
        self.processes[0].advance(0.0)

    def job(self) -> Any:
        return job_for(
            self.sim.openai_base_url,
            len(self.model),
            artifact_policy=self.artifact_policy,
            on_lost="resend",  # what one fault has lost may well be answered
            chunk_policy=ChunkPolicy(max_requests=self.size),
            retry_policy=RetryPolicy(delay_s=1, max_delay_s=60, max_rounds=99, max_attempts=99),
            timing=TimingPolicy(lease_s=LEASE_S, create_timeout_s=0.3, settle_s=180, poll_s=30),
        )

    @rule(
        who=WHO,
        seconds=st.sampled_from([0.0, 35.0, BATCH_SECONDS, 200.0]),
        deadline_s=st.sampled_from([None, None, 0.0]),
    )
    def advance(self, who: int, seconds: float, deadline_s: float | None) -> None:
        self.sim.advance_time(seconds)
        self.processes[who].advance(deadline_s)

    @rule(who=WHO, passing=PASSING)
    def crash(self, who: int, passing: Passing) -> None:
        """Go on until the process has passed some probes and dies; another takes its place."""
        process = self.processes[who]
        process.probe.arm(passing, process.store.die)
        try:
            self._cycles(process, 3)
        except DiedError:
            self.processes[who] = self._new_process()
        process.probe.disarm()

    @rule(who=WHO, passing=PASSING, cycles=st.integers(1, 4), sleep_s=st.sampled_from(SLEEPS))
    def sleep_through_the_lease(
        self, who: int, passing: Passing, cycles: int, sleep_s: float
    ) -> None:
        """Suspend a process at a probe until its lease is over and the other has gone on."""
        sleeper, other = self.processes[who], self.processes[1 - who]

        def be_overtaken() -> None:
            self.sim.advance_time(sleep_s)
            self._cycles(other, cycles)

        sleeper.probe.arm(passing, be_overtaken)
        self._cycles(sleeper, 2)
        sleeper.probe.disarm()

    @rule(who=WHO, passing=PASSING)
    def both_at_once(self, who: int, passing: Passing) -> None:
        """Let the other process try a cycle while the first is in the middle of one."""
        first, other = self.processes[who], self.processes[1 - who]
        first.probe.arm(passing, other.advance)
        first.advance()
        first.probe.disarm()

    @rule(fault=FAULTS)
    def something_fails(self, fault: dict[str, Any]) -> None:
        self._script(fault)

    @rule()
    def the_provider_recovers(self) -> None:
        self._clear_faults()

    @precondition(lambda self: self._control() is RunControlState.RUN)
    @rule(cycles=st.integers(0, 3))
    def pause(self, cycles: int) -> None:
        self.store.set_control(RUN_ID, RunControlState.PAUSE, "paused by hand")
        self._cycles(self.processes[0], cycles)

    @precondition(lambda self: self._control() is RunControlState.PAUSE)
    @rule(who=WHO, cycles=st.integers(0, 3))
    def resume(self, who: int, cycles: int) -> None:
        self.store.set_control(RUN_ID, RunControlState.RUN, None)
        self._cycles(self.processes[who], cycles)

    @precondition(lambda self: not self.cancelled)
    @rule(sure=st.integers(0, 9))
    def cancel(self, sure: int) -> None:
        """Rarely, since little happens after it."""
        run = self.store.get_run(RUN_ID)
        if sure == 7 and not run.state.is_terminal:
            self.cancelled = True
            self.cut_short = run.state is RunState.INGESTING
            self.store.set_control(RUN_ID, RunControlState.CANCEL, "cancelled by hand")

    @rule(is_ours=st.booleans(), seconds=st.sampled_from([-7200.0, -60.0, 60.0, 7200.0]))
    def a_clock_jumps(self, is_ours: bool, seconds: float) -> None:
        """Ours at any moment; the provider's not while it times the search for a batch."""
        if is_ours:
            self.clock.jumped_s += seconds
        elif not self._submissions(SubmissionState.INTENDED):
            self._skew(seconds)

    @invariant()
    def all_is_well(self) -> None:
        """Rows are conserved, files that records point at exist, and nothing is paid twice."""
        if not self.model:
            return
        counts = self.store.counts(RUN_ID)
        assert counts.accounted == counts.total
        for ref in self._recorded_files():
            with self.artifacts.local(ref):
                pass
        assert self.sim.ledger().paid_twice() == []

    def teardown(self) -> None:
        try:
            if self.model:
                self._check_the_end(self._drive_to_the_end())
        finally:
            for process in self.all_processes:
                process.close()
            self.store.close()
            self.artifacts.close()

    def _drive_to_the_end(self) -> Run:
        """Without further faults, the run has to end by itself within bounded cycles."""
        self._clear_faults()
        survivor = self._new_process()
        for _ in range(LONGEST_RUN_CYCLES):
            run = self.store.get_run(RUN_ID)
            if run.state.is_terminal:
                return survivor.runner.open(self.job(), run_id=RUN_ID)
            if run.control is RunControlState.PAUSE:
                self.store.set_control(RUN_ID, RunControlState.RUN, None)
            self._step(survivor)
        raise AssertionError(
            f"no end after {LONGEST_RUN_CYCLES} cycles: {self.store.counts(RUN_ID)}"
        )

    def _check_the_end(self, run: Run) -> None:
        self.all_is_well()
        assert (run.status == "cancelled") == self.cancelled
        if self.cut_short:  # a cancelled run abandons the unread tail of its source
            self.model = dict(list(self.model.items())[: run.counts().total])
        check_conserved(run, len(self.model))
        failed: dict[str, str] = {}
        for result in run.results():
            if result.status == "ok":
                assert result.output_text == self.model[result.item_id]
            else:
                failed[result.item_id] = str(result.error["code"])
        assert set(self.model) - set(failed) == self._paid_for(), "paid answers are the ok rows"
        self._check_reasons(failed)
        batches = self.sim.state.ledger_report()["batches"].values()
        ended = {"completed", "cancelled", "failed", "expired"}
        assert {b["status"] for b in batches} <= ended, "a provider batch was left behind"

    def _check_reasons(self, failed: dict[str, str]) -> None:
        """Rows may fail only for what the model knows to be final."""
        named = sum(rule["kind"] == "fail_batch" and "line" in rule for rule in self.scripted)
        for item_id, code in failed.items():
            if code == NAMED_LINE["code"]:
                named -= 1
                continue
            prompt = {"prompt": f"number {item_id.removeprefix('item-')};"}
            is_refused = {**REFUSED_FOR_GOOD, "match": prompt} in self.scripted
            assert (code == REFUSED_FOR_GOOD["code"] and is_refused) or (
                code == "run_cancelled" and self.cancelled
            ), (item_id, code)
        assert named >= 0, "more rows failed than batches named lines"

    def _paid_for(self) -> set[str]:
        """The rows that the provider has answered soundly, for money."""
        entries = self.sim.ledger().entries()
        return {f"item-{e['row']}" for e in entries if e["billed"] and not e["fault"]}

    def _cycles(self, process: Process, count: int) -> None:
        for _ in range(count):
            self._step(process)

    def _step(self, process: Process) -> None:
        """One cycle, and then the sleep that ``wait`` would take."""
        progress = process.advance()
        if progress is None:
            self.sim.advance_time(LEASE_S)
        elif progress.next_due is not None and not progress.did:
            wait_s = (progress.next_due - self.clock.now()).total_seconds()
            self.sim.advance_time(max(0.2, wait_s))

    def _new_process(self) -> Process:
        process = Process(self)
        self.all_processes.append(process)
        return process

    def _script(self, *faults: dict[str, Any]) -> None:
        """Put faults in force, but for a second download that ends early without notice.

        Two in a row cannot be told from a provider that has lost the lines.
        """
        for fault in faults:
            if fault != SILENT_TRUNCATION or not self._may_truncate_silently():
                self.sim.faults(fault)
                self.scripted.append(fault)

    def _clear_faults(self) -> None:
        self.sim.clear_faults()
        skew_s, self.skew_s = self.skew_s, 0.0
        self._skew(skew_s)

    def _skew(self, skew_s: float) -> None:
        self.sim.faults(kind="clock_offset_seconds", seconds=skew_s - self.skew_s)
        self.skew_s = skew_s

    def _control(self) -> RunControlState | None:
        return self.store.get_run(RUN_ID).control if self.model else None

    def _may_truncate_silently(self) -> bool:
        return any(
            rule["kind"] == "truncate_download" and not rule["with_length"] and not rule["struck"]
            for rule in self.sim.state.faults.describe()
        )

    def _submissions(self, *states: SubmissionState) -> list[Any]:
        return self.store.list_submissions(RUN_ID, states=states) if self.model else []

    def _recorded_files(self) -> Iterator[ArtifactRef]:
        for chunk in self.store.list_chunks(RUN_ID) if self.model else ():
            yield from filter(None, (chunk.items, chunk.requests, chunk.results))
        for submission in self._submissions(*SubmissionState):
            if submission.outcomes is not None:
                yield submission.outcomes


@pytest.mark.timeout(0 if EXAMPLES else 120)
def test_one_run_under_everything_at_once(tmp_path: Path) -> None:
    """Some order of faults, crashes, control and clocks would lose a row or pay for one twice."""
    options = SimulatorOptions(batch_seconds=BATCH_SECONDS)
    numbers = iter(range(10**9))
    with Simulator(options, clock=SimulatorClock(monotonic=lambda: 0.0)) as simulator:
        folders = (tmp_path / str(number) for number in numbers)
        run_state_machine_as_test(
            lambda: RunMachine(simulator, folders),
            settings=settings(
                max_examples=EXAMPLES or 25,
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=not EXAMPLES,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.reuse, Phase.generate],
            ),
        )
