"""One message batch: its plan in time, and how it looks at an instant."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchor_core.simulator.batch_plan import (
    RESULTS_GONE,
    RESULTS_MISSING,
    WINDOW_S,
    BatchPlan,
)
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.options import SimulatorOptions

ENDPOINT = "/v1/messages"
BATCHES_PATH = "/v1/messages/batches"
RETENTION_S = 29 * 86_400.0
COUNTED = ("succeeded", "errored", "canceled", "expired")


@dataclass(kw_only=True)
class Batch(BatchPlan):
    """A batch with its requests.

    Attributes:
        source: The requests, one a line.
        results: The result lines, once it was executed.
        api_version: What the create call named.
        counts: What became of its requests, known once it has ended.
        deleted: Whether a client removed it.
    """

    source: Path
    results: Path
    api_version: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    deleted: bool = False

    def cancel(self, now: float, finalizing_s: float) -> None:
        """Stop it now: what is done is done, the rest is not executed."""
        self.stop(now, self.created_at, finalizing_s)

    def holds_requests(self, now: float) -> bool:
        """Whether its requests count as being in the account's queue."""
        return not self.has_ended(now) or now < self.ends_at + self.quota_held_s

    def has_ended(self, now: float) -> bool:
        """Whether nothing can change any more; never before its requests were executed."""
        return self.executed and now >= self.ends_at

    def status(self, now: float) -> str:
        """Its status at an instant."""
        if self.has_ended(now):
            return "ended"
        return "in_progress" if self.cancelling_at is None else "canceling"

    def is_terminal(self, now: float) -> bool:
        """Whether nothing can change any more."""
        return self.has_ended(now)

    def archived_at(self, now: float) -> float | None:
        """When its results became unavailable; None if they are not."""
        if self.spoilt == RESULTS_GONE and self.has_ended(now):
            return self.ends_at
        until = self.created_at + RETENTION_S
        return until if now >= until else None

    def render(self, now: float, clock: SimulatorClock) -> dict[str, Any]:
        """Return the batch as JSON; ``results_url`` is the path alone."""
        ended = self.has_ended(now)
        has_results = ended and self.spoilt != RESULTS_MISSING
        return {
            "id": self.id,
            "type": "message_batch",
            "processing_status": self.status(now),
            "request_counts": {
                "processing": 0 if ended else self.total,
                **{name: count if ended else 0 for name, count in self.counts.items()},
            },
            "created_at": _rfc3339(clock, self.created_at),
            "expires_at": _rfc3339(clock, self.created_at + WINDOW_S),
            "ended_at": _rfc3339(clock, self.ends_at) if ended else None,
            "cancel_initiated_at": _rfc3339(clock, self.cancelling_at),
            "archived_at": _rfc3339(clock, self.archived_at(now)),
            "results_url": f"{BATCHES_PATH}/{self.id}/results" if has_results else None,
        }


def plan_batch(
    options: SimulatorOptions,
    *,
    batch_id: str,
    number: int,
    ledger_number: int,
    now: float,
    api_version: str,
    source: Path,
    total: int,
) -> Batch:
    """Return a new batch as the options time it; one that would take over 24 hours will expire."""
    execute_at = now + max(0.0, options.batch_seconds - options.finalizing_s)
    batch = Batch(
        id=batch_id,
        number=number,
        ledger_number=ledger_number,
        endpoint=ENDPOINT,
        created_at=now,
        execute_at=execute_at,
        ends_at=execute_at + options.finalizing_s,
        expires_at=now + WINDOW_S,
        visible_at=now,
        source=source,
        results=source.with_suffix(".results"),
        api_version=api_version,
        total=total,
    )
    if batch.ends_at > batch.expires_at:
        batch.ends_at = batch.expires_at
        batch.expire(min(1.0, WINDOW_S / max(1.0, options.batch_seconds)))
    return batch


def _rfc3339(clock: SimulatorClock, at: float | None) -> str | None:
    """Return an instant with nanoseconds, as providers may write it."""
    if at is None:
        return None
    return datetime.fromtimestamp(clock.unix(at), UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")
