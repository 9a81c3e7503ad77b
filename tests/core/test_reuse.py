"""Answers that were paid for once: rows that are asked for again get them at no cost."""

from typing import Any

import pytest
from pydantic import field_validator

from batchor_core import BatchItem, Run
from batchor_core.model.policies import ChunkPolicy, ReusePolicy
from tests.core.world import Verdict, World, check_conserved, check_paid_once, items, statuses

NAMESPACE = ReusePolicy(source="namespace")


def changed(count: int, *numbers: int) -> list[BatchItem]:
    """Rows of which some ask something else."""
    rows = items(count)
    for number in numbers:
        rows[number] = BatchItem(item_id=f"item-{number}", payload=f"Another question {number};")
    return rows


def reused(run: Run) -> list[str]:
    """Ids of the rows that the table marks."""
    frame = run.results_frame().filter("batch_reused").collect()
    return list(frame["item_id"])


def texts(run: Run) -> list[str | None]:
    """The answers, in order."""
    return [result.output_text for result in run.results()]


def test_only_changed_rows_are_sent(world: World) -> None:
    """Ninety-five answers would be paid for a second time."""
    first = world.run(100, run_id="first")
    run = world.run(changed(100, 3, 14, 15, 92, 65), run_id="second", reuse=NAMESPACE)
    assert world.sim.ledger().executed() == 105
    counts = run.counts()
    assert (counts.ok, counts.reused) == (100, 95)
    assert len(reused(run)) == 95
    assert "item-14" not in reused(run)
    same = [n for n in range(100) if n not in {3, 14, 15, 92, 65}]
    assert [texts(run)[n] for n in same] == [texts(first)[n] for n in same]
    check_conserved(run, 100)
    check_paid_once(world)


def test_items_keep_their_answers_whatever_is_asked(world: World) -> None:
    """Mending failed rows would pay for all the others, once the prompt was touched."""
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "number 2;"}})
    first = world.run(5, run_id="first")
    assert [n for n, status in statuses(first).items() if status != "ok"] == ["item-2"]
    world.sim.clear_faults()
    mend = ReusePolicy(match="item", run_ids=("first",))
    run = world.run(changed(5, 0, 1, 2), run_id="second", reuse=mend)
    assert reused(run) == ["item-0", "item-1", "item-3", "item-4"]
    assert world.sim.ledger().executed() == 5
    assert texts(run)[:2] == texts(first)[:2]
    check_conserved(run, 5)
    # The new questions of rows 0 and 1 were never asked: nobody may take these answers for theirs.
    third = world.run(changed(5, 0, 1, 2), run_id="third", reuse=ReusePolicy(run_ids=("second",)))
    assert reused(third) == ["item-2", "item-3", "item-4"]
    assert world.sim.ledger().executed() == 7


def test_what_is_reused_costs_nothing(world: World) -> None:
    """The costs of the first run would be counted again."""
    first = world.run(10, run_id="first")
    run = world.run(10, run_id="second", reuse=NAMESPACE)
    assert world.batches() == 1
    assert run.status == "succeeded"
    assert (run.summary().cost_usd, run.summary().usage.input_tokens) == (0.0, 0)
    assert first.summary().cost_usd > 0
    frame = run.results_frame().collect()
    assert frame["batch_cost_usd"].to_list() == [0.0] * 10
    assert frame["batch_attempts"].to_list() == [0] * 10
    check_conserved(run, 10)


def test_nothing_is_taken_from_other_runs_unasked(world: World) -> None:
    """Whoever wants a second opinion would get the first one again."""
    world.run(5, run_id="first")
    run = world.run(5, run_id="second")
    assert world.sim.ledger().executed() == 10
    assert reused(run) == []


