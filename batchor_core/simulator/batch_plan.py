"""One batch of any protocol: its plan in time, which scripted faults may change."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

WINDOW_S = 86_400.0
Ending = Literal["completed", "expired", "cancelled"]

RESULTS_MISSING = "results_missing"
"""The batch ends without results although its requests were executed."""
RESULTS_GONE = "results_gone"
"""It had results that do not exist any more."""


@dataclass(kw_only=True)
class BatchPlan(ABC):
    """A batch in time. All times are instants of the simulator's clock.

    What not every protocol has is only asked of those that do: see ``FaultKind.protocols``.

    Attributes:
        number: Order of creation among the batches of its protocol, from 0.
        ledger_number: What the ledger knows it by.
        run: The run that sent it, where the protocol can say; else empty.
        execute_at: When the last of its requests has been executed.
        visible_at: From when on it is listed.
        portion: The part of its requests that is executed before it ends, 0 to 1.
        unseen_gets: How many calls for it are answered with 404 first.
        spoilt: What was done to its results; empty if nothing.
        unready_gets: How many downloads of its results are answered with 404 first.
        quota_held_s: How long it counts as enqueued after its end.
    """

    id: str
    number: int
    ledger_number: int
    endpoint: str
    run: str = ""
    created_at: float
    execute_at: float
    ends_at: float
    expires_at: float
    visible_at: float
    ending: Ending = "completed"
    portion: float = 1.0
    unseen_gets: int = 0
    spoilt: str = ""
    unready_gets: int = 0
    quota_held_s: float = 0.0
    cancelling_at: float | None = None
    executed: bool = False
    total: int = 0

    def expire(self, portion: float) -> None:
        """Let it expire at its end, with ``portion`` of its requests executed."""
        self.ending, self.portion = "expired", portion
        self.execute_at = self.expires_at = self.ends_at

    def stop(self, now: float, started_at: float, finalizing_s: float) -> None:
        """Cancel it now: what is done since ``started_at`` is done, the rest is not executed."""
        if not self.executed:
            working = self.execute_at - started_at
            progress = (now - started_at) / working if working > 0 else 0.0
            self.portion *= min(1.0, max(0.0, progress))
            self.execute_at = now
        self.cancelling_at, self.ends_at, self.ending = now, now + finalizing_s, "cancelled"

    def reject(self, errors: list[dict[str, Any]]) -> None:
        """Let it fail as a whole, where the protocol has that."""
        raise NotImplementedError

    def succeed_in_part(self, portion: float) -> None:
        """Let it succeed with ``portion`` of its requests, where the protocol has that."""
        raise NotImplementedError

    def keep_empty_files(self) -> None:
        """Let it name result files that have no line, where the protocol has such."""
        raise NotImplementedError

    def is_due(self, now: float) -> bool:
        """Whether its requests are to be executed."""
        return not self.executed and self.execute_at <= now

    @abstractmethod
    def status(self, now: float) -> str:
        """Its status at an instant, in the protocol's words."""

    @abstractmethod
    def is_terminal(self, now: float) -> bool:
        """Whether nothing can change any more."""
