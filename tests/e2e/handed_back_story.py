"""What becomes of requests whose job, descendants or batch runs people meddle with meanwhile.

The provider's clock stands still until a downstream asset was removed, its backfill has noticed,
and batch runs were paused and cancelled by the jobs that are there for that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from batchor_core import SQLiteStorage
from batchor_core.model.records import RunRecord, Waiter
from batchor_core.simulator import Simulator
from batchor_dagster.constants import CANCEL_JOB, PAUSE_JOB, RESUME_JOB
from tests.e2e.dagster_dev import AssetEvent, Backfill, DagsterDev, RunInfo
from tests.e2e.still_provider import provider_env, still_provider

PROJECT = Path(__file__).parent / "projects" / "handed_back_project.py"
BATCH_SECONDS = 600.0
JOB, BACKFILL, PAUSED, CANCELLED, SHELL = "job", "backfill", "paused", "cancelled", "shell"
"""Partitions, by what happens to them."""

THRESHOLD = 0.9
TAGS = {"team": "ours", "dagster/priority": "7"}


@dataclass(kw_only=True)
class Story:
    """What was seen.

    Attributes:
        request: The Dagster run of the job.
        backfill: As Dagster ended it, when one of its assets was gone.
        shell: The command that was refused.
        controls: The Dagster runs of the jobs that paused, cancelled and resumed, by job.
        control_logs: What they have logged.
        while_paused: The paused batch run when everything else was done.
        materialized_while_paused: Partitions that were there by then.
        hooked: Dagster run, job and step of each call of the job's hook.
    """

    folder: Path
    request: RunInfo | None = None
    backfill: Backfill | None = None
    shell: CompletedProcess[str] | None = None
    controls: dict[str, RunInfo] = field(default_factory=dict)
    control_logs: dict[str, Sequence[str]] = field(default_factory=dict)
    while_paused: RunRecord | None = None
    materialized_while_paused: set[str | None] = field(default_factory=set)
    hooked: Sequence[Sequence[str]] = ()
    materializations: Mapping[str, Sequence[AssetEvent]] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    failed_ticks: Sequence[str] = ()
    dagster_runs: Sequence[RunInfo] = ()
    waiters: Mapping[str, Waiter] = field(default_factory=dict)
    runs: Mapping[str, RunRecord] = field(default_factory=dict)

    def materialize_run(self, partition: str, asset: str = "answers") -> RunInfo:
        """The Dagster run that materialized a partition."""
        (event,) = [e for e in self.materializations[asset] if e.partition == partition]
        (run,) = [run for run in self.dagster_runs if run.run_id == event.run_id]
        return run

    def batches(self, partition: str) -> list[str]:
        """Status of a partition's provider batches."""
        run_id = self.waiters[partition].run_id
        return [b["status"] for b in self.ledger["batches"].values() if b["run"] == run_id]


def tell(folder: Path, home: Path) -> Story:
    """Tell it all; takes a minute and a half."""
    with still_provider(BATCH_SECONDS) as simulator:
        env = {"ANSWERS_FOLDER": str(folder), **provider_env(simulator)}
        with DagsterDev(target=["-f", str(PROJECT)], env=env, home=home) as dev:
            return _Teller(dev, simulator, Story(folder=folder)).tell()


class _Teller:
    def __init__(self, dev: DagsterDev, simulator: Simulator, story: Story) -> None:
        self.dev = dev
        self.simulator = simulator
        self.story = story

    def tell(self) -> Story:
        request, backfill = self._ask()
        (self.story.folder / "removed").touch()
        self.dev.reload()
        self._control(PAUSE_JOB, "pause", partitions=[PAUSED], reason="a bad day")
        self._control(CANCEL_JOB, "cancel", partitions=[CANCELLED], reason="a wrong prompt")
        self.story.shell = self.dev.run_command(
            *("asset", "materialize", "-f", str(PROJECT)),
            *("--select", "answers", "--partition", SHELL),
        )
        self.dev.wait_until(
            lambda: not self.dev.backfill(backfill).is_open, "the backfill has ended"
        )
        self._let_provider_work(lambda: self._open() == [PAUSED], "only the paused one waits")
        self._look_at_the_paused()
        self._control(RESUME_JOB, "resume", paused_because="BAD", budget_usd=50.0)
        self._let_provider_work(self._is_settled, "nothing is left to do")
        self._note_what_is_there(request, backfill)
        return self.story

    def _ask(self) -> tuple[str, str]:
        """Ask for four partitions; returns the Dagster run of the job, and the backfill."""
        backfill = self.dev.launch_backfill(["answers", "kept", "removed"], [BACKFILL])
        config = {"ops": {"judged": {"config": {"threshold": THRESHOLD}}}}
        request = self.dev.launch_job("nightly", JOB, tags=TAGS, run_config=config)
        for partition in (PAUSED, CANCELLED):
            self.dev.launch_asset_run(["answers"], partition)

        def all_wait() -> bool:
            asked = {w.payload["dagster_run"] for w in self._waiters().values()}
            ended = {run.run_id for run in self.dev.runs() if run.status == "SUCCESS"}
            return len(asked & ended) == 4

        self.dev.wait_until(all_wait, "four partitions wait")
        return request, backfill

    def _control(self, job: str, op: str, **config: Any) -> None:
        which = {"asset": "answers", **config}
        run_id = self.dev.launch_job(job, run_config={"ops": {op: {"config": which}}})
        self.story.controls[job] = self.dev.wait_run(run_id, timeout_s=120)
        self.story.control_logs[job] = self.dev.run_log(run_id)

    def _let_provider_work(self, condition: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.simulator.advance_time(BATCH_SECONDS)
            return condition()

        self.dev.wait_until(look, what, timeout_s=180)

    def _look_at_the_paused(self) -> None:
        waiter = self._waiters()[PAUSED]
        self.story.while_paused = self._runs()[waiter.run_id]
        events = self.dev.materializations("answers")
        self.story.materialized_while_paused = {event.partition for event in events}

    def _open(self) -> list[str]:
        return [key for key, waiter in self._waiters().items() if waiter.state.value == "open"]

    def _is_settled(self) -> bool:
        going = [run for run in self._runs().values() if not run.state.is_terminal]
        unfinished = [run for run in self.dev.runs() if not run.is_finished]
        return not going and not unfinished and not self._open()

    def _waiters(self) -> dict[str, Waiter]:
        with SQLiteStorage(self.story.folder / "state.sqlite3") as store:
            return {waiter.partitions[0]: waiter for waiter in store.list_waiters()}

    def _runs(self) -> dict[str, RunRecord]:
        with SQLiteStorage(self.story.folder / "state.sqlite3") as store:
            return {run.run_id: run for run in store.list_runs()}

    def _note_what_is_there(self, request: str, backfill: str) -> None:
        story, dev = self.story, self.dev
        story.request, story.backfill = dev.run(request), dev.backfill(backfill)
        assets = ("answers", "judged", "kept")
        story.materializations = {asset: dev.materializations(asset) for asset in assets}
        lines = (story.folder / "told").read_text().splitlines()
        story.hooked = [line.split() for line in lines]
        story.ledger = self.simulator.state.ledger_report(entries=True)
        story.failed_ticks, story.dagster_runs = dev.failed_ticks(), dev.runs()
        story.waiters, story.runs = self._waiters(), self._runs()