def test_what_is_reused_costs_nothing_at_an_unknown_price(world: World) -> None:
    """Nothing would be known about the cost of a run that has cost nothing."""
    config = {"model": "nobodys-model"}
    assert world.run(3, run_id="first", config=config).summary().cost_usd is None
    run = world.run(3, run_id="second", config=config, reuse=NAMESPACE)
    assert run.summary().cost_usd == 0.0
    assert run.results_frame().collect()["batch_cost_usd"].to_list() == [0.0] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"system_prompt": "Be brief."},
        {"config": {"model": "gpt-4.1"}},
        {"config": {"params": {"temperature": 1}}},
        {"config": {"max_output_tokens": 77}},
        {"structured_output": Verdict},
        {"config": {"endpoint": "chat"}},
    ],
)
def test_another_request_is_asked(world: World, options: dict[str, Any]) -> None:
    """A row would get the answer to another question."""
    world.run(4, run_id="first")
    run = world.run(4, run_id="second", reuse=NAMESPACE, **options)
    assert reused(run) == []
    assert world.sim.ledger().executed() == 8


def test_failed_rows_are_asked_again(world: World) -> None:
    """A failure would be handed down for ever."""
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "number 2;"}})
    world.run(5, run_id="first")
    world.sim.clear_faults()
    run = world.run(5, run_id="second", reuse=ReusePolicy(run_ids=("first",)))
    assert statuses(run)["item-2"] == "ok"
    assert reused(run) == ["item-0", "item-1", "item-3", "item-4"]
    check_conserved(run, 5)


def test_a_successor_pays_for_what_is_new(world: World) -> None:
    """A changed row would cost all the others again."""
    first = world.open(8, run_id="nightly", chunk_policy=ChunkPolicy(max_requests=4))
    first.advance()
    first.advance()
    world.sim.advance_time(200)  # answered, but not collected yet
    job = world.job(changed(8, 5), on_change="supersede")
    run = world.runner.open(job, run_id="nightly")
    run.wait()
    assert run.run_id != "nightly"
    assert world.sim.ledger().executed() == 9
    assert len(reused(run)) == 7
    check_conserved(run, 8)
    check_paid_once(world)


class Strict(Verdict):
    """The same schema, and a rule that no schema says."""

    @field_validator("*")
    @classmethod
    def _never(cls, value: object) -> object:
        if Strict.refuses:
            raise ValueError("not good enough any more")
        return value


Strict.refuses = False  # type: ignore[attr-defined]


