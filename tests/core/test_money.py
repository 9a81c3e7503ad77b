"""Budgets, estimates and costs of whole runs against the simulator."""

from datetime import timedelta
from typing import Any

import pytest

from batchor_core import (
    BatchItem,
    BatchJob,
    BudgetError,
    BudgetExceededError,
    BudgetPolicy,
    ConfigurationError,
    RunPausedError,
    TokenPrice,
)
from batchor_core.model.policies import ChunkPolicy, ReusePolicy
from batchor_core.model.states import RunControlState, RunState, SubmissionState
from batchor_core.results.costs import add, cost_lines
from tests.core.world import Verdict, World, check_conserved, check_paid_once, job_for

TWOS = ChunkPolicy(max_requests=2)
FREE_INPUT = TokenPrice(input_usd=0, output_usd=20, batch_discount=0.5)
"""Batch mode: a cent for 1,000 output tokens, so that a cost is seen at a glance."""
BOUND = {"max_output_tokens": 100, "price": FREE_INPUT}
"""Each item reserves a tenth of a cent."""
CENT = 0.01


def cents(count: float) -> float:
    """So many cents, in dollars."""
    return count * CENT


def check_nothing_sent(world: World) -> None:
    """The provider has neither a batch nor a file."""
    assert world.batches() == 0
    assert world.sim.state.openai.list_files({})["data"] == []


