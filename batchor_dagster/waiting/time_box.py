"""A bound on the time of a sensor's tick."""

import time

TICK_SECONDS = 30.0
"""Half of the 60 seconds after which Dagster stops a sensor; the next tick does what is left."""


class TimeBox:
    """Tells when the time of a tick, or of a part of it, is over.

    Args:
        seconds: The time, from now on.
    """

    def __init__(self, seconds: float = TICK_SECONDS) -> None:
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over, so that nothing new may begin."""
        return time.monotonic() >= self._until
