"""The same job through every provider: typed answers, pictures, embeddings, and nothing twice."""

import base64
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import polars as pl
import pytest

from batchor_core import (
    AnthropicProviderConfig,
    BatchItem,
    BatchRunner,
    File,
    GeminiProviderConfig,
    Image,
    Message,
    OpenAIProviderConfig,
    PromptParts,
)
from batchor_core.errors import WaitTimeoutError
from batchor_core.executor.reconcile import Finding
from batchor_core.model.policies import ChunkPolicy
from batchor_core.simulator import Simulator
from tests.core.mortal import AtProbe, DiedError, MortalStore
from tests.core.world import (
    Verdict,
    World,
    Worlds,
    check_conserved,
    check_paid_once,
    items,
    statuses,
)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def _openai(endpoint: str) -> Callable[[Simulator], OpenAIProviderConfig]:
    return lambda sim: OpenAIProviderConfig(
        model="gpt-4.1-mini",
        endpoint=endpoint,  # type: ignore[arg-type]  # one of its literals
        base_url=sim.openai_base_url,
        api_key="sk-test",  # type: ignore[arg-type]  # pydantic makes a secret of it
        timeout_s=20,
    )


def _anthropic(sim: Simulator, **options: Any) -> AnthropicProviderConfig:
    return AnthropicProviderConfig(
        model="claude-sonnet-4-5",
        max_tokens=200,
        base_url=sim.anthropic_base_url,
        api_key="sk-ant-test",  # type: ignore[arg-type]
        timeout_s=20,
        **options,
    )


def _gemini(mode: str) -> Callable[[Simulator], GeminiProviderConfig]:
    return lambda sim: GeminiProviderConfig(
        model="gemini-2.5-flash",
        backend="developer",
        input_mode=mode,  # type: ignore[arg-type]
        base_url=sim.gemini_base_url,
        api_key="test-key",  # type: ignore[arg-type]
        timeout_s=20,
    )


PROVIDERS: dict[str, Callable[[Simulator], Any]] = {
    "openai responses": _openai("responses"),
    "openai chat": _openai("chat"),
    "anthropic": _anthropic,
    "gemini file": _gemini("file"),
    "gemini inline": _gemini("inline"),
}
EMBEDDINGS: dict[str, Callable[[Simulator], Any]] = {
    "openai": lambda sim: OpenAIProviderConfig(
        model="text-embedding-3-small",
        endpoint="embeddings",
        dimensions=16,
        base_url=sim.openai_base_url,
        api_key="sk-test",  # type: ignore[arg-type]
    ),
    "gemini file": lambda sim: GeminiProviderConfig(
        model="gemini-embedding-001",
        endpoint="embeddings",
        dimensions=16,
        backend="developer",
        input_mode="file",
        base_url=sim.gemini_base_url,
        api_key="test-key",  # type: ignore[arg-type]
    ),
}


def other_items(count: int) -> list[BatchItem]:
    """Rows of another program: the ledger tells Anthropic's requests apart by their content."""
    return [BatchItem(item_id=f"item-{n}", payload=f"Another program's {n};") for n in range(count)]


every_provider = pytest.mark.parametrize("config", PROVIDERS.values(), ids=list(PROVIDERS))


@every_provider
def test_two_hundred_rows_with_typed_answers(world: World, config: Any) -> None:
    """A team could not choose its model by price and quality alone."""
    run = world.run(
        200,
        provider_config=config(world.sim),
        structured_output=Verdict,
        system_prompt="Judge the text.",
        chunk_policy=ChunkPolicy(max_requests=80),
    )
    assert run.status == "succeeded"
    assert world.batches() == 3
    frame = run.results_frame().collect()
    assert frame.schema["score"] == pl.Int64
    assert frame["batch_input_tokens"].min() > 0
    assert frame["batch_output_tokens"].min() > 0
    assert frame["batch_cost_usd"].min() > 0
    assert set(frame["batch_finish_reason"]) <= {"stop", "end_turn", "STOP"}
    # A simulated answer quotes its own prompt: each row has got its own answer.
    assert [f"number {n};" in r.output.label for n, r in enumerate(run.results())] == [True] * 200
    check_conserved(run, 200)
    check_paid_once(world)


