"""A clock for tests, which can be moved forward."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class MovedClock:
    """The machine's clock plus the jumps that a test makes; sleeping is a jump.

    As the ``Clock`` of the batch runs, it makes the next poll, or the next retry, come at once.

    Args:
        also_move: Called with the seconds of each jump, as the simulator's ``advance_time``.
    """

    def __init__(self, also_move: Callable[[float], None]) -> None:
        self._also_move = also_move
        self._jumped_s = 0.0

    def now(self) -> datetime:
        """Return the current instant, jumps included."""
        return datetime.now(UTC) + timedelta(seconds=self._jumped_s)

    def monotonic(self) -> float:
        """Return seconds that never go back, jumps included."""
        return time.monotonic() + self._jumped_s

    def sleep(self, seconds: float) -> None:
        """Jump forward instead of sleeping."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Jump forward."""
        self._jumped_s += seconds
        self._also_move(seconds)
