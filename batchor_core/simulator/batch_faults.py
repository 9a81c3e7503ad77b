"""Faults of whole batches. A kind is one function that changes the batch's plan."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from batchor_core.simulator.batch_plan import RESULTS_GONE, RESULTS_MISSING, BatchPlan
from batchor_core.simulator.faults import ALL_PROTOCOLS, OPENAI_ONLY, FaultKind, FaultRule

Moment = Literal["create", "validate"]


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


def _succeed_in_part(rule: FaultRule, batch: BatchPlan) -> None:
    batch.succeed_in_part(float(rule["fraction"]))


def _fail(rule: FaultRule, batch: BatchPlan) -> None:
    error = {"code": rule["code"], "line": rule["line"], "message": rule["message"], "param": None}
    batch.reject([error] if rule["errors"] is None else list(rule["errors"]))


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
    batch.keep_empty_files()


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
    BatchKind(name="empty_files", moment="validate", apply=_empty_files, protocols=OPENAI_ONLY),
    BatchKind(
        name="results_not_ready",
        moment="validate",
        apply=_results_not_ready,
        defaults={"gets": 2},
    ),
    BatchKind(name="expire", moment="validate", apply=_expire, defaults={"fraction": 0.5}),
    BatchKind(
        name="succeed_in_part",
        moment="validate",
        apply=_succeed_in_part,
        defaults={"fraction": 0.5},
        protocols=frozenset({"gemini"}),
    ),
    BatchKind(
        name="fail_batch",
        moment="validate",
        apply=_fail,
        protocols=ALL_PROTOCOLS - {"anthropic"},
        defaults={
            "errors": None,
            "code": "invalid_request",
            "message": "Simulated failure of the batch.",
            "line": None,
        },
    ),
)
