"""The store's contract about budgets and costs."""

from datetime import date, timedelta

import pytest

from batchor_core.errors import RunNotFoundError
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import Usage
from batchor_core.model.states import ChunkState, RunControlState, SubmissionState
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.store.protocol import BUDGET_PAUSE, OverBudget
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import (
    RunDriver,
    identity,
    member,
    new_run,
    new_submission,
    outcomes,
    waiter_request,
)


def _driver(
    store: OrchestratorStore, clock: ManualClock, run_id: str = "run_a", **budget: float | None
) -> RunDriver:
    driver = RunDriver(store, clock, run_id)
    store.set_budget(run_id, BudgetPolicy(**budget))
    return driver


def _over(driver: RunDriver, seq: int) -> OverBudget:
    """Try to intend a chunk, for which the budget has to be too small."""
    taken = driver.try_intend(driver.store.get_chunk(driver.run_id, seq))
    assert isinstance(taken, OverBudget), taken
    assert driver.store.get_chunk(driver.run_id, seq).state is ChunkState.READY
    return taken


class BudgetContract:
    """What every store promises about budgets."""

    def test_budget_is_kept_and_replaced(self, store: OrchestratorStore) -> None:
        """A budget would be lost with the process that set it, or could never be taken back."""
        run = store.create_run(new_run(budget_usd=1.5, budget_day_usd=None))
        assert (run.budget_usd, run.budget_day_usd) == (1.5, None)
        changed = store.set_budget("run_a", BudgetPolicy(scope_day_usd=20))
        assert (changed.budget_usd, changed.budget_day_usd) == (None, 20.0)
        assert store.get_run("run_a") == changed
        with pytest.raises(RunNotFoundError):
            store.set_budget("run_b", BudgetPolicy(run_usd=1))

    @pytest.mark.parametrize(
        ("reason", "after"),
        [(f"{BUDGET_PAUSE}used up", RunControlState.RUN), ("by hand", RunControlState.PAUSE)],
    )
    def test_new_budget_ends_a_pause_for_the_old_one(
        self, store: OrchestratorStore, reason: str, after: RunControlState
    ) -> None:
        """A larger budget would change nothing, or let a run go on that was stopped by hand."""
        store.create_run(new_run())
        store.set_control("run_a", RunControlState.PAUSE, reason)
        assert store.set_budget("run_a", BudgetPolicy(run_usd=9)).control is after

    def test_all_that_is_ready_has_to_fit_before_the_first_is_sent(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Half a run would be paid for that nobody can afford as a whole."""
        driver = _driver(store, clock, run_usd=1.4)
        for _ in range(3):
            driver.seal(cost_usd=0.5)
        over = _over(driver, 0)
        assert "$1.50" in over.reason
        assert "$1.40" in over.reason
        assert not over.may_clear
        store.set_budget("run_a", BudgetPolicy(run_usd=1.5))  # just enough is enough
        for seq in range(3):
            driver.intend(store.get_chunk("run_a", seq))

    def test_actual_and_reserved_cost_count_against_the_run(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would cost more than it may, or reservations would never be given back."""
        driver = _driver(store, clock, run_usd=0.9)
        first, second, third = (driver.seal(2, cost_usd=0.3) for _ in range(3))
        usage = Usage(cost_usd=0.5)  # more than was reserved
        driver.collect(first, outcomes(ok=2, usage=usage))
        live = driver.submit(second)
        over = _over(driver, third.seq)
        assert over.may_clear  # 0.5 paid and 0.3 wanted: only what is in flight is in the way
        assert all(amount in over.reason for amount in ("$0.90", "$0.50", "$1.10"))
        driver.end(live.submission_id)
        store.collect(driver.lease, live.submission_id, outcomes(ok=2, usage=Usage(cost_usd=0.2)))
        over = _over(driver, third.seq)
        assert not over.may_clear  # 0.7 paid
        store.set_budget("run_a", BudgetPolicy(run_usd=1.0))
        driver.intend(third)

    def test_given_up_and_reused_submissions_cost_nothing(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A refused batch would use the budget up, and the estimate not be checked after it."""
        driver = _driver(store, clock, run_usd=1.0)
        chunk = driver.seal(cost_usd=0.9)
        refused = driver.intend(chunk)
        store.void(driver.lease, refused.submission_id, reason="429", not_before=None)
        driver.seal(cost_usd=0.2)
        assert "estimate" in _over(driver, 0).reason
        store.set_budget("run_a", BudgetPolicy(run_usd=1.1))
        driver.intend(chunk)

    @pytest.mark.parametrize("budget", [{"run_usd": 9.0}, {"scope_day_usd": 9.0}])
    def test_unknown_cost_is_not_nothing(
        self, store: OrchestratorStore, clock: ManualClock, budget: dict[str, float]
    ) -> None:
        """Batches of unknown price would go out under a budget, as if they were free."""
        driver = _driver(store, clock)
        driver.submit(driver.seal(cost_usd=None))
        driver.seal(cost_usd=None)
        driver.seal(cost_usd=0.1)
        store.set_budget("run_a", BudgetPolicy(**budget))
        for seq in (1, 2):
            assert "nobody knows" in _over(driver, seq).reason

    def test_run_of_partly_unknown_cost_is_not_begun(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would be begun whose cost nobody can hold against its budget."""
        driver = _driver(store, clock, run_usd=9.0)
        driver.seal(cost_usd=0.1)
        driver.seal(cost_usd=None)
        assert "nobody knows what the run will cost" in _over(driver, 0).reason

    def test_cost_that_is_unknown_afterwards_counts_as_reserved(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """An answer without usage would make the rest of the budget free."""
        driver = _driver(store, clock, run_usd=1.0)
        first, second = driver.seal(1, cost_usd=0.4), driver.seal(1, cost_usd=0.4)
        driver.collect(first, outcomes(ok=1, usage=Usage(cost_usd=None)))
        store.set_budget("run_a", BudgetPolicy(run_usd=0.7))
        assert "$0.80" in _over(driver, second.seq).reason

    def test_day_s_budget_is_the_scope_s(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Several runs together would cost more in a day than the account may."""
        clock.advance(-timedelta(hours=clock.now().hour).total_seconds())  # soon after midnight
        other = RunDriver(store, clock, "run_b")
        driver = _driver(store, clock, scope_day_usd=1.0)
        foreign = RunDriver(store, clock, "run_c")
        foreign.intend(foreign.seal(cost_usd=5.0), scope="another")
        other.collect(other.seal(1, cost_usd=0.5), outcomes(ok=1, usage=Usage(cost_usd=0.3)))
        other.intend(other.seal(cost_usd=0.4))
        chunk = driver.seal(cost_usd=0.4)
        over = _over(driver, chunk.seq)
        assert "$1.00" in over.reason
        assert "$1.10" in over.reason
        assert not over.may_clear  # what another run has in flight may stay so
        clock.advance(timedelta(days=1).total_seconds())
        driver.lease = driver.take_lease()
        driver.intend(chunk)

    def test_own_reservations_of_the_day_may_clear(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A run would need a person although its own batches leave room when they end."""
        driver = _driver(store, clock, scope_day_usd=1.0)
        driver.intend(driver.seal(cost_usd=0.7))
        assert _over(driver, driver.seal(cost_usd=0.4).seq).may_clear

    @pytest.mark.parametrize("budget", [{"run_usd": 1.0}, {"scope_day_usd": 1.0}])
    def test_reservation_counts_until_the_cost_is_booked(
        self, store: OrchestratorStore, clock: ManualClock, budget: dict[str, float]
    ) -> None:
        """What has ended and is not collected yet would be free, and the budget spent twice."""
        driver = _driver(store, clock)
        store.set_budget("run_a", BudgetPolicy(**budget))
        first = driver.submit(driver.seal(1, cost_usd=0.8))
        second = driver.seal(1, cost_usd=0.8)
        driver.end(first.submission_id)
        over = _over(driver, second.seq)
        assert "$1.60" in over.reason
        assert over.may_clear  # it may have cost less
        paid = outcomes(ok=1, usage=Usage(cost_usd=0.1))
        store.collect(driver.lease, first.submission_id, paid)
        driver.intend(second)

    def test_batch_that_exists_is_adopted_over_any_budget(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A batch that is paid already would be left unclaimed after a restore."""
        driver = _driver(store, clock, run_usd=0.1, scope_day_usd=0.1)
        chunk = driver.seal(cost_usd=5.0)
        _over(driver, chunk.seq)
        submission = new_submission("run_a", chunk)
        taken = store.adopt(
            driver.lease,
            submission,
            upload_ref="u",
            created_at=clock.now(),
            provider_batch_id="b",
            provider_status="in_progress",
            next_poll_at=clock.now(),
        )
        assert (taken.state, taken.provider_batch_id) == (SubmissionState.ACTIVE, "b")


class CostContract:
    """What every store promises about costs."""

    def test_costs_are_summed_by_run_and_day(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """A day's or a run's bill would be another than what was paid."""
        first = clock.now().date()
        driver = RunDriver(store, clock)
        usage = Usage(
            input_tokens=10,
            cached_input_tokens=4,
            output_tokens=5,
            reasoning_tokens=2,
            cost_usd=0.25,
        )
        driver.collect(driver.seal(3), outcomes(ok=2, retry=1, retry_at=clock.now(), usage=usage))
        driver.collect(driver.seal(1), outcomes(failed=1, usage=usage))
        driver.submit(driver.seal(1))  # not collected: it costs nothing yet
        clock.advance(timedelta(days=1).total_seconds())
        driver.lease = driver.take_lease()
        driver.collect(driver.seal(4), outcomes(ok=4, usage=usage))
        found = store.costs()
        assert [(costs.day, costs.batches, costs.items) for costs in found] == [
            (first, 2, 3),
            (first + timedelta(days=1), 1, 4),
        ]
        assert found[0].usage == Usage(
            input_tokens=20,
            cached_input_tokens=8,
            output_tokens=10,
            reasoning_tokens=4,
            cost_usd=0.5,
        )
        assert {costs.run_id for costs in found} == {"run_a"}
        assert store.costs(since=clock.now()) == found[1:]
        assert store.costs(since=clock.now() + timedelta(microseconds=1)) == []

    def test_unknown_cost_is_counted_apart(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Tokens of unknown price would look free, or hide what is known."""
        driver = RunDriver(store, clock)
        tokens = {"input_tokens": 7, "output_tokens": 3}
        driver.collect(driver.seal(1), outcomes(ok=1, usage=Usage(**tokens, cost_usd=None)))
        (found,) = store.costs()
        assert (found.usage.cost_usd, found.unpriced_batches, found.unpriced_tokens) == (
            None,
            1,
            10,
        )
        driver.collect(driver.seal(1), outcomes(ok=1, usage=Usage(**tokens, cost_usd=0.5)))
        (found,) = store.costs()
        assert (found.usage.cost_usd, found.unpriced_batches, found.unpriced_tokens) == (0.5, 1, 10)
        assert (found.batches, found.usage.input_tokens) == (2, 14)

    def test_costs_know_namespace_model_and_assets(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Costs could not be told apart by who caused them."""
        config = {"provider": "openai", "model": "gpt"}
        store.create_run(new_run("run_b", namespace="n", spec={"provider_config": config}))
        claims = [member("p1"), member("p2")]
        store.claim("run_b", claims, waiter_request("p1", "p2"))
        for name in ("run_a", "run_b"):
            driver = RunDriver(store, clock, name)
            driver.collect(driver.seal(1), outcomes(ok=1))
        assert {costs.run_id: costs.assets for costs in store.costs()} == {
            "run_a": (),
            "run_b": (identity().asset,),
        }
        (found,) = store.costs(namespace="n")
        assert (found.run_id, found.provider_config) == ("run_b", config)
        assert isinstance(found.day, date)

    def test_reused_answers_are_in_no_batch(
        self, store: OrchestratorStore, clock: ManualClock
    ) -> None:
        """Answers that cost nothing would be counted as batches."""
        driver = RunDriver(store, clock)
        chunk = driver.seal(5)
        submission = new_submission(
            "run_a", chunk, chunk_seq=1, reserved_requests=0, reserved_cost_usd=0.0
        )
        store.reuse_answers(
            driver.lease,
            0,
            answered=chunk,
            rest=None,
            submission=submission,
            collected=outcomes(ok=5, reused_count=5, usage=Usage()),
        )
        (found,) = store.costs()
        assert (found.batches, found.items, found.usage.cost_usd) == (0, 5, 0.0)