def test_answers_are_held_against_todays_model(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that was added to the model would not hold for what was answered before."""
    world.run(3, run_id="first", structured_output=Strict)
    again = world.run(3, run_id="second", structured_output=Strict, reuse=NAMESPACE)
    assert len(reused(again)) == 3
    assert [r.output for r in again.results()] == [
        r.output for r in world.runner.get_run("first").results()
    ]
    monkeypatch.setattr(Strict, "refuses", True)
    run = world.run(3, run_id="third", structured_output=Strict, reuse=NAMESPACE)
    assert reused(run) == []


def test_equal_rows_share_an_answer(world: World) -> None:
    """A row that stands twice in the new input would only be answered once."""
    world.run(2, run_id="first")
    rows = [BatchItem(item_id=f"item-{n}", payload="Prompt number 1;") for n in range(3)]
    run = world.run(rows, run_id="second", reuse=NAMESPACE)
    assert run.counts().reused == 3
    assert world.batches() == 1
    check_conserved(run, 3)


def test_embeddings_are_reused(world: World) -> None:
    """Vectors have no text: none would be found, or rows would get no vector."""
    config = {"endpoint": "embeddings", "model": "text-embedding-3-small", "dimensions": 8}
    first = world.run(6, run_id="first", config=config)
    run = world.run(changed(6, 4), run_id="second", config=config, reuse=NAMESPACE)
    assert run.counts().reused == 5
    vectors = [r.output for r in run.results()]
    expected = [r.output for r in first.results()]
    assert vectors[:4] == expected[:4]
    assert vectors[4] != expected[4]
    check_conserved(run, 6)


def test_lost_files_of_an_earlier_run_are_no_obstacle(world: World) -> None:
    """A run would fail because of what another run has lost."""
    world.run(3, run_id="first")
    world.runner.artifacts.delete_folder("runs/first/outcomes")
    run = world.run(3, run_id="second", reuse=NAMESPACE)
    assert run.status == "succeeded"
    assert reused(run) == []


def test_chunks_are_reused_part_by_part(world: World) -> None:
    """Rows of several chunks would be mixed up, or a chunk without a single answer be lost."""
    world.run(10, run_id="first", chunk_policy=ChunkPolicy(max_requests=3))
    run = world.run(
        changed(12, 4, 9, 10, 11),
        run_id="second",
        reuse=NAMESPACE,
        chunk_policy=ChunkPolicy(max_requests=4),
    )
    assert run.counts().reused == 8
    assert world.sim.ledger().executed() == 14
    check_conserved(run, 12)
    check_paid_once(world)


@pytest.mark.parametrize("probe", ["reuse.written", "reuse.committed"])
def test_a_crash_in_between_changes_nothing(world: World, probe: str) -> None:
    """Half of the chunks would be sent although they are answered, or a row be counted twice."""
    world.run(9, run_id="first")

    class Crash(BaseException):
        pass

    def crash(name: str) -> None:
        if name == probe:
            raise Crash

    job = world.job(changed(9, 1), reuse=NAMESPACE, chunk_policy=ChunkPolicy(max_requests=3))
    mortal = world.new_runner(probe=crash)
    with pytest.raises(Crash):
        mortal.run_and_wait(job, run_id="second")
    world.clock.sleep(200)  # the dead process's lease
    run = world.runner.run_and_wait(job, run_id="second")
    assert run.counts().reused == 8
    assert world.sim.ledger().executed() == 10
    check_conserved(run, 9)


class TestWithinARun:
    """Rows that ask the very same, in one run."""

    ONCE = ReusePolicy(source="off", within_run=True)

    def rows(self, count: int, distinct: int) -> list[BatchItem]:
        return [
            BatchItem(item_id=f"item-{n}", payload=f"Prompt number {n % distinct};")
            for n in range(count)
        ]

    @pytest.mark.parametrize("chunk", [100, 7, 1])
    def test_the_same_question_is_asked_once(self, world: World, chunk: int) -> None:
        """Nine of ten requests would be paid for nothing."""
        run = world.run(
            self.rows(30, 3), reuse=self.ONCE, chunk_policy=ChunkPolicy(max_requests=chunk)
        )
        assert run.status == "succeeded"
        assert world.sim.ledger().executed() == 3
        assert run.counts().reused == 27
        answers = texts(run)
        assert answers == answers[:3] * 10
        assert len(set(answers)) == 3
        check_conserved(run, 30)

    def test_every_row_is_asked_unless_wanted(self, world: World) -> None:
        """Who samples a model's answers would always get the same one."""
        run = world.run(self.rows(6, 2))
        assert world.sim.ledger().executed() == 6
        check_conserved(run, 6)

    def test_a_question_that_failed_fails_all_who_asked(self, world: World) -> None:
        """Rows would wait for ever, or what is known to fail be paid for again."""
        world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": "number 1;"}})
        run = world.run(self.rows(6, 3), reuse=self.ONCE)
        assert world.sim.ledger().executed() == 2
        found = statuses(run)
        assert found["item-4"] == "duplicate_failed"
        assert found["item-1"] not in {"ok", "duplicate_failed"}
        assert [n for n in range(6) if found[f"item-{n}"] == "ok"] == [0, 2, 3, 5]
        check_conserved(run, 6)

    def test_a_retry_answers_those_who_wait(self, world: World) -> None:
        """Rows would be given up while their answer is on its way."""
        world.sim.faults(
            {"kind": "line_error", "status": 500, "rounds": 1, "match": {"prompt": "number 1;"}}
        )
        run = world.run(self.rows(9, 3), reuse=self.ONCE)
        assert run.status == "succeeded"
        assert world.sim.ledger().executed() == 4 - 1  # the failed one was not executed
        check_conserved(run, 9)

    def test_a_cancelled_run_ends(self, world: World) -> None:
        """Rows that wait for others would keep the run open."""
        run = world.open(self.rows(6, 2), reuse=self.ONCE)
        run.advance()
        run.advance()
        run.cancel("no")
        run.wait()
        assert run.status == "cancelled"
        check_conserved(run, 6)