class TestBeforeTheFirstBatch:
    def test_too_small_a_budget_sends_nothing_and_a_larger_one_goes_on(self, world: World) -> None:
        """A run that nobody can afford would be paid for in part, or its rows be read again."""
        job = world.job(6, config=BOUND, budget_usd=cents(0.5))
        for _ in range(2):  # started again, it says the same
            with pytest.raises(BudgetExceededError, match=r"\$0\.006.*\$0\.005"):
                world.runner.start(job, run_id="run-1")
        check_nothing_sent(world)
        run = world.runner.get_run("run-1")
        assert (run.status, run.control_state) == (RunState.RUNNING, RunControlState.PAUSE)
        assert (run.control_reason or "").startswith("budget: ")
        with pytest.raises(BudgetExceededError):
            run.wait()
        more = world.job(6, config=BOUND, budget_usd=cents(0.6))
        done = world.runner.run_and_wait(more, run_id="run-1")
        check_conserved(done, 6)
        check_paid_once(world)
        assert world.kinds().count("run.ingested") == 1

    def test_resumed_with_a_larger_budget_by_another_process(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The budget would live in the process that was started with it."""
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        job = world.job(6, config=BOUND, budget_usd=cents(0.5))
        with pytest.raises(BudgetExceededError):
            world.runner.start(job, run_id="run-1")
        elsewhere = world.new_runner().get_run("run-1")
        elsewhere.resume(BudgetPolicy(run_usd=cents(0.55)))
        assert elsewhere.control_state is RunControlState.RUN
        with pytest.raises(BudgetExceededError, match=r"\$0\.0055"):
            elsewhere.wait()
        elsewhere.resume(BudgetPolicy(run_usd=1))
        assert world.runner.get_run("run-1").wait().status is RunState.SUCCEEDED

    def test_a_run_whose_id_nobody_has_chosen_is_dropped(self, world: World) -> None:
        """Runs that can never be found again would pile up, paused."""
        job = world.job(6, config=BOUND, budget_usd=cents(0.5))
        for start in (world.runner.start, world.runner.run_and_wait):
            with pytest.raises(BudgetExceededError):
                start(job)
        assert {run.state for run in world.runner.list_runs()} == {RunState.CANCELLED}
        check_nothing_sent(world)

    def test_a_budget_without_a_price_is_refused(self, world: World) -> None:
        """A budget would be promised that nobody can hold."""
        job = world.job(config={"model": "no-such-model"}, budget_usd=5)
        with pytest.raises(BudgetError, match="price="):
            world.runner.start(job, run_id="run-1")
        assert world.runner.list_runs() == []
        unpriced = world.open(config={"model": "no-such-model"})
        with pytest.raises(BudgetError, match="price="):
            unpriced.resume(BudgetPolicy(scope_day_usd=5))
        priced = world.job(config={"model": "no-such-model", "price": FREE_INPUT}, budget_usd=5)
        assert world.runner.run_and_wait(priced, run_id="run-2").status is RunState.SUCCEEDED

    @pytest.mark.parametrize(
        "budget",
        [
            {"budget_usd": 0},
            {"budget_usd": float("nan")},
            {"budget_usd": 1, "budget": BudgetPolicy(run_usd=2)},
        ],
    )
    def test_a_budget_that_means_nothing_is_refused(self, budget: dict[str, Any]) -> None:
        """A run would be without a bound that its author believes in."""
        with pytest.raises(ConfigurationError, match="budget_usd"):
            job_for("http://127.0.0.1:9/v1", **budget)


class TestOnTheWay:
    def test_actual_cost_above_what_was_reserved_pauses(self, world: World) -> None:
        """Longer answers than assumed would run through any budget."""
        # Simulated answers have more than one output token, and one is reserved for each.
        job = world.job(
            4,
            chunk_policy=TWOS,
            config={"price": FREE_INPUT, "enqueue_limit": {"max_batches": 1}},
            assumed_output_tokens=1,
            budget_usd=0.00005,
        )
        with pytest.raises(RunPausedError, match=r"budget: .*\$0\.00005") as paused:
            world.runner.run_and_wait(job, run_id="run-1")
        run = world.runner.get_run("run-1")
        cost = run.summary().cost_usd
        assert cost is not None
        assert cost > 0.00003
        assert f"${cost:.6f}".rstrip("0") in str(paused.value)
        assert (world.batches(), run.counts().ok, run.counts().ready) == (1, 2, 2)
        run.resume()  # the same budget: nothing more
        with pytest.raises(RunPausedError, match="budget"):
            run.wait()
        assert world.batches() == 1
        run.resume(BudgetPolicy(run_usd=1)).wait()
        check_conserved(run, 4)
        check_paid_once(world)

    def test_retries_stay_within_the_budget(self, world: World) -> None:
        """What is sent again would be paid on top of the budget."""
        world.sim.faults(kind="invalid_json_answer", rounds=1)
        job = world.job(
            4,
            structured_output=Verdict,
            config={"price": FREE_INPUT},
            assumed_output_tokens=1,
            budget_usd=0.00005,
        )
        with pytest.raises(RunPausedError, match="budget: "):
            world.runner.run_and_wait(job, run_id="run-1")
        run = world.runner.get_run("run-1")
        assert (world.batches(), run.counts().ready) == (1, 4)
        run.resume(BudgetPolicy(run_usd=1)).wait()
        check_conserved(run, 4)
        assert (world.batches(), run.counts().ok) == (2, 4)

    def test_reserved_room_that_comes_free_is_waited_for(self, world: World) -> None:
        """A run would need a person although its budget is enough."""
        # What is in flight reserves 100 tokens an item, which answers of a few words never use.
        config = {**BOUND, "enqueue_limit": {"max_batches": 2}}
        job = world.job(6, config=config, chunk_policy=TWOS, budget_usd=cents(0.6))
        run = world.runner.start(job, run_id="run-1")
        run.resume(BudgetPolicy(run_usd=cents(0.45)))  # 0.4 are reserved, 0.2 are wanted
        run.advance()
        assert (world.batches(), run.control_state) == (2, RunControlState.RUN)
        assert run.wait().status is RunState.SUCCEEDED
        assert "run.controlled" not in world.kinds()

    def test_the_day_s_budget_is_shared_and_renewed_at_midnight(self, world: World) -> None:
        """Two runs would spend what one may, or no run ever start again."""
        day = BudgetPolicy(scope_day_usd=cents(0.5))
        first = world.job(4, config=BOUND, budget=day)
        second = world.job([BatchItem(item_id="b", payload="Another")], config=BOUND, budget=day)
        third = world.job([BatchItem(item_id="c", payload="A third")], config=BOUND, budget=day)
        world.runner.start(first, run_id="run-1")
        world.runner.start(second, run_id="run-2")
        with pytest.raises(BudgetExceededError, match="the day's budget"):
            world.runner.start(third, run_id="run-3")
        assert world.batches() == 2
        world.clock.sleep(timedelta(hours=12).total_seconds())  # worlds begin at noon
        run = world.runner.get_run("run-3").resume()
        assert run.wait().status is RunState.SUCCEEDED

    def test_a_bound_that_is_left_out_stays(self, world: World) -> None:
        """Starting again without the option would take the bound off."""
        run = world.open(6, config=BOUND, budget=BudgetPolicy(run_usd=1, scope_day_usd=2))
        assert run.record.budget_usd == 1
        again = world.open(6, config=BOUND, budget_usd=3)
        assert (again.record.budget_usd, again.record.budget_day_usd) == (3, 2)
        changed = world.open(4, config=BOUND, system_prompt="Anew.")  # its input is read anew
        assert "run.ingestion_restarted" in world.kinds()
        assert (changed.record.budget_usd, changed.record.budget_day_usd) == (3, 2)

    def test_answers_that_are_reused_need_no_budget(self, world: World) -> None:
        """A run whose answers are all there would be refused for what they once cost."""
        world.run(6, config=BOUND)
        again = world.job(
            7, config=BOUND, budget_usd=cents(0.1), reuse=ReusePolicy(source="namespace")
        )
        run = world.runner.run_and_wait(again, run_id="run-2")
        assert (run.status, run.counts().reused) == (RunState.SUCCEEDED, 6)

    def test_rows_that_are_asked_once_are_paid_once(self, world: World) -> None:
        """Rows that only wait for an answer to the same would count against the budget."""
        rows = [BatchItem(item_id=f"item-{n}", payload="The same") for n in range(6)]
        job = world.job(
            rows, config=BOUND, budget_usd=cents(0.1), reuse=ReusePolicy(within_run=True)
        )
        check_conserved(world.runner.run_and_wait(job, run_id="run-1"), 6)

    def test_what_is_not_reused_has_to_fit_as_a_whole(self, world: World) -> None:
        """Answers that cost nothing would count as a batch, and the rest go out in part."""
        world.run(6, config=BOUND)
        again = world.job(
            10,
            config=BOUND,
            chunk_policy=TWOS,
            budget_usd=cents(0.3),
            reuse=ReusePolicy(source="namespace"),
        )
        with pytest.raises(BudgetExceededError, match=r"estimate of \$0\.004 "):
            world.runner.run_and_wait(again, run_id="run-2")
        assert world.batches() == 1


class TestEstimate:
    def test_it_is_what_ingestion_packs_and_reserves(self, world: World) -> None:
        """The estimate would promise another cost than the one that budgets are held against."""
        rows = [BatchItem(item_id=f"item-{n}", payload="word " * (1 + n % 40)) for n in range(300)]
        job = world.job(rows, config=BOUND, chunk_policy=ChunkPolicy(max_tokens=2_000))
        found = world.runner.estimate(job)
        assert world.runner.list_runs() == []
        run = world.runner.open(job, run_id="run-1").ingest()
        chunks = world.runner.store.list_chunks("run-1")
        assert (found.rows, found.chunks) == (300, len(chunks))
        assert len(chunks) > 5
        assert found.input_tokens == sum(chunk.input_tokens for chunk in chunks)
        assert found.reserved_usd == pytest.approx(sum(chunk.cost_usd or 0.0 for chunk in chunks))
        assert found.reserved_usd == pytest.approx(cents(30))
        sealed = run.estimate()
        assert (sealed.input_tokens, sealed.chunks) == (found.input_tokens, found.chunks)
        assert sealed.expected_usd == pytest.approx(found.expected_usd)
        actual = sum(chunk.requests.size_bytes for chunk in chunks)
        assert actual <= found.size_bytes <= actual * 1.2

    def test_it_sends_nothing_writes_nothing_and_needs_no_key(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Asking what something costs would cost something, or need an account."""
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        before = _files(world)
        found = world.runner.estimate(world.job(config={"api_key": None}))
        assert (found.rows, found.price_source) == (6, "genai-prices")
        check_nothing_sent(world)
        assert _files(world) == before
        unknown = world.job(config={"api_key": None, "model": "no-such-model"})
        assert world.runner.estimate(unknown).expected_usd is None

    def test_limits_that_the_provider_has_named_count(self, world: World) -> None:
        """The time would be told as if the queue had no end."""
        job = world.job(config={"enqueue_limit": {"max_tokens": 1_000_000}})
        assert world.runner.estimate(job).queue_rounds == 1
        scope = world.runner.open(job).record.scope
        from batchor_core.model.records import ScopeLimits

        world.runner.store.remember_limits(scope, ScopeLimits(max_requests=2), None)
        assert world.runner.estimate(job).queue_rounds == 3

    def test_rows_that_can_be_read_once_are_not_used_up(self, world: World) -> None:
        """The run after the estimate would find no rows."""
        rows = (BatchItem(item_id=str(n), payload="x") for n in range(3))
        with pytest.raises(ConfigurationError, match="only once"):
            world.runner.estimate(world.job(rows))
        assert len(list(rows)) == 3

    def test_packed_embeddings_are_estimated_by_item(self, world: World) -> None:
        """Requests that hold many items would be taken for as many batches."""
        config = {"model": "text-embedding-3-small", "endpoint": "embeddings"}
        found = world.runner.estimate(world.job(500, config=config))
        assert (found.rows, found.chunks, found.output_tokens) == (500, 1, 0)
        assert found.expected_usd == found.high_usd


class TestCosts:
    def test_the_bill_is_what_the_runs_have_cost_and_half_is_saved(self, world: World) -> None:
        """The bill would not add up to what the runs say."""
        first = world.run(6)
        second = world.run(4, run_id="run-2", config={"model": "gpt-4.1"})
        lines = world.runner.costs()
        summaries = {run.run_id: run.summary() for run in (first, second)}
        assert {line.key: line.cost_usd for line in lines} == {
            name: pytest.approx(summary.cost_usd) for name, summary in summaries.items()
        }
        for line in lines:
            assert line.saved_usd == pytest.approx(summaries[str(line.key)].saved_usd)
            assert line.saved_usd == pytest.approx(line.cost_usd)
        models = world.runner.costs("model")
        assert {line.key: line.items for line in models} == {"gpt-4.1-mini": 6, "gpt-4.1": 4}
        assert [line.key for line in models] == ["gpt-4.1", "gpt-4.1-mini"]  # dearest first
        (provider,), (day,), (asset,) = (
            world.runner.costs(by) for by in ("provider", "day", "asset")
        )
        assert (provider.key, day.key, asset.key) == ("openai", "2025-06-01", None)
        assert provider.cost_usd == pytest.approx(sum(line.cost_usd or 0 for line in lines))
        assert world.runner.costs(since=world.clock.now() + timedelta(days=1)) == []
        assert world.new_runner(namespace="other").costs() == []

    def test_unknown_prices_stay_unknown_in_every_sum(self, world: World) -> None:
        """A bill would be shown as complete that leaves a model out."""
        world.run(2)
        world.run(3, run_id="run-2", config={"model": "no-such-model"})
        known, unknown = world.runner.costs("model")
        assert known.cost_usd
        assert unknown.key == "no-such-model"
        assert (unknown.cost_usd, unknown.known_usd, unknown.saved_usd) == (None, None, None)
        assert unknown.unpriced_tokens == unknown.input_tokens + unknown.output_tokens > 0
        (both,) = world.runner.costs("provider")
        assert (both.cost_usd, both.known_usd) == (None, pytest.approx(known.known_usd))
        assert both.unpriced_tokens == unknown.unpriced_tokens
        total = add(known, unknown, "total")
        assert (total.key, total.cost_usd, total.items) == ("total", None, 5)
        assert total.saved_usd == known.saved_usd > 0
        assert add(unknown, unknown).saved_usd is None

    def test_a_stated_discount_is_what_is_saved(self, world: World) -> None:
        """Somebody's own discount would be shown as everybody's half."""
        price = TokenPrice(input_usd=1, output_usd=8, batch_discount=0.75)
        run = world.run(2, config={"price": price})
        (line,) = world.runner.costs()
        assert line.saved_usd == pytest.approx(3 * (run.summary().cost_usd or 0.0))

    def test_ten_thousand_batches_are_summed_by_the_database(self, world: World) -> None:
        """The bill of a large account would load every batch that ever was."""
        world.run(2, chunk_policy=ChunkPolicy(max_requests=1))
        store: Any = world.runner.store
        _multiply_submissions(store, 10_000)
        found = store.costs()
        assert [(costs.batches, costs.items) for costs in found] == [(10_000, 10_000)]
        (line,) = cost_lines(found, "run")
        collected = store.list_submissions("run-1", states=[SubmissionState.COLLECTED])
        assert line.known_usd == pytest.approx(sum(s.usage.cost_usd for s in collected))


def _multiply_submissions(store: Any, count: int) -> None:
    """Copy a run's collected submissions until there are so many."""
    from sqlalchemy import insert, select

    from batchor_core.store.sql.tables import submissions

    with store._database.write() as connection:
        rows = [dict(row) for row in connection.execute(select(submissions)).mappings()]
        copies = [
            {**rows[n % len(rows)], "submission_id": f"copy-{n}"} for n in range(count - len(rows))
        ]
        for copy in copies:
            del copy["ordinal"]
        connection.execute(insert(submissions), copies)


def _files(world: World) -> set[str]:
    return {str(path) for path in world.artifacts.rglob("*")} if world.artifacts.exists() else set()


def test_a_budget_is_no_part_of_what_a_run_is() -> None:
    """A changed budget would supersede a run, and pay for its rows again."""
    from batchor_core.job import StoredJob, declaration_of

    plain: BatchJob = job_for("http://127.0.0.1:9/v1")
    bounded = job_for("http://127.0.0.1:9/v1", budget_usd=5)
    assert StoredJob.of(plain).spec() == StoredJob.of(bounded).spec()
    assert declaration_of(plain, host="h", schema=None) == declaration_of(
        bounded, host="h", schema=None
    )


def test_lost_answers_are_no_free_ones(world: World) -> None:
    """Rows that are sent again because their answers are lost would run through the budget."""
    world.sim.faults(kind="results_gone")
    run = world.open(6, config=BOUND, budget_usd=cents(0.6), on_lost="resend")
    with pytest.raises(RunPausedError, match="budget"):
        run.wait()
    assert world.batches() == 1
    assert run.summary().cost_usd is None
