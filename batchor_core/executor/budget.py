"""Budgets of runs: whether they can be held, how they are changed, and what ends at them."""

import logging

from batchor_core.errors import BudgetError, BudgetExceededError
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.plan import price_of
from batchor_core.job import StoredJob
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import RunRecord
from batchor_core.model.states import RunControlState, SubmissionState
from batchor_core.providers.registry import ProviderConfig
from batchor_core.store.protocol import BUDGET_PAUSE, OverBudget, Store

logger = logging.getLogger(__name__)


def stop_over_budget(cycle: Cycle, over: OverBudget) -> None:
    """Pause a run at the end of its budget, unless what is in flight may still leave room."""
    if over.may_clear:
        logger.info("run %s: nothing more is sent for now: %s", cycle.run.run_id, over.reason)
        return
    logger.warning("run %s: paused: %s", cycle.run.run_id, over.reason)
    cycle.pause(f"{BUDGET_PAUSE}{over.reason}")


def check_enforceable(budget: BudgetPolicy, config: ProviderConfig) -> None:
    """Refuse a budget for a model whose price nobody knows.

    Raises:
        BudgetError: It is one.
    """
    if budget.is_set and price_of(config) is None:
        raise BudgetError(
            f"a budget cannot be enforced for model {config.model!r} of {config.provider}, whose "
            "price is not known: state it (price=TokenPrice(input_usd=..., output_usd=...) in the "
            "provider's config), or set no budget"
        )


def change_budget(store: Store, run: RunRecord, budget: BudgetPolicy) -> RunRecord:
    """Give a run another budget; a bound that is not named stays as it is.

    A run that was paused for its budget goes on if that has changed.

    Raises:
        BudgetError: The price of its model is not known.
    """
    earlier = budget_of(run)
    wanted = budget.over(earlier)
    if wanted == earlier or run.state.is_terminal:
        return run
    check_enforceable(wanted, StoredJob.model_validate(run.spec).provider_config)
    return store.set_budget(run.run_id, wanted)


def budget_of(run: RunRecord) -> BudgetPolicy:
    """Return the budget that a run has now."""
    return BudgetPolicy(run_usd=run.budget_usd, scope_day_usd=run.budget_day_usd)


def check_affordable(store: Store, run: RunRecord) -> None:
    """Tell a run that was stopped before anything of it was sent from one that is paused later.

    Raises:
        BudgetExceededError: Its estimate exceeds its budget.
    """
    reason = run.control_reason or ""
    if run.control is not RunControlState.PAUSE or not reason.startswith(BUDGET_PAUSE):
        return
    submissions = store.list_submissions(run.run_id)
    if any(s.state is not SubmissionState.VOID and s.reserved_requests for s in submissions):
        return
    raise BudgetExceededError(
        f"run {run.run_id!r} was not sent: {reason.removeprefix(BUDGET_PAUSE)}; give it a larger "
        "budget, or fewer or shorter rows"
    )
