"""Faults of whole batches. A kind is one function that changes the batch's plan."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from batchor_core.simulator.faults import FaultKind, FaultRule

Moment = Literal["create", "validate"]

RESULTS_MISSING = "results_missing"
"""The batch ends without result files although its requests were executed."""
RESULTS_GONE = "results_gone"
"""It names result files that do not exist any more."""


class BatchPlan(Protocol):
    """The part of a batch that faults may change; times are instants of the simulator's clock."""

    created_at: float
    visible_at: float
    unseen_gets: int
    errors: list[dict[str, Any]] | None
    ends_at: float
    spoilt: str
    has_empty_files: bool
    unready_gets: int
    quota_held_s: float

    def expire(self, portion: float) -> None:
        """Let the batch expire at its end, with `portion` of its requests executed."""


@dataclass(frozen=True, kw_only=True)
class BatchKind(FaultKind):
    """Changes what becomes of a batch, when it is created or validated."""

    scope = "batch"
    matches = frozenset({"run", "batch", "endpoint"})
    moment: Moment
    apply: Callable[[FaultRule, BatchPlan], None]


def _list_lag(rule: FaultRule, batch: BatchPlan) -> None:
    batch.visible_at = batch.created_at + float(rule["seconds"])


def _not_found(rule: FaultRule, batch: BatchPlan) -> None:
    batch.unseen_gets = int(rule["gets"])


def _expire(rule: FaultRule, batch: BatchPlan) -> None:
    batch.expire(float(rule["fraction"]))


def _fail(rule: FaultRule, batch: BatchPlan) -> None:
    error = {"code": rule["code"], "line": rule["line"], "message": rule["message"], "param": None}
    batch.errors = [error] if rule["errors"] is None else list(rule["errors"])


def _never_listed(_: FaultRule, batch: BatchPlan) -> None:
    batch.visible_at = math.inf


def _finalizing_hold(rule: FaultRule, batch: BatchPlan) -> None:
    batch.ends_at += float(rule["seconds"])


def _quota_held(rule: FaultRule, batch: BatchPlan) -> None:
    batch.quota_held_s = float(rule["seconds"])


def _results_missing(_: FaultRule, batch: BatchPlan) -> None:
    batch.spoilt = RESULTS_MISSING


def _results_gone(_: FaultRule, batch: BatchPlan) -> None:
    batch.spoilt = RESULTS_GONE


def _empty_files(_: FaultRule, batch: BatchPlan) -> None:
    batch.has_empty_files = True


def _results_not_ready(rule: FaultRule, batch: BatchPlan) -> None:
    batch.unready_gets = int(rule["gets"])


BATCH_KINDS = (
    BatchKind(
        name="list_lag_seconds", moment="create", apply=_list_lag, defaults={"seconds": 60.0}
    ),
    BatchKind(
        name="not_found_after_create", moment="create", apply=_not_found, defaults={"gets": 1}
    ),
    BatchKind(name="never_listed", moment="create", apply=_never_listed),
    BatchKind(
        name="finalizing_hold", moment="create", apply=_finalizing_hold, defaults={"seconds": 60.0}
    ),
    BatchKind(
        name="quota_held_seconds", moment="create", apply=_quota_held, defaults={"seconds": 3600.0}
    ),
    BatchKind(name=RESULTS_MISSING, moment="validate", apply=_results_missing),
    BatchKind(name=RESULTS_GONE, moment="validate", apply=_results_gone),
    BatchKind(name="empty_files", moment="validate", apply=_empty_files),
    BatchKind(
        name="results_not_ready",
        moment="validate",
        apply=_results_not_ready,
        defaults={"gets": 2},
    ),
    BatchKind(name="expire", moment="validate", apply=_expire, defaults={"fraction": 0.5}),
    BatchKind(
        name="fail_batch",
        moment="validate",
        apply=_fail,
        defaults={
            "errors": None,
            "code": "invalid_request",
            "message": "Simulated failure of the batch.",
            "line": None,
        },
    ),
)
