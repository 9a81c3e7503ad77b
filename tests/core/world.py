"""A simulated provider, a clock that both sides share, and the steps that most tests repeat."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from batchor_core import BatchItem, BatchJob, BatchRunner, OpenAIProviderConfig, Run
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions

BATCH_SECONDS = 100.0
MODEL = "gpt-4.1-mini"
START = datetime(2025, 6, 1, 12, tzinfo=UTC)
TIMING = TimingPolicy(lease_s=120, settle_s=180, poll_s=30)


class SharedClock:
    """The library's clock, moved by the simulator's: to sleep is to let both pass."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return self._simulator.state.clock.now()

    def sleep(self, seconds: float) -> None:
        self._simulator.advance_time(max(0.0, seconds))


class World:
    """One simulated provider and one control plane, over any number of runners."""

    def __init__(self, simulator: Simulator, folder: Path) -> None:
        self.sim = simulator
        self.clock = SharedClock(simulator)
        self.folder = folder
        self.db = folder / "state.sqlite3"
        self.artifacts = folder / "artifacts"
        self._runners: list[BatchRunner] = []
        self._runner: BatchRunner | None = None

    @property
    def runner(self) -> BatchRunner:
        """The runner of this process, made when it is first asked for."""
        if self._runner is None:
            self._runner = self.new_runner()
        return self._runner

    def new_runner(self, **options: Any) -> BatchRunner:
        """Another runner on the same state, as another process would have it."""
        runner = BatchRunner(self.db, self.artifacts, **{"clock": self.clock, **options})
        self._runners.append(runner)
        return runner

    def job(self, items: Any = 6, **options: Any) -> BatchJob:
        """A job over ``items``: a number of rows, or whatever a job takes."""
        return job_for(self.sim.openai_base_url, items, **options)

    def run(self, items: Any = 6, *, run_id: str = "run-1", **options: Any) -> Run:
        """Drive a run to its end."""
        return self.runner.run_and_wait(self.job(items, **options), run_id=run_id)

    def open(self, items: Any = 6, *, run_id: str = "run-1", **options: Any) -> Run:
        """Record a run and do nothing yet."""
        return self.runner.open(self.job(items, **options), run_id=run_id)

    def events(self, kind: str, run_id: str = "run-1") -> list[dict[str, Any]]:
        """The journal's entries of one kind."""
        found = self.runner.store.list_events(run_id, limit=10_000)
        return [dict(event.data) for event in found if event.kind == kind]

    def kinds(self, run_id: str = "run-1") -> list[str]:
        """The kinds of the journal's entries, in order."""
        return [e.kind for e in self.runner.store.list_events(run_id, limit=10_000)]

    def batches(self) -> int:
        """How many provider batches were ever created."""
        return len(self.sim.state.ledger_report()["batches"])

    def close_runners(self) -> None:
        for runner in self._runners:
            runner.close()

    def close(self) -> None:
        self.close_runners()
        self.sim.close()


def items(count: int) -> list[BatchItem]:
    """Rows whose prompts end in a marker that a fault can be matched by."""
    return [BatchItem(item_id=f"item-{n}", payload=f"Prompt number {n};") for n in range(count)]


def job_for(base_url: str, rows: Any = 6, **options: Any) -> BatchJob:
    """A job against a simulator, with a quick retry policy and no random waits of note."""
    config = {"model": MODEL, "base_url": base_url, "api_key": "sk-test", "timeout_s": 20}
    config |= options.pop("config", {})
    settings: dict[str, Any] = {
        "items": items(rows) if isinstance(rows, int) else rows,
        "provider_config": OpenAIProviderConfig(**config),
        "timing": TIMING,
        "retry_policy": RetryPolicy(delay_s=1),
    }
    return BatchJob(**{**settings, **options})


@contextmanager
def open_world(folder: Path, **options: Any) -> Iterator[World]:
    """A world whose time stands still but for sleeps."""
    settings = SimulatorOptions(**{"batch_seconds": BATCH_SECONDS, **options})
    with Simulator(settings, clock=SimulatorClock(monotonic=lambda: 0.0)) as simulator:
        world = World(simulator, folder)
        try:
            yield world
        finally:
            world.close()


Worlds = Callable[..., World]


def statuses(run: Run) -> dict[str, str]:
    """Status or error code of each item."""
    return {r.item_id: r.status if r.error is None else str(r.error["code"]) for r in run.results()}


def check_conserved(run: Run, count: int) -> None:
    """Every row is in the results, once and in order, and the counts say the same."""
    results = run.results()
    assert [r.item_id for r in results] == [f"item-{n}" for n in range(count)]
    counts = run.counts()
    tally = Counter(r.status for r in results)
    assert (counts.total, counts.accounted) == (count, count)
    assert (counts.ok, counts.failed) == (tally["ok"], tally["failed"])
    assert (counts.retrying, counts.in_flight, counts.ready) == (0, 0, 0)


def check_paid_once(world: World) -> None:
    """No sound answer was paid for more than once."""
    assert world.sim.ledger().paid_twice() == []


def texts(results: Sequence[Any]) -> list[str | None]:
    """The answers' texts."""
    return [r.output_text for r in results]


class Verdict(BaseModel):
    """A small structured answer."""

    label: str
    score: int


def race_options() -> dict[str, Any]:
    """Job options for several drivers on the machine's own clock."""
    return {
        "chunk_policy": ChunkPolicy(max_requests=4),
        "timing": TimingPolicy(lease_s=3.0, settle_s=1.0, poll_s=0.1),
        "retry_policy": RetryPolicy(delay_s=0.05),
    }
