"""The journal: what happened to a run, in the order of the commits.

``model.journal`` adds the events up to the run's counts, usage and cost again. Kinds and the names
in their data are stored: they are never renamed.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import insert, select

from batchor_core.model.records import Event
from batchor_core.store.sql.tables import events
from batchor_core.store.sql.transaction import Aggregate, Transaction


class Events(Aggregate):
    """The journal's part of the store."""

    def list_events(
        self,
        run_id: str,
        *,
        after_sequence: int = 0,
        limit: int = 1000,
        kinds: Iterable[str] | None = None,
    ) -> list[Event]:
        """See ``Store.list_events``."""
        statement = (
            select(events)
            .where(events.c.run_id == run_id, events.c.sequence > after_sequence)
            .order_by(events.c.sequence)
            .limit(limit)
        )
        if kinds is not None:
            statement = statement.where(events.c.kind.in_(list(kinds)))
        with self._read() as tx:
            return [Event(**row) for row in tx.execute(statement).mappings()]


def append_event(tx: Transaction, run_id: str, kind: str, **data: Any) -> None:
    """Write one line of the journal; the run's row is locked by now (``lock_run``)."""
    done = tx.execute(insert(events).values(run_id=run_id, at=tx.now, kind=kind, data=data))
    assert done.inserted_primary_key is not None
    (sequence,) = done.inserted_primary_key
    tx.events.append(Event(sequence=sequence, run_id=run_id, at=tx.now, kind=kind, data=data))
