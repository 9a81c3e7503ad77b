"""The event stream: what it tells, who is told, and what must never be in it."""

import builtins
import json
import logging
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from batchor_core import (
    BatchItem,
    Event,
    LoggingListener,
    OpenTelemetryListener,
    Run,
    summary_from_events,
)
from batchor_core.errors import ConfigurationError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, ReusePolicy
from tests.core.world import Verdict, World, items

TWOS = ChunkPolicy(max_requests=2)
SECRET = "sk-very-secret-0123456789"
PROMPT = "the patient of ward seven"
UPLOAD = {"route": "files.create"}


class Recorder:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.heard.append(event)


def journal(world: World, run_id: str = "run-1") -> list[Event]:
    """The run's whole journal."""
    return world.runner.store.list_events(run_id, limit=10_000)


def check_summary(world: World, run: Run) -> None:
    """The journal alone says what the summary says."""
    told, known = summary_from_events(journal(world, run.run_id)), run.summary()
    assert told.counts == known.counts
    assert told.cost_usd == pytest.approx(known.cost_usd)
    usage = asdict(known.usage)
    assert asdict(told.usage) == {**usage, "cost_usd": pytest.approx(usage["cost_usd"])}
    assert (told.run_id, told.status) == (known.run_id, known.status)
    assert (told.control_state, told.control_reason) == (known.control_state, known.control_reason)


def faulty_run(world: World, **options: Any) -> Run:
    """A run with splits, refusals, retries, invalid answers and failures."""
    world.sim.faults(kind="http_error", status=413, times=7, match=UPLOAD)
    world.sim.faults(kind="http_error", status=429, times=1, match={"route": "batches.create"})
    world.sim.faults(kind="line_error", status=500, rounds=2, match={"prompt": "number 3;"})
    world.sim.faults(kind="line_error", status=400, match={"prompt": "number 5;"})
    world.sim.faults(kind="invalid_json_answer", match={"prompt": "number 7;"})
    retry = RetryPolicy(delay_s=1, max_attempts=5)
    settings = {"chunk_policy": TWOS, "retry_policy": retry, "structured_output": Verdict}
    return world.open(9, **{**settings, **options})


class TestSummary:
    def test_at_every_moment_of_a_faulty_run(self, world: World) -> None:
        """Dashboards built on the stream would show other numbers than the store."""
        run = faulty_run(world)
        check_summary(world, run)
        while not run.is_finished:
            run.advance()
            check_summary(world, run)
            world.clock.sleep(20)
        kinds = {event.kind for event in journal(world)}
        assert kinds >= {
            "chunk.split",
            "chunk.abandoned",
            "submission.voided",
            "retries.packed",
            "run.closed",
        }

    def test_of_a_cancelled_run(self, world: World) -> None:
        """Rows that a cancellation fails would stay in flight for ever."""
        run = faulty_run(world)
        for _ in range(4):
            run.advance()
            world.clock.sleep(20)
        run.pause("by hand")
        check_summary(world, run)
        run.resume()
        check_summary(world, run)
        run.cancel("not wanted").wait()
        check_summary(world, run)
        assert run.counts().failed

    def test_of_a_run_with_reused_answers(self, world: World) -> None:
        """Answers that cost nothing would be missing, or be counted as paid."""
        world.run(4)
        more = [BatchItem(item_id=f"i{n}", payload=f"Prompt number {n};") for n in range(7)]
        run = world.open(more, run_id="next", reuse=ReusePolicy(run_ids=("run-1",)))
        while not run.is_finished:
            run.advance()
            check_summary(world, run)
            world.clock.sleep(20)
        assert run.counts().reused == 4

    def test_of_a_model_without_a_price(self, world: World) -> None:
        """An unknown cost would pass for zero."""
        run = world.run(2, config={"model": "model-of-nobody"})
        told = summary_from_events(journal(world))
        assert (told.cost_usd, told.usage) == (None, run.summary().usage)

    def test_of_a_retry(self, world: World) -> None:
        """The run that asks failed items again would have no journal of its own."""
        world.sim.faults(kind="line_error", status=400, match={"prompt": "number 0;"})
        run = world.run(3)
        world.sim.clear_faults()
        check_summary(world, run.retry_failed().wait())

    def test_of_no_events_at_all(self) -> None:
        """A reader that is faster than the first event would crash."""
        empty = summary_from_events([])
        assert (empty.run_id, empty.status, empty.counts.total) == (None, "ingesting", 0)


