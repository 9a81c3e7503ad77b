"""What was exported of a finished run's files, and what was removed of them."""

from collections.abc import Iterable

from sqlalchemy import func, select, update

from batchor_core.errors import PruneRefusedError, RunNotFinishedError
from batchor_core.model.records import RunRecord
from batchor_core.model.states import TERMINAL_RUN_STATES, RunState, WaiterState
from batchor_core.store.sql.events import append_event
from batchor_core.store.sql.runs import load_run
from batchor_core.store.sql.tables import runs, submissions, waiters
from batchor_core.store.sql.transaction import Aggregate, Transaction, lock_run

_READ_BY_WAITERS = frozenset({"items", "results"})


class Retention(Aggregate):
    """The part of the store that knows which files there still are."""

    def note_export(self, run_id: str, *, files: int, size_bytes: int) -> RunRecord:
        """See ``Store.note_export``."""
        with self._write() as tx:
            _lock_finished(tx, run_id)
            tx.execute(update(runs).where(runs.c.run_id == run_id).values(exported_at=tx.now))
            append_event(tx, run_id, "artifacts.exported", files=files, size_bytes=size_bytes)
            return load_run(tx, run_id)

    def begin_prune(self, run_id: str, kinds: Iterable[str], *, is_dry: bool = False) -> RunRecord:
        """See ``Store.begin_prune``."""
        wanted = sorted(set(kinds))
        with self._write() as tx:
            run = _lock_finished(tx, run_id)
            new = [kind for kind in wanted if kind not in run.pruned]
            if not new:
                return run
            _check_unneeded(tx, run, frozenset(new))
            if is_dry:
                return run
            return _note(tx, run, dict.fromkeys(new, "begun"), "artifacts.prune_begun")

    def finish_prune(self, run_id: str, kinds: Iterable[str]) -> RunRecord:
        """See ``Store.finish_prune``."""
        with self._write() as tx:
            run = _lock_finished(tx, run_id)
            done = [kind for kind in sorted(set(kinds)) if run.pruned.get(kind) == "begun"]
            if not done:
                return run
            return _note(tx, run, dict.fromkeys(done, "done"), "artifacts.pruned")


def _lock_finished(tx: Transaction, run_id: str) -> RunRecord:
    lock_run(tx, run_id)
    run = load_run(tx, run_id)
    if not run.state.is_terminal:
        raise RunNotFinishedError(
            f"run {run_id!r} is {run.state}: its files are needed until it is finished"
        )
    return run


def _note(tx: Transaction, run: RunRecord, changed: dict[str, str], kind: str) -> RunRecord:
    named = runs.c.run_id == run.run_id
    tx.execute(update(runs).where(named).values(pruned={**run.pruned, **changed}))
    append_event(tx, run.run_id, kind, kinds=list(changed))
    return load_run(tx, run.run_id)


def _check_unneeded(tx: Transaction, run: RunRecord, kinds: frozenset[str]) -> None:
    """Raise ``PruneRefusedError`` if somebody still needs files of these kinds."""
    if "raw" in kinds and run.exported_at is None and _has_raw(tx, run.run_id):
        raise PruneRefusedError(
            f"the raw answers of run {run.run_id!r} were never exported: export them first "
            "(batchor export-artifacts), or leave them out"
        )
    if kinds & _READ_BY_WAITERS and _is_awaited(tx, run.run_id):
        raise PruneRefusedError(f"the results of run {run.run_id!r} are not delivered yet")
    reader = _reader_of(tx, run.run_id)
    if reader is not None:
        raise PruneRefusedError(
            f"run {reader!r} still reads the files of run {run.run_id!r}: wait until it is further"
        )


def _has_raw(tx: Transaction, run_id: str) -> bool:
    kept = select(submissions.c.submission_id).where(
        submissions.c.run_id == run_id,
        submissions.c.raw.is_not(None),
        func.length(submissions.c.raw) > len("[]"),
    )
    return tx.execute(kept.limit(1)).first() is not None


def _is_awaited(tx: Transaction, run_id: str) -> bool:
    is_open = waiters.c.state == WaiterState.OPEN
    statement = select(waiters.c.waiter_id).where(waiters.c.run_id == run_id, is_open)
    return tx.execute(statement.limit(1)).first() is not None


def _reader_of(tx: Transaction, run_id: str) -> str | None:
    """Return a run that takes answers or requests out of this one's files, if there is one."""
    retries = (runs.c.retry_of == run_id) & (runs.c.state == RunState.INGESTING)
    reader: str | None = tx.execute(select(runs.c.run_id).where(retries).limit(1)).scalar()
    seen = {run_id}
    pending = [run_id]
    while pending and reader is None:  # a successor's successor reads them as well
        statement = select(runs.c.run_id, runs.c.state).where(runs.c.predecessor.in_(pending))
        pending = []
        for row in tx.execute(statement):
            if row.state not in TERMINAL_RUN_STATES:
                reader = row.run_id
            elif row.run_id not in seen:
                seen.add(row.run_id)
                pending.append(row.run_id)
    return reader
