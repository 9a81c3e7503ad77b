"""The store's contract about what each state of a submission still takes: room, money, time.

One table: who asks, and for which states the answer is yes.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest

from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import ScopeLimits
from batchor_core.model.states import (
    QUEUED_SUBMISSION_STATES,
    UNCOLLECTED_SUBMISSION_STATES,
    RunControlState,
    SubmissionState,
)
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.store.protocol import OverBudget, ScopeFull
from batchor_core.testing.clock import ManualClock
from batchor_core.testing.records import RunDriver, member, waiter_request

_SCOPE = "openai/api.openai.com/1/m"


def _is_full(driver: RunDriver, **limits: int) -> bool:
    return isinstance(driver.try_intend(driver.seal(1), ScopeLimits(**limits)), ScopeFull)


def _gives_way(driver: RunDriver) -> bool:
    other = RunDriver(driver.store, driver.clock, "run_b")
    other.seal(1)
    driver.store.finish_ingestion(other.lease, "f")
    taken = driver.try_intend(driver.seal(1), ScopeLimits(max_batches=9))
    return isinstance(taken, ScopeFull) and "goes first" in taken.reason


def _is_hungry(driver: RunDriver) -> bool:
    """Whether another run, which has something in the scope, lets this one go first."""
    other = RunDriver(driver.store, driver.clock, "run_b")
    other.intend(other.seal(1))
    driver.seal(1)
    driver.store.finish_ingestion(driver.lease, "f")
    taken = other.try_intend(other.seal(1), ScopeLimits(max_batches=9))
    return isinstance(taken, ScopeFull) and "goes first" in taken.reason


def _is_over(driver: RunDriver, budget: BudgetPolicy) -> bool:
    driver.store.set_budget("run_a", budget)
    return isinstance(driver.try_intend(driver.seal(1, cost_usd=0.6)), OverBudget)


def _may_clear(driver: RunDriver) -> bool:
    """Whether what it has reserved of the day's budget is the run's own."""
    driver.store.set_budget("run_a", BudgetPolicy(scope_day_usd=1))
    over = driver.try_intend(driver.seal(1, cost_usd=0.6))
    return isinstance(over, OverBudget) and over.may_clear


def _waits_before_its_end(driver: RunDriver) -> bool:
    """Whether a cancelled run, which ends by itself, is not due to be closed."""
    store, run_id = driver.store, driver.run_id
    store.claim(run_id, [member(run_id)], waiter_request(run_id))
    store.set_control(run_id, RunControlState.CANCEL, "user")
    for submission in store.open_work(run_id).submissions:  # nothing else is due
        later = driver.clock.now() + timedelta(hours=9)
        if submission.state is SubmissionState.ENDED:
            store.put_off_collect(
                driver.lease, submission.submission_id, until=later, missing=False, reason="r"
            )
        elif submission.state is SubmissionState.ACTIVE:
            store.note_cancel(submission.submission_id, next_cancel_at=later)
        else:
            store.allow_create(driver.lease, submission.submission_id, None, server_time=None)
    store.release_lease(driver.lease)
    return store.due_work("default", driver.clock.now(), 10) == []


_USERS: dict[str, tuple[Callable[[RunDriver], bool], frozenset[SubmissionState]]] = {
    "limit of batches": (lambda driver: _is_full(driver, max_batches=1), QUEUED_SUBMISSION_STATES),
    "limit of requests": (
        lambda driver: _is_full(driver, max_requests=1),
        QUEUED_SUBMISSION_STATES,
    ),
    "limit of tokens": (lambda driver: _is_full(driver, max_tokens=151), QUEUED_SUBMISSION_STATES),
    "giving way": (_gives_way, QUEUED_SUBMISSION_STATES),
    "being let go first": (
        _is_hungry,
        frozenset(SubmissionState) - QUEUED_SUBMISSION_STATES,
    ),
    "live batches": (
        lambda driver: driver.store.live_batches([_SCOPE]) == {_SCOPE: 1},
        QUEUED_SUBMISSION_STATES,
    ),
    "budget of the run": (
        lambda driver: _is_over(driver, BudgetPolicy(run_usd=1)),
        UNCOLLECTED_SUBMISSION_STATES,
    ),
    "budget of the day": (
        lambda driver: _is_over(driver, BudgetPolicy(scope_day_usd=1)),
        UNCOLLECTED_SUBMISSION_STATES,
    ),
    "own part of the day's budget": (_may_clear, UNCOLLECTED_SUBMISSION_STATES),
    "open work": (
        lambda driver: bool(driver.store.open_work("run_a").submissions),
        UNCOLLECTED_SUBMISSION_STATES,
    ),
    "end of the run": (_waits_before_its_end, UNCOLLECTED_SUBMISSION_STATES),
}


class SubmissionStateContract:
    """What every store promises about the two sets of states, at each place that uses one."""

    @pytest.mark.parametrize("state", list(SubmissionState))
    @pytest.mark.parametrize("user", list(_USERS))
    def test_states_count_where_they_should(
        self, store: OrchestratorStore, clock: ManualClock, user: str, state: SubmissionState
    ) -> None:
        """A queue would stay blocked or run over, a budget be spent twice, or a run end early."""
        counts, states = _USERS[user]
        driver = RunDriver(store, clock)
        driver.bring(driver.seal(1, cost_usd=0.6), state)
        assert counts(driver) is (state in states)
