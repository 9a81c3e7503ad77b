"""A clock that moves only when a test says so."""

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """A ``Clock`` that stands still; threads may share it.

    Args:
        start: The first instant; aware.
    """

    def __init__(self, start: datetime = datetime(2025, 6, 1, 12, tzinfo=UTC)) -> None:
        self._lock = threading.Lock()
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        """Return the current instant."""
        with self._lock:
            return self._now

    def monotonic(self) -> float:
        """Return the seconds that were slept or advanced so far."""
        with self._lock:
            return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Return at once, ``seconds`` later."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative; durations do not notice."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
