"""Runs that ask the failed items of a finished run again."""

from sqlalchemy import select

from batchor_core.errors import RunError, RunNotFinishedError
from batchor_core.model.records import NewRun, RunRecord
from batchor_core.model.states import RunState
from batchor_core.store.sql.runs import insert_run, load_run
from batchor_core.store.sql.tables import runs
from batchor_core.store.sql.transaction import Aggregate, lock_run, record_columns

_COLUMNS = record_columns(runs, RunRecord)


class Retries(Aggregate):
    """The retry runs' part of the store."""

    def open_retry(self, run: NewRun) -> RunRecord:
        """See ``Store.open_retry``."""
        origin = run.retry_of or ""
        with self._write() as tx:
            lock_run(tx, origin)  # two who open one at once take turns
            state = load_run(tx, origin).state
            if not state.is_terminal:
                raise RunNotFinishedError(
                    f"run {origin!r} is {state}: it retries by itself until it is finished"
                )
            unread = select(runs.c.run_id).where(
                runs.c.retry_of == origin,
                runs.c.state == RunState.INGESTING,
                runs.c.run_id != run.run_id,
            )
            other = tx.execute(unread.limit(1)).scalar_one_or_none()
            if other is not None:
                raise RunError(
                    f"run {other!r} is just taking failed items of run {origin!r}: let it go on "
                    "first (advance or wait for it), so that no item is asked twice"
                )
            insert_run(tx, run)
            opened = load_run(tx, run.run_id)
            if (opened.retry_of, opened.spec.get("retry_codes")) != (
                origin,
                run.spec.get("retry_codes"),
            ):
                raise RunError(f"run {run.run_id!r} exists and is another: choose another run id")
            return opened

    def retries_of(self, run_id: str) -> list[RunRecord]:
        """See ``Store.retries_of``."""
        statement = select(*_COLUMNS).where(runs.c.retry_of == run_id).order_by(runs.c.ordinal)
        with self._read() as tx:
            return [RunRecord(**row) for row in tx.execute(statement).mappings()]