@every_provider
def test_pictures_documents_and_examples(world: World, config: Any) -> None:
    """A prompt with a picture would lose it, or be refused by the provider after the wait."""
    rows = [
        BatchItem(item_id="item-0", payload=[Image(data=PNG), "What is this?"]),
        BatchItem(item_id="item-1", payload=[File(data=PDF, name="a.pdf"), "Summarise it."]),
        BatchItem(item_id="item-2", payload="Plain."),
    ]

    def build(item: BatchItem) -> PromptParts:
        return PromptParts(
            prompt=item.payload,
            messages=[
                Message(role="user", content="An example?"),
                Message(role="assistant", content="Its answer."),
            ],
        )

    run = world.run(rows, provider_config=config(world.sim), build_prompt=build)
    assert statuses(run) == {f"item-{n}": "ok" for n in range(3)}
    used = run.results_frame().collect()["batch_input_tokens"].to_list()
    assert used[0] > used[2]
    check_conserved(run, 3)
    check_paid_once(world)


@pytest.mark.parametrize("config", EMBEDDINGS.values(), ids=list(EMBEDDINGS))
def test_embeddings(world: World, config: Any) -> None:
    """Vectors of one provider would need code that those of another do not."""
    run = world.run(20, provider_config=config(world.sim))
    frame = run.results_frame().collect()
    assert frame.schema["embedding"] == pl.Array(pl.Float32, 16)
    assert frame["embedding"].null_count() == 0
    assert frame["embedding"].n_unique() == 20
    check_conserved(run, 20)
    check_paid_once(world)


@every_provider
def test_lines_that_fail_are_sent_again(world: World, config: Any) -> None:
    """What one provider calls a hiccup would be final with another."""
    world.sim.faults(kind="line_error", status=500, rounds=1, match={"prompt": "number 1;"})
    run = world.run(6, provider_config=config(world.sim))
    assert run.status == "succeeded"
    assert [r.attempt_count for r in run.results()] == [1, 2, 1, 1, 1, 1]
    check_conserved(run, 6)


