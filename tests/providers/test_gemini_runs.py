"""Whole runs on Gemini: what the executor makes of what is particular to it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, SecretStr

from batchor_core import BatchItem, BatchJob, BatchRunner, GeminiProviderConfig, Run
from batchor_core.model.policies import ChunkPolicy, RetryPolicy, TimingPolicy
from batchor_core.planning import tokens
from batchor_core.simulator import Simulator
from tests.core.world import SharedClock, open_world

COUNT = 7
KEY = SecretStr("key-0123456789")


class Verdict(BaseModel):
    """An output model with what a dialect has to rewrite."""

    why: str
    answer: Literal["yes", "no"]
    score: int | None = None
    parts: list[str]


@pytest.fixture
def sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """Run a simulator whose time is the library's."""
    monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)
    with open_world(tmp_path) as world:
        yield world.sim


Start = Callable[..., Run]


@pytest.fixture(params=["file", "inline"])
def start(sim: Simulator, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Drive a run to its end, in each of the ways to hand requests over."""
    runner = BatchRunner(tmp_path / "gemini.sqlite3", tmp_path / "gemini", clock=SharedClock(sim))

    def run(**options: Any) -> Run:
        fields: dict[str, Any] = {"model": "gemini-test", "input_mode": request.param}
        fields |= options.pop("provider", {})
        job = BatchJob(
            items=[BatchItem(item_id=f"i{n}", payload=f"say {n}") for n in range(COUNT)],
            provider_config=GeminiProviderConfig(
                base_url=sim.gemini_base_url, api_key=KEY, **fields
            ),
            chunk_policy=ChunkPolicy(max_requests=3),
            timing=TimingPolicy(lease_s=120, settle_s=180, poll_s=30),
            retry_policy=RetryPolicy(max_attempts=2),
            **options,
        )
        return runner.run_and_wait(job, run_id="run-1")

    yield run
    runner.close()


def check(sim: Simulator, run: Run, ok: int = COUNT) -> None:
    """Every row is there once, and none was paid twice."""
    results = run.results()
    assert [result.item_id for result in results] == [f"i{n}" for n in range(COUNT)]
    assert sum(result.status == "ok" for result in results) == ok
    assert sim.ledger().paid_twice() == []


@pytest.mark.parametrize("dialect", ["responseSchema", "responseJsonSchema"])
def test_structured_answers(sim: Simulator, start: Start, dialect: str) -> None:
    """A model's fields would not survive the way to the provider and back."""
    run = start(structured_output=Verdict, provider={"schema_dialect": dialect})
    check(sim, run)
    assert all(isinstance(result.output, Verdict) for result in run.results())


def test_an_expired_batch_is_sent_again(sim: Simulator, start: Start) -> None:
    """Rows of which the provider gives nothing would fail, or use up their attempts."""
    sim.faults(kind="expire", times=2)
    run = start()
    check(sim, run)
    assert {result.attempt_count for result in run.results()} == {1}
    assert sim.ledger().executed() == COUNT


def test_what_is_missing_of_a_batch_is_sent_again(sim: Simulator, start: Start) -> None:
    """The rows that a batch left out would fail, or those that it answered be paid again."""
    sim.faults(kind="succeed_in_part", fraction=0.34, times=1)
    run = start()
    check(sim, run)
    assert sim.ledger().executed() == COUNT


def test_a_create_call_that_was_cut_short(sim: Simulator, start: Start) -> None:
    """A batch that was created all the same would be created and paid again."""
    sim.faults(kind="drop_after_commit", times=2, match={"route": "gemini.batches.create"})
    check(sim, start())
    assert sim.ledger().executed() == COUNT


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "INTERNAL"])
def test_a_batch_that_failed_for_now(sim: Simulator, start: Start, code: str) -> None:
    """A passing failure of the whole batch would fail its rows."""
    sim.faults(kind="fail_batch", code=code, times=2)
    check(sim, start())
    assert sim.ledger().executed() == COUNT


def test_every_row_is_a_bad_request(sim: Simulator, start: Start) -> None:
    """Rows that failed would count as answered: the batch succeeded (python-genai#2693)."""
    sim.faults(kind="line_error", status=400, message="no")
    run = start()
    check(sim, run, ok=0)
    errors = [result.error for result in run.results()]
    assert [error and error["code"] for error in errors] == ["INVALID_ARGUMENT"] * COUNT


def test_rows_under_wrong_keys_are_lost(sim: Simulator, start: Start) -> None:
    """A row would get another one's answer (python-genai#1909), or be paid twice."""
    sim.faults(kind="wrong_custom_id", custom_id="zzzzzzzz-1", rounds=1, match={"prompt": "say 3"})
    run = start()
    check(sim, run, ok=COUNT - 1)
    assert run.results()[3].error["code"] == "results_lost"
    assert sim.ledger().executed() == COUNT


def test_embeddings(sim: Simulator, start: Start) -> None:
    """Vectors would not arrive."""
    run = start(
        provider={"model": "gemini-embedding-001", "endpoint": "embeddings", "dimensions": 8}
    )
    check(sim, run)
    vectors = run.results_frame().collect()["embedding"]
    assert (len(vectors), len(set(map(tuple, vectors.to_list())))) == (COUNT, COUNT)


def test_our_files_do_not_stay(sim: Simulator, start: Start) -> None:
    """The account's storage would fill up."""
    start()
    left = [file["name"] for file in sim.state.gemini.list_files({})["files"]]
    assert not [name for name in left if not name.startswith("files/batch-")]
