"""Members: which identities a run stands for, and whether they are taken."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from sqlalchemy import RowMapping, bindparam, exists, func, insert, select, update

from batchor_core.model.records import Identity, Member
from batchor_core.model.states import ChunkState, RunState
from batchor_core.store.orchestration import MemberClaim
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.tables import chunks, members, runs, waiters
from batchor_core.store.sql.transaction import Aggregate, Transaction, batched, lock_run

_IDENTITIES_PER_QUERY = 500
_COMPLETE_RUNS = 3
_OPEN_CHUNKS = (ChunkState.READY, ChunkState.SUBMITTED)
_was_asked_for = exists().where(waiters.c.run_id == members.c.run_id).label("was_asked_for")


class Members(Aggregate):
    """The members' part of the store; opening them is in ``claims``."""

    def note_members(self, run_id: str, members: Sequence[MemberClaim]) -> None:
        """See ``OrchestratorStore.note_members``."""
        with self._write() as tx:
            lock_run(tx, run_id)
            insert_members(tx, run_id, members, is_open=False)
            append_event(tx, run_id, "members.noted", members=len(members))

    def list_members(self, run_id: str) -> list[Member]:
        """See ``Store.list_members``."""
        statement = select(members).where(members.c.run_id == run_id).order_by(members.c.seq)
        with self._read() as tx:
            return [_as_member(row) for row in tx.execute(statement).mappings()]

    def latest_runs(self, identities: Sequence[Identity], *, but: str) -> list[str]:
        """See ``OrchestratorStore.latest_runs``."""
        found: dict[Identity, list[str]] = defaultdict(list)
        complete: Counter[Identity] = Counter()
        with self._read() as tx:
            for namespace, asset, partitions in _batches(identities):
                statement = (
                    select(members.c.partition, members.c.run_id, runs.c.state, _was_asked_for)
                    .join(runs, runs.c.run_id == members.c.run_id)
                    .where(
                        members.c.namespace == namespace,
                        members.c.asset == asset,
                        members.c.partition.in_(partitions),
                        members.c.run_id != but,
                    )
                    .order_by(runs.c.created_at.desc(), runs.c.run_id.desc())
                )
                for row in tx.execute(statement):
                    identity = Identity(namespace=namespace, asset=asset, partition=row.partition)
                    if complete[identity] < _COMPLETE_RUNS:
                        found[identity].append(row.run_id)
                        complete[identity] += row.was_asked_for and RunState(row.state).is_complete
        return list(dict.fromkeys(run_id for i in identities for run_id in found.get(i, ())))

    def unwanted_rows(self, run_id: str) -> list[tuple[int, int]]:
        """See ``Store.unwanted_rows``."""
        with self._read() as tx:
            return unwanted_rows(tx, run_id)

    def release_members(self, run_id: str, identities: Sequence[Identity] | None = None) -> None:
        """See ``OrchestratorStore.release_members``."""
        with self._write() as tx:
            lock_run(tx, run_id)
            close_members(tx, run_id, identities)


def insert_members(
    tx: Transaction, run_id: str, claims: Sequence[MemberClaim], *, is_open: bool
) -> None:
    """Record the identities of a run; open ones are taken."""
    rows = [
        {
            "run_id": run_id,
            "seq": seq,
            "namespace": claim.identity.namespace,
            "asset": claim.identity.asset,
            "partition": claim.identity.partition,
            "fingerprint": claim.fingerprint,
            "item_count": claim.item_count,
            "is_open": is_open,
            "is_wanted": True,
        }
        for seq, claim in enumerate(claims)
    ]
    # In one order for everybody, so that two claims that share identities cannot deadlock.
    rows.sort(key=lambda row: (row["namespace"], row["asset"], row["partition"]))
    if rows:
        tx.connection.execute(insert(members), rows)


def close_members(
    tx: Transaction, run_id: str, identities: Sequence[Identity] | None = None
) -> int:
    """Free identities of the run, all unless some are given; the run's row is locked by now.

    Returns:
        How many are still open.
    """
    is_open = (members.c.run_id == run_id, members.c.is_open)
    release = update(members).where(*is_open).values(is_open=False, is_wanted=False)
    closed = 0
    if identities is None:
        closed = tx.execute(release).rowcount
    for namespace, asset, partitions in _batches(identities or ()):
        named = (members.c.namespace == namespace, members.c.asset == asset)
        closed += tx.execute(release.where(*named, members.c.partition.in_(partitions))).rowcount
    if closed:
        append_event(tx, run_id, "members.released", members=closed)
    return int(tx.execute(select(func.count()).where(*is_open)).scalar_one())


def unwanted_rows(tx: Transaction, run_id: str) -> list[tuple[int, int]]:
    """Return the stretches of rows (first, last) of members that nobody wants any more."""
    mine = members.c.run_id == run_id
    if not tx.execute(select(exists().where(mine, ~members.c.is_wanted))).scalar_one():
        return []  # nearly always: nothing else has to be read
    stretches: list[tuple[int, int]] = []
    begin = 0
    columns = (members.c.item_count, members.c.is_wanted)
    for row in tx.execute(select(*columns).where(mine).order_by(members.c.seq)):
        end = begin + row.item_count
        if row.item_count and not row.is_wanted:
            first = stretches.pop()[0] if stretches and stretches[-1][1] == begin - 1 else begin
            stretches.append((first, end - 1))
        begin = end
    return stretches


def are_covered(rows: tuple[int, int], stretches: Iterable[tuple[int, int]]) -> bool:
    """Whether all rows from the first to the last are in one of the stretches."""
    return any(first <= rows[0] and rows[1] <= last for first, last in stretches)


def note_unwanted(tx: Transaction, run_id: str, partitions: AbstractSet[str]) -> None:
    """Record that nobody wants some members any more, and what chunks nobody wants by now."""
    found = select(members.c.seq, members.c.partition).where(
        members.c.run_id == run_id, members.c.is_wanted
    )
    seqs = [row.seq for row in tx.execute(found) if row.partition in partitions]
    for group in batched(seqs):
        named = (members.c.run_id == run_id, members.c.seq.in_(group))
        tx.execute(update(members).where(*named).values(is_wanted=False))
    if seqs:
        append_event(tx, run_id, "members.unwanted", members=len(seqs))
    flag_unwanted_chunks(tx, run_id)


def flag_unwanted_chunks(tx: Transaction, run_id: str) -> None:
    """Mark the open chunks whose items nobody wants any more."""
    stretches = unwanted_rows(tx, run_id)
    if not stretches:
        return
    is_open = (chunks.c.run_id == run_id, chunks.c.state.in_(_OPEN_CHUNKS))
    rows = select(chunks.c.seq, chunks.c.first_row, chunks.c.last_row).where(*is_open)
    for row in tx.execute(rows).all():
        if are_covered((row.first_row, row.last_row), stretches):
            named = (chunks.c.run_id == run_id, chunks.c.seq == row.seq)
            tx.execute(update(chunks).where(*named).values(is_unwanted=True))


def note_answers(tx: Transaction, run_id: str, ok_by_member: Mapping[int, int]) -> None:
    """Record how many rows of each member were answered."""
    named = (members.c.run_id == run_id, members.c.seq == bindparam("of_seq"))
    rows = [{"of_seq": seq, "ok_count": count} for seq, count in ok_by_member.items()]
    if rows:
        tx.connection.execute(update(members).where(*named), rows)


def open_members_of(tx: Transaction, identities: Sequence[Identity]) -> list[Member]:
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
