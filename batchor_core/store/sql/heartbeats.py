"""Heartbeats: who of those that drive a namespace's runs is alive."""

from sqlalchemy import select, update

from batchor_core.model.records import Heartbeat
from batchor_core.store.sql.tables import heartbeats
from batchor_core.store.sql.transaction import Aggregate, record_columns


class Heartbeats(Aggregate):
    """The heartbeats' part of the store."""

    def note_heartbeat(self, namespace: str, name: str, every_s: float) -> None:
        """See ``OrchestratorStore.note_heartbeat``."""
        key = {"namespace": namespace, "name": name}
        with self._write() as tx:
            values = {"at": tx.now, "every_s": every_s}
            if not tx.insert_if_absent(heartbeats, {**key, **values}):
                named = [heartbeats.c[column] == value for column, value in key.items()]
                tx.execute(update(heartbeats).where(*named).values(values))

    def heartbeats(self, namespace: str) -> dict[str, Heartbeat]:
        """See ``OrchestratorStore.heartbeats``."""
        columns = record_columns(heartbeats, Heartbeat)
        statement = select(*columns).where(heartbeats.c.namespace == namespace)
        with self._read() as tx:
            return {row["name"]: Heartbeat(**row) for row in tx.execute(statement).mappings()}