@every_provider
def test_a_fresh_process_goes_on(
    world: World, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run could only be finished by the process that started it."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "from-the-environment")
    given = config(world.sim).model_copy(update={"api_key": None})  # keys are never stored
    run = world.open(6, provider_config=given, structured_output=Verdict)
    run.advance()
    run.advance()
    other = world.new_runner().get_run("run-1")
    other.wait()
    assert other.status == "succeeded"
    check_conserved(other, 6)
    check_paid_once(world)


@every_provider
def test_a_create_whose_answer_is_lost_is_not_repeated(world: World, config: Any) -> None:
    """The batch would be paid for twice."""
    route = {"openai": "batches.create", "anthropic": "anthropic.batches.create"}
    settings = config(world.sim)
    name = route.get(settings.provider, "gemini.batches.create")
    world.sim.faults({"kind": "drop_after_commit", "times": 1, "match": {"route": name}})
    run = world.run(6, provider_config=settings)
    assert run.status == "succeeded"
    assert world.batches() == 1
    assert [e["adopted"] for e in world.events("submission.activated")] == [True]
    check_conserved(run, 6)
    check_paid_once(world)


@every_provider
@pytest.mark.parametrize(
    "probe",
    [
        "submit.intended",
        "submit.uploaded",
        "submit.create_allowed",
        "submit.created",
        "submit.activated",
        "collect.written",
        "collect.committed",
    ],
)
def test_a_process_that_dies_is_taken_over(world: World, config: Any, probe: str) -> None:
    """Another process would send again what the dead one had sent."""
    options = {"provider_config": config(world.sim), "chunk_policy": ChunkPolicy(max_requests=4)}
    trap = AtProbe()
    store = MortalStore(world.runner.store)
    mortal: Any = store
    runner = BatchRunner(mortal, world.artifacts, clock=world.clock, probe=trap)
    trap.arm((2, probe), store.die)  # the second chunk: the first one is on its way
    with closing(runner), pytest.raises(DiedError):
        runner.run_and_wait(world.job(12, **options), run_id="run-1")
    run = world.run(12, **options)
    assert run.status == "succeeded"
    check_conserved(run, 12)
    check_paid_once(world)


@every_provider
def test_a_cancelled_run_cancels_its_batches(world: World, config: Any) -> None:
    """The provider would go on working for nobody."""
    run = world.open(6, provider_config=config(world.sim))
    run.advance()
    run.advance()
    run.cancel("not wanted any more")
    run.wait()
    assert run.status == "cancelled"
    assert set(statuses(run).values()) <= {"run_cancelled", "ok"}
    assert world.batches() == 1
    check_conserved(run, 6)


@pytest.fixture
def strangers(world: World) -> Iterator[World]:
    """Another program with the same key, and a store of its own."""
    with _another_store(world) as strangers:
        yield strangers


@pytest.fixture
def slow(worlds: Worlds) -> World:
    """A world whose batches work for longer than the settling time."""
    return worlds(batch_seconds=1_000.0)


@pytest.fixture
def slow_strangers(slow: World) -> Iterator[World]:
    """Another program in the slow world."""
    with _another_store(slow) as strangers:
        yield strangers


@contextmanager
def _another_store(world: World) -> Iterator[World]:
    folder = world.folder / "elsewhere"
    folder.mkdir()
    strangers = World(world.sim, folder)
    yield strangers
    strangers.close_runners()


class TestWithoutKeys:
    """Anthropic: nothing of a batch says whose it is, but for its results."""

    CREATE = "anthropic.batches.create"

    def drop(self, world: World, kind: str = "drop_after_commit", **options: Any) -> None:
        rule = {"kind": kind, "times": 1, "match": {"route": self.CREATE}, **options}
        world.sim.faults(rule)

    def test_a_batch_that_was_never_made_is_made_after_settling(self, world: World) -> None:
        """A row would wait for ever for a batch that does not exist."""
        self.drop(world, "drop_before_commit")
        run = world.run(6, provider_config=_anthropic(world.sim))
        assert run.status == "succeeded"
        assert world.batches() == 1
        check_conserved(run, 6)
        check_paid_once(world)

    def test_a_stranger_of_the_same_size_is_no_answer(self, world: World, strangers: World) -> None:
        """Another program's batch would be taken for ours, and its answers be lost as ours."""
        config = _anthropic(world.sim)
        self.drop(world, "drop_before_commit")
        mine = world.open(6, provider_config=config)
        mine.advance()
        mine.advance()
        assert "submission.create_unknown" in world.kinds()
        theirs = strangers.open(other_items(6), run_id="theirs", provider_config=config)
        theirs.advance()
        theirs.advance()
        assert world.batches() == 1
        mine.wait()
        theirs.wait()
        assert mine.status == theirs.status == "succeeded"
        assert world.batches() == 2
        check_conserved(mine, 6)
        check_conserved(theirs, 6)
        check_paid_once(world)

    def test_a_batch_taken_for_ours_on_suspicion_is_believed_by_its_results(
        self, worlds: Worlds
    ) -> None:
        """A batch that works for longer than the settling time would be paid for twice."""
        world = worlds(batch_seconds=1_000.0)
        self.drop(world)
        run = world.run(6, provider_config=_anthropic(world.sim))
        assert run.status == "succeeded"
        assert world.batches() == 1
        assert world.events("submission.disproved") == []
        check_conserved(run, 6)
        check_paid_once(world)

    def test_suspicion_that_was_wrong_loses_nothing(
        self, slow: World, slow_strangers: World
    ) -> None:
        """Rows would get no answer, or the stranger's batch be cancelled."""
        config = _anthropic(slow.sim)
        self.drop(slow, "drop_before_commit")
        mine = slow.open(6, provider_config=config)
        mine.advance()
        mine.advance()
        theirs = slow_strangers.open(other_items(6), run_id="theirs", provider_config=config)
        theirs.advance()
        theirs.advance()
        mine.wait()
        theirs.wait()
        assert len(slow.events("submission.disproved")) == 1
        assert mine.status == theirs.status == "succeeded"
        assert slow.batches() == 2
        check_conserved(mine, 6)
        check_paid_once(slow)

    def test_a_suspect_that_vanishes_takes_no_row_with_it(
        self, slow: World, slow_strangers: World
    ) -> None:
        """Rows would count as lost because another program's batch was deleted."""
        config = _anthropic(slow.sim)
        self.drop(slow, "drop_before_commit")
        mine = slow.open(6, provider_config=config)
        mine.advance()
        mine.advance()
        theirs = slow_strangers.open(other_items(6), run_id="theirs", provider_config=config)
        theirs.advance()
        theirs.advance()
        with pytest.raises(WaitTimeoutError):
            mine.wait(400)
        assert [e["adopted"] for e in slow.events("submission.activated")] == [True]
        gone = {"route": "anthropic.batches.get"}
        slow.sim.faults({"kind": "http_error", "status": 404, "times": 25, "match": gone})
        mine.wait()
        assert slow.events("submission.disproved")
        assert mine.status == "succeeded"
        check_conserved(mine, 6)
        assert slow.batches() == 2

    def test_two_runs_suspect_the_same_batch(self, worlds: Worlds) -> None:
        """The run whose batch it is would send its rows again, because another one has it."""
        world = worlds(batch_seconds=3_000.0)
        config = _anthropic(world.sim)
        self.drop(world, "drop_before_commit")
        first = world.open(6, run_id="first", provider_config=config)
        first.advance()
        first.advance()
        world.clock.sleep(400)  # nobody drives it for a while
        self.drop(world)
        second = world.open(other_items(6), run_id="second", provider_config=config)
        second.advance()
        second.advance()
        again = world.new_runner().open(world.job(6, provider_config=config), run_id="first")
        again.advance()
        (held,) = world.runner.store.list_submissions("first")
        assert held.is_provisional
        second.wait()
        first.wait()
        assert first.status == second.status == "succeeded"
        assert world.batches() == 2
        check_conserved(first, 6)
        check_conserved(second, 6)
        check_paid_once(world)

    def test_cancelling_leaves_a_suspect_alone(self, slow: World, slow_strangers: World) -> None:
        """Another program's batch would be cancelled, and its rows be lost."""
        config = _anthropic(slow.sim)
        self.drop(slow, "drop_before_commit")
        mine = slow.open(6, provider_config=config)
        mine.advance()
        mine.advance()
        theirs = slow_strangers.open(other_items(6), run_id="theirs", provider_config=config)
        theirs.advance()
        theirs.advance()
        with pytest.raises(WaitTimeoutError):
            mine.wait(400)
        mine.cancel("not wanted")
        mine.wait()
        theirs.wait()
        assert mine.status == "cancelled"
        assert theirs.status == "succeeded"
        check_conserved(theirs, 6)

    def test_reconcile_knows_what_the_store_knows(self, world: World) -> None:
        """A batch of ours would be told to be somebody else's."""
        run = world.open(6, provider_config=_anthropic(world.sim))
        run.advance()
        run.advance()
        (found,) = world.runner.reconcile(is_dry=True)
        assert found.finding is Finding.KNOWN

    def test_nothing_is_created_while_a_create_is_in_doubt(self, world: World) -> None:
        """Two batches of one size could not be told apart while both work."""
        config = _anthropic(world.sim)
        self.drop(world)
        first = world.open(6, run_id="first", provider_config=config)
        first.advance()
        first.advance()
        second = world.open(other_items(6), run_id="second", provider_config=config)
        second.advance()
        second.advance()
        assert world.batches() == 1
        first.wait()
        second.wait()
        assert first.status == second.status == "succeeded"
        assert world.batches() == 2
        check_paid_once(world)

    def test_chunks_of_one_size_find_their_own(self, world: World) -> None:
        """Answers to the first half of the rows would be taken for those to the second."""
        self.drop(world, times=2)
        run = world.run(
            12, provider_config=_anthropic(world.sim), chunk_policy=ChunkPolicy(max_requests=4)
        )
        assert run.status == "succeeded"
        assert world.batches() == 3
        check_conserved(run, 12)
        check_paid_once(world)


def _snippet(world: World, config: Any) -> str | None:
    """The typical use of the core, as the README has it."""
    run = world.runner.run_and_wait(
        world.job(
            [BatchItem(item_id="row1", payload="Summarize this text")],
            build_prompt=lambda item: PromptParts(prompt=item.payload),
            provider_config=config,
        )
    )
    text: str | None = run.results()[0].output_text
    return text


@every_provider
def test_typical_use(world: World, config: Any) -> None:
    """The snippet that everybody copies would not work with this provider."""
    assert "Summarize this text" in (_snippet(world, config(world.sim)) or "")


def test_items_keep_their_order(world: World) -> None:
    """Rows of an input that is no frame would come back in another order."""
    run = world.run(items(5), provider_config=_anthropic(world.sim))
    check_conserved(run, 5)
