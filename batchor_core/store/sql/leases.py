"""Leases: who may advance a run."""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import ColumnElement, select, update

from batchor_core.errors import RunNotFoundError
from batchor_core.model.records import Lease
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.tables import leases
from batchor_core.store.sql.transaction import Aggregate, batched, lease_lost, lock_run


class Leases(Aggregate):
    """The leases' part of the store. A run's row is created with the run, without an owner."""

    def acquire_lease(self, run_id: str, owner: str, seconds: float) -> Lease | None:
        """See ``Store.acquire_lease``."""
        with self._write() as tx:
            held = tx.execute(
                select(leases).where(leases.c.run_id == run_id).with_for_update()
            ).one_or_none()
            if held is None:
                raise RunNotFoundError(f"no run {run_id!r} in {self._database.location}")
            now = self.clock.now()  # after the lock, for which we may have waited
            taken_over = held.owner is not None and held.owner != owner
            if taken_over and held.expires_at > now:
                return None
            lease = Lease(
                run_id=run_id,
                owner=owner,
                token=max(held.token + 1, int(now.timestamp() * 1000)),
                expires_at=now + timedelta(seconds=seconds),
            )
            tx.execute(
                update(leases)
                .where(leases.c.run_id == run_id)
                .values(owner=owner, token=lease.token, expires_at=lease.expires_at)
            )
            if taken_over:
                lock_run(tx, run_id)
                append_event(tx, run_id, "lease.taken_over", owner=owner, previous_owner=held.owner)
            return lease

    def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """See ``Store.renew_lease``."""
        with self._write() as tx:
            expires_at = tx.now + timedelta(seconds=seconds)
            renewed = tx.execute(update(leases).where(*_named(lease)).values(expires_at=expires_at))
            if renewed.rowcount != 1:
                raise lease_lost(lease)
        return Lease(
            run_id=lease.run_id, owner=lease.owner, token=lease.token, expires_at=expires_at
        )

    def release_lease(self, lease: Lease) -> None:
        """See ``Store.release_lease``."""
        with self._write() as tx:
            tx.execute(update(leases).where(*_named(lease)).values(owner=None))

    def lease_of(self, run_id: str) -> Lease | None:
        """See ``Store.lease_of``."""
        statement = select(leases).where(leases.c.run_id == run_id, *self._in_force())
        with self._read() as tx:
            row = tx.execute(statement).mappings().one_or_none()
        return None if row is None else Lease(**row)

    def leased(self, run_ids: Iterable[str]) -> set[str]:
        """See ``OrchestratorStore.leased``."""
        statement = select(leases.c.run_id).where(*self._in_force())
        with self._read() as tx:
            return {
                run_id
                for group in batched(run_ids)
                for run_id in tx.execute(statement.where(leases.c.run_id.in_(group))).scalars()
            }

    def _in_force(self) -> tuple[ColumnElement[bool], ...]:
        return (leases.c.owner.is_not(None), leases.c.expires_at > self.clock.now())


def _named(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (
        leases.c.run_id == lease.run_id,
        leases.c.token == lease.token,
        leases.c.owner == lease.owner,
    )
