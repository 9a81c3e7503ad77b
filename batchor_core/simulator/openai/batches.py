"""One batch of the simulated provider: its plan in time, and how it looks at an instant."""

from dataclasses import dataclass, field
from typing import Any

from batchor_core.simulator.batch_plan import WINDOW_S, BatchPlan
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.spool import StoredFile


@dataclass(kw_only=True)
class Batch(BatchPlan):
    """A batch with its files.

    Attributes:
        source: The input file, once validation found it.
        output_expiry_s: How long its result files live; None is the provider's default.
        errors: Why validation failed.
        has_empty_files: Whether it names result files that have no line, too.
    """

    input_file_id: str
    metadata: dict[str, str] | None
    in_progress_at: float
    output_expiry_s: float | None = None
    has_empty_files: bool = False
    validated: bool = False
    source: StoredFile | None = None
    model: str | None = None
    tokens: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: list[dict[str, Any]] | None = field(default=None)

    def reject(self, errors: list[dict[str, Any]]) -> None:
        """Let its validation fail."""
        self.errors = errors

    def keep_empty_files(self) -> None:
        """Let it name result files that have no line."""
        self.has_empty_files = True

    def cancel(self, now: float, finalizing_s: float) -> None:
        """Stop it now: what is done is done, the rest is not executed."""
        self.stop(now, self.in_progress_at, finalizing_s)
        if not self.validated:
            self.validated = self.executed = True

    def is_due(self, now: float) -> bool:
        """Whether its requests are to be executed."""
        return self.errors is None and self.validated and super().is_due(now)

    def holds_tokens(self, at: float) -> bool:
        """Whether its tokens count as enqueued at an instant."""
        until = self.ends_at + self.quota_held_s
        return self.validated and self.errors is None and self.in_progress_at <= at < until

    def status(self, now: float) -> str:
        """The status at an instant; never past `in_progress` before its requests were executed."""
        if self.cancelling_at is not None:
            return "cancelled" if self.executed and now >= self.ends_at else "cancelling"
        if not self.validated or now < self.in_progress_at:
            return "validating"
        if self.errors is not None:
            return "failed"
        if not self.executed or now < self.execute_at:
            return "in_progress"
        return "finalizing" if now < self.ends_at else self.ending

    def is_terminal(self, now: float) -> bool:
        """Whether nothing can change any more."""
        return self.status(now) in ("completed", "failed", "expired", "cancelled")

    def render(self, now: float, clock: SimulatorClock) -> dict[str, Any]:
        """The batch as JSON."""
        status = self.status(now)
        has_results = status in ("completed", "expired", "cancelled")
        errors = None
        if status == "failed":
            errors = {"object": "list", "data": self.errors}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": status,
            "output_file_id": self.output_file_id if has_results else None,
            "error_file_id": self.error_file_id if has_results else None,
            **self._timestamps(status, clock),
            "request_counts": self._counts(now, status),
            "usage": self._usage(counted=has_results),
            "metadata": self.metadata,
        }

    def _timestamps(self, status: str, clock: SimulatorClock) -> dict[str, int | None]:
        cancelled_before_work = (
            self.cancelling_at is not None and self.cancelling_at < self.in_progress_at
        )
        worked = status not in ("validating", "failed") and not cancelled_before_work
        finalized = status in ("finalizing", "completed")
        moments = {
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at if worked else None,
            "expires_at": self.expires_at,
            "finalizing_at": self.execute_at if finalized else None,
            "completed_at": self.ends_at if status == "completed" else None,
            "failed_at": self.in_progress_at if status == "failed" else None,
            "expired_at": self.ends_at if status == "expired" else None,
            "cancelling_at": self.cancelling_at,
            "cancelled_at": self.ends_at if status == "cancelled" else None,
        }
        return {
            name: None if moment is None else clock.unix(moment) for name, moment in moments.items()
        }

    def _counts(self, now: float, status: str) -> dict[str, int]:
        if status in ("validating", "failed"):
            return {"total": 0, "completed": 0, "failed": 0}
        if self.executed:
            return {"total": self.total, "completed": self.completed, "failed": self.failed}
        working = self.execute_at - self.in_progress_at
        progress = min(1.0, (now - self.in_progress_at) / working) if working > 0 else 1.0
        done = int(self.total * self.portion * progress)
        return {"total": self.total, "completed": done, "failed": 0}

    def _usage(self, *, counted: bool) -> dict[str, Any]:
        spent_in, spent_out = (self.input_tokens, self.output_tokens) if counted else (0, 0)
        return {
            "input_tokens": spent_in,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": spent_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": spent_in + spent_out,
        }


def plan_batch(
    options: SimulatorOptions,
    *,
    batch_id: str,
    number: int,
    ledger_number: int,
    now: float,
    request: dict[str, Any],
) -> Batch:
    """A new batch as the options time it; one that would take over 24 hours will expire."""
    in_progress_at = now + options.validation_s
    execute_at = in_progress_at + options.working_s
    batch = Batch(
        id=batch_id,
        number=number,
        ledger_number=ledger_number,
        endpoint=request["endpoint"],
        run=(request.get("metadata") or {}).get("batchor_run", ""),
        input_file_id=request["input_file_id"],
        metadata=request.get("metadata"),
        output_expiry_s=(request.get("output_expires_after") or {}).get("seconds"),
        created_at=now,
        in_progress_at=in_progress_at,
        execute_at=execute_at,
        ends_at=execute_at + options.finalizing_s,
        expires_at=now + WINDOW_S,
        visible_at=now,
    )
    if batch.ends_at > batch.expires_at:
        batch.ends_at = batch.expires_at
        batch.expire(min(1.0, (WINDOW_S - options.validation_s) / max(1.0, options.working_s)))
    return batch