class TestListeners:
    def test_they_hear_the_journal_in_order(self, world: World) -> None:
        """Metrics and logs would tell another story than the journal."""
        recorder = Recorder()
        runner = world.new_runner(listeners=[recorder])
        job = world.job(5, chunk_policy=TWOS)
        runner.run_and_wait(job, run_id="run-1")
        assert recorder.heard == journal(world)
        assert [e.sequence for e in recorder.heard] == sorted(e.sequence for e in recorder.heard)

    def test_each_event_is_told_to_the_process_that_wrote_it(self, world: World) -> None:
        """Counters of two processes would add up to twice of what happened."""
        first, second = Recorder(), Recorder()
        one = world.new_runner(listeners=[first])
        one.start(world.job(4, chunk_policy=TWOS), run_id="run-1")
        other = world.new_runner(listeners=[second], connect=_with_key)
        other.get_run("run-1").wait()
        assert first.heard
        assert second.heard
        assert [*first.heard, *second.heard] == journal(world)

    def test_what_one_raises_stops_neither_the_run_nor_the_others(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A broken exporter would end paid work half-way."""

        class Broken:
            def on_event(self, event: Event) -> None:
                raise RuntimeError("exporter is down")

        recorder = Recorder()
        runner = world.new_runner(listeners=[Broken(), recorder])
        run = runner.run_and_wait(world.job(2), run_id="run-1")
        assert run.status == "succeeded"
        assert recorder.heard == journal(world)
        assert "Broken failed on run.created" in caplog.text

    def test_nothing_is_told_of_what_was_rolled_back(self, world: World) -> None:
        """Metrics would count batches that were never recorded."""
        recorder = Recorder()
        world.runner.store.subscribe(recorder.on_event)
        run = world.open(2)
        run.ingest()
        before = list(recorder.heard)
        lease = world.runner.store.acquire_lease("run-1", "somebody", 60)
        assert lease is not None
        with pytest.raises(Exception, match="99"):
            world.runner.store.abandon_chunks(lease, [0, 99], "code", "message")
        assert recorder.heard == before


class TestSecrecy:
    @pytest.fixture
    def told(self, world: World, caplog: pytest.LogCaptureFixture) -> str:
        """All that journal and logs say of a run whose prompts, answers and key are secret."""
        caplog.set_level(logging.DEBUG)
        rows = [BatchItem(item_id=f"i{n}", payload=f"{PROMPT} number {n};") for n in range(6)]
        runner = world.new_runner(listeners=[LoggingListener(level=logging.WARNING)])
        config = {"api_key": SECRET}
        world.sim.faults(kind="http_error", status=401, times=1, match={"route": "batches.create"})
        world.sim.faults(kind="line_error", status=400, match={"prompt": "number 2;"})
        world.sim.faults(kind="invalid_json_answer", match={"prompt": "number 3;"})
        job = world.job(rows, config=config, structured_output=Verdict, chunk_policy=TWOS)
        run = runner.open(job, run_id="run-1")
        run.advance()
        run.resume().wait()
        answers = [item.output_text for item in run.results() if item.output_text]
        assert answers
        logged = [
            json.dumps([record.getMessage(), record.__dict__.get("batchor_data")])
            for record in caplog.records
            if record.name.startswith("batchor")
        ]
        text = "\n".join([*logged, *(json.dumps(asdict(e), default=str) for e in journal(world))])
        assert "submission.collected" in text
        assert not any(json.dumps(answer)[1:-1] in text for answer in answers)
        return text

    def test_no_key_no_prompt_no_answer(self, told: str) -> None:
        """Whoever may read logs and metrics could read what nobody but the model should."""
        assert SECRET not in told
        assert PROMPT not in told


def test_logging_lines_carry_the_event(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A log pipeline could not pick out runs and kinds."""
    caplog.set_level(logging.INFO, logger="batchor_core.events")
    runner = world.new_runner(listeners=[LoggingListener()])
    runner.run_and_wait(world.job(2), run_id="run-1")
    records = [record for record in caplog.records if record.name == "batchor_core.events"]
    kinds = [record.__dict__["batchor_kind"] for record in records]
    assert kinds == [event.kind for event in journal(world)]
    (closed,) = [r for r in records if r.__dict__["batchor_kind"] == "run.closed"]
    assert closed.getMessage().startswith("run run-1: run.closed state=succeeded")
    assert closed.__dict__["batchor_data"]["counts"]["ok"] == 2


class FakeMeter:
    """Takes the place of the meter: the OpenTelemetry API alone records nothing."""

    def __init__(self) -> None:
        self.counted: dict[tuple[Any, ...], float] = defaultdict(float)
        self.gauges: dict[str, Any] = {}

    def create_counter(self, name: str, unit: str = "") -> Any:
        meter = self

        class Counter:
            def add(self, amount: float, attributes: Any = None) -> None:
                assert amount > 0, "counters only grow"
                meter.counted[name, *(attributes or {}).values()] += amount

        return Counter()

    def create_observable_gauge(self, name: str, callbacks: Any, unit: str = "") -> None:
        self.gauges[name] = callbacks[0]

    def read(self, name: str) -> float:
        (observation,) = self.gauges[name](None)
        return float(observation.value)


class TestMetrics:
    def test_they_count_what_the_summary_says(self, world: World) -> None:
        """A bill or an alert would be based on wrong numbers."""
        meter = FakeMeter()
        runner = world.new_runner(listeners=[OpenTelemetryListener(meter)])  # type: ignore[arg-type]
        world._runner = runner
        run = faulty_run(world).wait()
        usage, counts, seen = run.summary().usage, run.counts(), meter.counted
        assert seen["batchor.items", "ok", False] == counts.ok
        assert seen["batchor.items", "failed", False] == counts.failed
        assert seen["batchor.items", "retry", False] >= 3
        assert seen["batchor.tokens", "input"] == usage.input_tokens
        assert seen["batchor.tokens", "output"] == usage.output_tokens
        assert seen["batchor.cost",] == pytest.approx(usage.cost_usd)
        assert seen["batchor.batches", "created"] == world.batches()
        assert seen["batchor.batches", "collected"] == world.batches()
        assert seen["batchor.batches", "voided"] >= 1
        assert seen["batchor.runs.finished", "completed_with_failures"] == 1

    def test_cancelled_and_reused_items(self, world: World) -> None:
        """Items without an answer of their own would be counted nowhere."""
        meter = FakeMeter()
        runner = world.new_runner(listeners=[OpenTelemetryListener(meter)])  # type: ignore[arg-type]
        world._runner = runner
        world.run(3)
        world.run(3, run_id="again", reuse=ReusePolicy(run_ids=("run-1",)))
        assert meter.counted["batchor.items", "ok", True] == 3
        world.open(5, run_id="gone").ingest().cancel().wait()
        assert meter.counted["batchor.items", "failed", False] == 5
        assert meter.counted["batchor.runs.finished", "cancelled"] == 1

    def test_adopted_batches_are_told_apart(self, world: World) -> None:
        """Nobody would notice that creates often go unacknowledged."""
        meter = FakeMeter()
        world._runner = world.new_runner(listeners=[OpenTelemetryListener(meter)])  # type: ignore[arg-type]
        world.sim.faults(kind="drop_after_commit", times=1, match={"route": "batches.create"})
        world.run(2)
        assert meter.counted["batchor.batches", "adopted"] == 1
        assert meter.counted["batchor.batches", "created"] == 0

    def test_gauges_show_what_is_in_flight(self, world: World) -> None:
        """An alert on stuck batches would never fire, or never end."""
        meter = FakeMeter()
        listener = OpenTelemetryListener(meter)  # type: ignore[arg-type]
        listener.observe(world.runner.store)
        assert (meter.read("batchor.items.in_flight"), meter.read("batchor.batches.in_flight")) == (
            0,
            0,
        )
        run = world.open(5, chunk_policy=TWOS)
        run.advance()
        assert meter.read("batchor.items.in_flight") == 5
        assert meter.read("batchor.batches.in_flight") == 3
        assert world.runner.store.in_flight("another namespace").items == 0
        run.wait()
        assert meter.read("batchor.items.in_flight") == 0

    def test_the_global_meter_is_the_default(self, world: World) -> None:
        """Users of the OpenTelemetry API would have to find the meter by themselves."""
        runner = world.new_runner(listeners=[OpenTelemetryListener()])
        assert runner.run_and_wait(world.job(items(1)), run_id="run-1").status == "succeeded"

    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An import error would not say what to install."""
        real = builtins.__import__

        def without(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.startswith("opentelemetry"):
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ConfigurationError, match=r"batchor-dagster\[otel\]"):
            OpenTelemetryListener()


def _with_key(config: Any) -> Any:
    from batchor_core.providers.registry import connect_without_key

    return connect_without_key(config)


def test_kinds_on_the_page_are_those_in_the_code() -> None:
    """A reader of the stream would not find a kind of event that is told."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "events.md").read_text().split("## Kinds")[1]
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    written = set()
    for path in (root / "batchor_core" / "store" / "sql").glob("*.py"):
        for piece in path.read_text().split("append_event(")[1:]:
            named = piece.split('"')
            if len(named) > 1 and "." in named[1]:
                written.add(named[1])
    written |= {"artifacts.prune_begun", "artifacts.pruned"}
    assert listed == written


def test_the_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody would copy lines that fail."""
    monkeypatch.setenv("BATCHOR_HOME", str(tmp_path))
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["runner"].list_runs() == []
    names["runner"].close()
