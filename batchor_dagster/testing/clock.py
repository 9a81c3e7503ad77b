"""A clock that runs on and can be moved forward."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class MovedClock:
    """The machine's clock, plus every jump made since; sleeping is a jump.

    It is the ``Clock`` of the batch runs, so that what they wait for (the next poll, the delay
    before a retry) comes at once.

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
        """Return at once, ``seconds`` later."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Jump forward."""
        self._jumped_s += seconds
        self._also_move(seconds)
