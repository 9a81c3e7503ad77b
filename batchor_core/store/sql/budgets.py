"""Budgets: what a run and a scope's day may cost, held by the transaction of each intent."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, case, cast, func, select, update

from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import NewSubmission, RunRecord
from batchor_core.model.states import (
    UNCOLLECTED_SUBMISSION_STATES,
    ChunkState,
    RunControlState,
    SubmissionState,
)
from batchor_core.planning.prices import exceeds, usd
from batchor_core.store.protocol import BUDGET_PAUSE, OverBudget
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.runs import load_run, write_control
from batchor_core.store.sql.scopes import lock_scope
from batchor_core.store.sql.tables import chunks, runs, submissions
from batchor_core.store.sql.transaction import Aggregate, Transaction


class Budgets(Aggregate):
    """The budgets' part of the store."""

    def set_budget(self, run_id: str, budget: BudgetPolicy) -> RunRecord:
        """See ``Store.set_budget``."""
        values = {"budget_usd": budget.run_usd, "budget_day_usd": budget.scope_day_usd}
        with self._write() as tx:
            tx.execute(select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update())
            run = load_run(tx, run_id)
            tx.execute(update(runs).where(runs.c.run_id == run_id).values(values))
            append_event(tx, run_id, "run.budgeted", **values)
            is_paused = run.control is RunControlState.PAUSE
            if is_paused and (run.control_reason or "").startswith(BUDGET_PAUSE):
                return write_control(tx, run_id, RunControlState.RUN, None)
            return load_run(tx, run_id)


def over_budget(tx: Transaction, wanted: NewSubmission) -> OverBudget | None:
    """Return which budget the submission would exceed, or None; may take the scope's lock.

    Nothing else of the run can be intended meanwhile: the caller has locked its row.
    """
    run = load_run(tx, wanted.run_id)
    if run.budget_usd is None and run.budget_day_usd is None:
        return None
    if wanted.reserved_cost_usd is None:
        return _unknown("what this chunk will cost")
    over = None
    if run.budget_usd is not None:
        over = _over_run(tx, wanted.run_id, wanted.reserved_cost_usd, run.budget_usd)
    if over is None and run.budget_day_usd is not None:
        over = _over_day(tx, wanted, wanted.reserved_cost_usd, run.budget_day_usd)
    return over


@dataclass(frozen=True, kw_only=True)
class _Committed:
    """What some submissions have cost, and may still cost.

    Attributes:
        sent: How many there are that were not given up.
        unknown: How many of them nobody knows the cost of.
        spent_usd: Of collected ones; one whose actual cost is unknown counts as reserved.
        reserved_usd: Of those that are paid, or perhaps, and not collected.
        own_reserved_usd: The part of it that is the run's own.
    """

    sent: int
    unknown: int
    spent_usd: float
    reserved_usd: float
    own_reserved_usd: float


def _over_run(tx: Transaction, run_id: str, wanted: float, budget: float) -> OverBudget | None:
    committed = _committed(tx, run_id, submissions.c.run_id == run_id)
    if committed.unknown:
        return _unknown("what some of the run's batches cost")
    if not committed.sent:
        return _over_estimate(tx, run_id, budget)
    total = committed.spent_usd + committed.reserved_usd + wanted
    if not exceeds(total, budget):
        return None
    return OverBudget(
        reason=f"the run's budget of {usd(budget)} would be exceeded: it has cost "
        f"{usd(committed.spent_usd)}, and what is not collected yet and comes next may bring it to "
        f"{usd(total)}",
        may_clear=not exceeds(committed.spent_usd + wanted, budget),
    )


def _over_estimate(tx: Transaction, run_id: str, budget: float) -> OverBudget | None:
    """Hold all that is ready against the budget, before the first of it is sent."""
    statement = select(
        func.count().label("chunks"),
        func.count(chunks.c.cost_usd).label("priced"),
        _usd(chunks.c.cost_usd).label("cost_usd"),
    ).where(
        chunks.c.run_id == run_id,
        chunks.c.state == ChunkState.READY,
        chunks.c.is_duplicate.is_(False),  # takes the answers of others, and is never sent
    )
    ready = tx.execute(statement).mappings().one()
    if ready["priced"] != ready["chunks"]:
        return _unknown("what the run will cost")
    if not exceeds(ready["cost_usd"], budget):
        return None
    return OverBudget(
        reason=f"its estimate of {usd(ready['cost_usd'])} exceeds the run's budget of {usd(budget)}"
    )


def _over_day(
    tx: Transaction, submission: NewSubmission, wanted: float, budget: float
) -> OverBudget | None:
    scope = submission.scope
    lock_scope(tx, scope)  # other runs draw on the same budget
    midnight = tx.now.replace(hour=0, minute=0, second=0, microsecond=0)
    today = (submissions.c.scope == scope, submissions.c.intended_at >= midnight)
    committed = _committed(tx, submission.run_id, *today)
    if committed.unknown:
        return _unknown(f"what some of today's batches in scope {scope!r} cost")
    total = committed.spent_usd + committed.reserved_usd + wanted
    if not exceeds(total, budget):
        return None
    without_own = total - committed.own_reserved_usd
    return OverBudget(
        reason=f"the day's budget of {usd(budget)} for scope {scope!r} would be exceeded: what "
        f"was sent since midnight UTC and comes next may cost {usd(total)}",
        may_clear=not exceeds(without_own, budget),
    )


def _committed(tx: Transaction, run_id: str, *which: ColumnElement[bool]) -> _Committed:
    table = submissions.c
    cost = func.coalesce(table.cost_usd, table.reserved_cost_usd)
    is_collected = table.state == SubmissionState.COLLECTED
    is_uncollected = table.state.in_(sorted(UNCOLLECTED_SUBMISSION_STATES))
    is_own = table.run_id == run_id
    is_sent = table.reserved_requests > 0  # reused answers were not
    statement = select(
        func.count().label("sent"),
        (func.count() - func.count(cost)).label("unknown"),
        _usd(case((is_collected, cost))).label("spent_usd"),
        _usd(case((is_uncollected, table.reserved_cost_usd))).label("reserved_usd"),
        _usd(case((is_uncollected & is_own, table.reserved_cost_usd))).label("own_reserved_usd"),
    ).where(*which, table.state != SubmissionState.VOID, is_sent)
    return _Committed(**tx.execute(statement).mappings().one())


def _usd(part: ColumnElement[float]) -> ColumnElement[float]:
    return func.coalesce(func.sum(part), cast(0, Double))


def _unknown(what: str) -> OverBudget:
    return OverBudget(reason=f"it cannot be enforced, since nobody knows {what}")
