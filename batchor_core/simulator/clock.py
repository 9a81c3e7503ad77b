"""The simulated provider's own time, which can be skewed and moved forward."""

import threading
import time
from collections.abc import Callable
from email.utils import formatdate


class SimulatorClock:
    """Seconds since the simulator started, plus every jump made since.

    Batches are timed with `now()`, so a jump ages them at once. What clients see (`created_at`,
    the `Date` header) is `unix()`, which a skew shifts without ageing anything.

    Args:
        monotonic: Source of durations; tests pass a frozen one.
        wall: Source of the Unix time at the start.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._origin = monotonic()
        self._unix_origin = wall()
        self._jumped_s = 0.0
        self._lock = threading.Lock()
        self.skew_s = 0.0

    def now(self) -> float:
        """Seconds since the start, jumps included; never goes back."""
        return self._monotonic() - self._origin + self._jumped_s

    def advance(self, seconds: float) -> None:
        """Jump forward by `seconds`.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"the simulator's clock cannot go back ({seconds!r} seconds)")
        with self._lock:
            self._jumped_s += seconds

    def unix(self, at: float) -> int:
        """The Unix second that clients are told for the instant `at` of `now()`."""
        return int(self._unix_origin + at + self.skew_s)

    def http_date(self) -> str:
        """The present instant as a `Date` header."""
        return formatdate(self._unix_origin + self.now() + self.skew_s, usegmt=True)
