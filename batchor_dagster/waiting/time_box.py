"""The time that a sensor's tick has."""

import time

TICK_SECONDS = 30.0
"""A sensor's function is stopped by Dagster after 60 seconds; what is left is for the next tick."""


class TimeBox:
    """The time that a tick has.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float = TICK_SECONDS) -> None:
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing new may be begun."""
        return time.monotonic() >= self._until
