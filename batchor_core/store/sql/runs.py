"""Batch runs: their state, what was asked of them, and their end."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from sqlalchemy import delete, func, insert, select, update

from batchor_core.errors import RunNotFoundError
from batchor_core.model.records import Lease, NewRun, RunRecord
from batchor_core.model.states import RunControlState, RunState, WaiterState
from batchor_core.model.transitions import RUN_TRANSITIONS
from batchor_core.store.sql.counts import count_items, sum_usage
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.members import close_members, note_answers
from batchor_core.store.sql.setbacks import NO_SETBACKS
from batchor_core.store.sql.tables import chunks, leases, runs, waiters
from batchor_core.store.sql.transaction import (
    Aggregate,
    Transaction,
    batched,
    change_state,
    record_columns,
    stale,
)

_COLUMNS = record_columns(runs, RunRecord)


class Runs(Aggregate):
    """The runs' part of the store."""

    def create_run(self, run: NewRun) -> RunRecord:
        """See ``Store.create_run``."""
        with self._write() as tx:
            insert_run(tx, run)
            return load_run(tx, run.run_id)

    def get_run(self, run_id: str) -> RunRecord:
        """See ``Store.get_run``."""
        with self._read() as tx:
            return load_run(tx, run_id)

    def get_runs(self, run_ids: Iterable[str]) -> dict[str, RunRecord]:
        """See ``Store.get_runs``."""
        statement = select(*_COLUMNS)
        with self._read() as tx:
            return {
                row["run_id"]: RunRecord(**row)
                for group in batched(run_ids)
                for row in tx.execute(statement.where(runs.c.run_id.in_(group))).mappings()
            }

    def list_runs(
        self,
        *,
        namespace: str | None = None,
        states: Iterable[RunState] | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """See ``Store.list_runs``."""
        statement = select(*_COLUMNS).order_by(runs.c.ordinal.desc()).limit(limit)
        if namespace is not None:
            statement = statement.where(runs.c.namespace == namespace)
        if states is not None:
            statement = statement.where(runs.c.state.in_(list(states)))
        with self._read() as tx:
            return [RunRecord(**row) for row in tx.execute(statement).mappings()]

    def set_control(self, run_id: str, control: RunControlState, reason: str | None) -> RunRecord:
        """See ``Store.set_control``."""
        with self._write() as tx:
            return write_control(tx, run_id, control, reason)

    def supersede_run(self, run_id: str, successor: NewRun) -> RunRecord:
        """See ``Store.supersede_run``."""
        with self._write() as tx:
            if insert_run(tx, successor):
                supersede_run(tx, run_id, successor.run_id)
            return load_run(tx, successor.run_id)

    def successor_of(self, run_id: str) -> RunRecord | None:
        """See ``Store.successor_of``."""
        statement = select(*_COLUMNS).where(runs.c.predecessor == run_id)
        with self._read() as tx:
            row = tx.execute(statement).mappings().first()
            return RunRecord(**row) if row is not None else None

    def restart_ingestion(self, lease: Lease, run: NewRun) -> RunRecord:
        """See ``Store.restart_ingestion``."""
        values = {column.name: getattr(run, column.name) for column in record_columns(runs, NewRun)}
        with self._fenced(lease) as tx:
            restarted = tx.execute(
                update(runs)
                .where(runs.c.run_id == lease.run_id, runs.c.state == RunState.INGESTING)
                .values(**values, total_items=0, checkpoint=None)
            )
            if restarted.rowcount != 1:
                found = load_run(tx, lease.run_id).state
                key = {"run_id": lease.run_id}
                raise stale(runs, key, wanted=RunState.INGESTING, found=found)
            tx.execute(delete(chunks).where(chunks.c.run_id == lease.run_id))
            append_event(tx, lease.run_id, "run.ingestion_restarted")
            return load_run(tx, lease.run_id)

    def finish_ingestion(self, lease: Lease, fingerprint: str) -> RunRecord:
        """See ``Store.finish_ingestion``."""
        with self._fenced(lease) as tx:
            key = {"run_id": lease.run_id}
            change_state(tx, runs, key, RUN_TRANSITIONS, RunState.RUNNING, fingerprint=fingerprint)
            run = load_run(tx, lease.run_id)
            append_event(
                tx,
                lease.run_id,
                "run.ingested",
                fingerprint=fingerprint,
                total_items=run.total_items,
            )
            return run

    def finish_reuse(self, lease: Lease) -> RunRecord:
        """See ``Store.finish_reuse``."""
        with self._fenced(lease) as tx:
            named = runs.c.run_id == lease.run_id
            tx.execute(update(runs).where(named).values(reuse_done=True))
            append_event(tx, lease.run_id, "run.reuse_done")
            return load_run(tx, lease.run_id)

    def close_run(
        self,
        lease: Lease,
        state: RunState,
        *,
        error_code: str | None = None,
        error_message: str | None = None,
        ok_by_member: Mapping[int, int] | None = None,
    ) -> RunRecord:
        """See ``Store.close_run``; members that nobody waits for are closed with it."""
        with self._fenced(lease) as tx:
            before = load_run(tx, lease.run_id)
            open_ = count_items(tx, lease.run_id, before.state, before.total_items)
            change_state(
                tx,
                runs,
                {"run_id": lease.run_id},
                RUN_TRANSITIONS,
                state,
                error_code=error_code,
                error_message=error_message,
                finished_at=tx.now,
            )
            run = load_run(tx, lease.run_id)
            append_event(
                tx,
                lease.run_id,
                "run.closed",
                state=state,
                error_code=error_code,
                unanswered=open_.retrying + open_.in_flight + open_.ready,
                counts=asdict(count_items(tx, run.run_id, run.state, run.total_items)),
                usage=asdict(sum_usage(tx, run.run_id)),
            )
            note_answers(tx, run.run_id, ok_by_member or {})
            close_members_if_unwanted(tx, run)
            return run


def insert_run(tx: Transaction, run: NewRun) -> bool:
    """Insert a run in ``ingesting`` with its lease, unless there is one of this id."""
    values = {
        **{column.name: getattr(run, column.name) for column in record_columns(runs, NewRun)},
        "state": RunState.INGESTING,
        "control": RunControlState.RUN,
        "total_items": 0,
        "reuse_done": False,
        "pruned": {},
        **NO_SETBACKS,
        "created_at": tx.now,
        "updated_at": tx.now,
    }
    if not tx.insert_if_absent(runs, values):
        return False
    lease = {"run_id": run.run_id, "owner": None, "token": 0, "expires_at": tx.now}
    tx.execute(insert(leases).values(lease))
    append_event(
        tx,
        run.run_id,
        "run.created",
        namespace=run.namespace,
        account=run.account,
        scope=run.scope,
    )
    return True


def supersede_run(tx: Transaction, run_id: str, successor_id: str) -> None:
    """End one run in favour of another, which inherits those who wait."""
    write_control(tx, run_id, RunControlState.CANCEL, f"superseded by {successor_id}")
    tx.execute(
        update(waiters)
        .where(waiters.c.run_id == run_id, waiters.c.state == WaiterState.OPEN)
        .values(run_id=successor_id, progress={}, version=waiters.c.version + 1)
    )
    note_predecessor(tx, successor_id, run_id)


def note_predecessor(tx: Transaction, run_id: str, predecessor: str) -> None:
    """Let a run send nothing before another one has ended."""
    tx.execute(update(runs).where(runs.c.run_id == run_id).values(predecessor=predecessor))
    append_event(tx, run_id, "run.supersedes", predecessor=predecessor)


def load_run(tx: Transaction, run_id: str) -> RunRecord:
    """Return the run, or raise ``RunNotFoundError``."""
    row = tx.execute(select(*_COLUMNS).where(runs.c.run_id == run_id)).mappings().one_or_none()
    if row is None:
        raise RunNotFoundError(f"no run {run_id!r} in {tx.database.location}")
    return RunRecord(**row)


def write_control(
    tx: Transaction, run_id: str, control: RunControlState, reason: str | None
) -> RunRecord:
    """Change what is asked of the run, unless it is terminal or under cancel."""
    tx.execute(select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update())
    run = load_run(tx, run_id)
    settled = run.state.is_terminal or run.control == RunControlState.CANCEL
    if settled or (run.control, run.control_reason) == (control, reason):
        return run
    tx.execute(
        update(runs)
        .where(runs.c.run_id == run_id)
        .values(control=control, control_reason=reason, updated_at=tx.now, **NO_SETBACKS)
    )
    append_event(tx, run_id, "run.controlled", control=control, reason=reason)
    return load_run(tx, run_id)


def close_members_if_unwanted(tx: Transaction, run: RunRecord) -> None:
    """Free the identities of a terminal run that no open waiter asks for."""
    if not run.state.is_terminal:
        return
    still_open = select(func.count()).where(
        waiters.c.run_id == run.run_id, waiters.c.state == WaiterState.OPEN
    )
    if tx.execute(still_open).scalar_one() == 0:
        close_members(tx, run.run_id)
