"""Setbacks: how often in a row advancing a run was begun and came to no good end."""

from datetime import timedelta

from sqlalchemy import select, update

from batchor_core.errors import RunNotFoundError
from batchor_core.store.sql.tables import runs
from batchor_core.store.sql.transaction import Aggregate

SETBACK_S = 60.0
"""How long a run rests after its first setback; twice as long after each further one."""

LONGEST_REST_S = 3600.0


class Setbacks(Aggregate):
    """The setbacks' part of the store."""

    def begin_advance(self, run_id: str) -> int:
        """See ``OrchestratorStore.begin_advance``."""
        named = runs.c.run_id == run_id
        with self._write() as tx:
            found = tx.execute(select(runs.c.setbacks).where(named).with_for_update())
            before = found.scalar_one_or_none()
            if before is None:
                raise RunNotFoundError(f"no run {run_id!r} in {self._database.location}")
            until = tx.now + timedelta(seconds=_rest_s(before))
            tx.execute(update(runs).where(named).values(setbacks=before + 1, rests_until=until))
            return int(before)

    def end_advance(self, run_id: str) -> None:
        """See ``OrchestratorStore.end_advance``."""
        with self._write() as tx:
            tx.execute(update(runs).where(runs.c.run_id == run_id).values(NO_SETBACKS))


NO_SETBACKS = {"setbacks": 0, "rests_until": None}
"""What a run's row says while all goes well."""


def _rest_s(setbacks_before: int) -> float:
    doublings = min(setbacks_before, 16)  # the bound is long reached, and floats are finite
    return float(min(SETBACK_S * 2**doublings, LONGEST_REST_S))
