"""Where time comes from.

Instants are aware UTC and come from ``now``; durations come from ``monotonic``, so that a wall
clock that jumps cannot shorten a time-out. Tests pass ``batchor_core.testing.ManualClock``.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The three things anybody here may ask of time."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for ``seconds`` (0 or more)."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the machine's wall clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the machine's monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(max(0.0, seconds))
