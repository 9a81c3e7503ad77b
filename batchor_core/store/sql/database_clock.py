"""The time of the database, for a store that many machines share."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select

from batchor_core.clock import SystemClock

_ASK_AGAIN_S = 30.0


class DatabaseClock(SystemClock):
    """The database's clock: machines whose own clocks differ, or jump, agree on leases by it.

    Transactions ask the database, at most twice a minute; in between the machine's monotonic clock
    tells what has passed since. Before the first answer it is the machine's clock.
    """

    def __init__(self) -> None:
        self._told: tuple[datetime, float] | None = None

    def now(self) -> datetime:
        """Return the database's time."""
        if self._told is None:
            return super().now()
        instant, asked_at = self._told
        return instant + timedelta(seconds=self.monotonic() - asked_at)

    def ask(self, connection: Connection) -> None:
        """Ask the database for its time, unless it has told it a moment ago."""
        began = self.monotonic()
        if self._told is not None and began - self._told[1] < _ASK_AGAIN_S:
            return
        instant: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        self._told = (instant.astimezone(UTC), (began + self.monotonic()) / 2)
