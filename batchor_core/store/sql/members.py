"""Members: which identities a run stands for, and whether they are taken."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sqlalchemy import RowMapping, select, update

from batchor_core.model.records import Identity, Member
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.tables import members, runs
from batchor_core.store.sql.transaction import Aggregate, Transaction, touch_run

_IDENTITIES_PER_QUERY = 500


class Members(Aggregate):
    """The members' part of the store; opening them is in ``claims``."""

    def list_members(self, run_id: str) -> list[Member]:
        """See ``Store.list_members``."""
        statement = select(members).where(members.c.run_id == run_id).order_by(members.c.seq)
        with self._read() as tx:
            return [_as_member(row) for row in tx.execute(statement).mappings()]

    def open_members(self, identities: Sequence[Identity]) -> list[Member]:
        """See ``Store.open_members``; in the order of the identities."""
        with self._read() as tx:
            return find_open_members(tx, identities)

    def latest_runs(self, identities: Sequence[Identity], *, but: str) -> list[str]:
        """See ``Store.latest_runs``."""
        found: dict[Identity, str] = {}
        with self._read() as tx:
            for namespace, asset, partitions in _batches(identities):
                statement = (
                    select(members.c.partition, members.c.run_id)
                    .join(runs, runs.c.run_id == members.c.run_id)
                    .where(
                        members.c.namespace == namespace,
                        members.c.asset == asset,
                        members.c.partition.in_(partitions),
                        members.c.run_id != but,
                    )
                    .order_by(runs.c.created_at, runs.c.run_id)
                )
                for row in tx.execute(statement):
                    identity = Identity(namespace=namespace, asset=asset, partition=row.partition)
                    found[identity] = row.run_id
        return list(dict.fromkeys(found[i] for i in identities if i in found))

    def release_members(self, run_id: str) -> None:
        """See ``Store.release_members``."""
        with self._write() as tx:
            touch_run(tx, run_id)
            close_members(tx, run_id)


def close_members(tx: Transaction, run_id: str) -> None:
    """Free the run's identities; the run's row is locked by now."""
    is_open = (members.c.run_id == run_id, members.c.is_open)
    closed = tx.execute(update(members).where(*is_open).values(is_open=False)).rowcount
    if closed:
        append_event(tx, run_id, "members.released", members=closed)


def find_open_members(tx: Transaction, identities: Sequence[Identity]) -> list[Member]:
    """Return the open members of these identities, in their order, each once."""
    found: dict[Identity, Member] = {}
    for namespace, asset, partitions in _batches(identities):
        statement = select(members).where(
            members.c.namespace == namespace,
            members.c.asset == asset,
            members.c.partition.in_(partitions),
            members.c.is_open,
        )
        for row in tx.execute(statement).mappings():
            member = _as_member(row)
            found[member.identity] = member
    return [found[identity] for identity in dict.fromkeys(identities) if identity in found]


def _batches(identities: Sequence[Identity]) -> Iterator[tuple[str, str, list[str]]]:
    """Group identities so that one query answers many, without a limit of parameters."""
    partitions = defaultdict(list)
    for identity in identities:
        partitions[identity.namespace, identity.asset].append(identity.partition)
    for (namespace, asset), keys in partitions.items():
        for start in range(0, len(keys), _IDENTITIES_PER_QUERY):
            yield namespace, asset, keys[start : start + _IDENTITIES_PER_QUERY]


def _as_member(row: RowMapping) -> Member:
    values = dict(row)
    names = ("namespace", "asset", "partition")
    identity = Identity(**{name: values.pop(name) for name in names})
    return Member(**values, identity=identity)
