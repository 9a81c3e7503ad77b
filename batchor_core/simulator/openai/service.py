"""What the OpenAI protocol does: batches that live, execute once, and end."""

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchor_core.simulator.answers import AnswerWriter
from batchor_core.simulator.batch_faults import (
    RESULTS_GONE,
    RESULTS_MISSING,
    BatchKind,
    Moment,
)
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.faults import FaultBook, Target
from batchor_core.simulator.ledger import Ledger
from batchor_core.simulator.list_faults import ListKind
from batchor_core.simulator.openai.answering import OpenAIAnswerer
from batchor_core.simulator.openai.batches import Batch, plan_batch
from batchor_core.simulator.openai.creation import check_creation
from batchor_core.simulator.openai.execution import BatchExecution, LineFile
from batchor_core.simulator.openai.files import FileShelf
from batchor_core.simulator.openai.validation import inspect_file
from batchor_core.simulator.openai.wire import WireError, list_body, page_of
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.record_faults import RecordKind
from batchor_core.simulator.spool import Spool, StoredFile

_MAX_PAGE = 100
_DEFAULT_PAGE = 20
_LIST_BUDGET_S = 5.0


class OpenAIService:
    """Files and batches of one simulated account.

    Nothing runs in the background: each call first settles what has become due. Validation goes
    first and in the order of time, since batches compete for the token limit; execution follows.
    A batch is not past `in_progress` before its requests were executed, so a list call may stop
    executing after a few seconds and leave the rest to the next call.

    Safe to use from several threads; calls may block for as long as a batch takes to execute.
    """

    def __init__(
        self,
        options: SimulatorOptions,
        *,
        clock: SimulatorClock,
        spool: Spool,
        faults: FaultBook,
        ledger: Ledger,
    ) -> None:
        self._options = options
        self._clock = clock
        self._spool = spool
        self._faults = faults
        self._ledger = ledger
        self._answerer = OpenAIAnswerer(AnswerWriter(options.seed))
        self._files = FileShelf(spool, clock, options.max_file_bytes)
        self._batches: dict[str, Batch] = {}
        self._live: dict[str, Batch] = {}
        self._lock = threading.RLock()

    def new_upload_path(self) -> Path:
        """Where the next upload goes; its name becomes the file's id."""
        return self._spool.path(self._spool.new_id("file-"))

    def upload(
        self, path: Path, fields: Mapping[str, str], filename: str | None, size: int
    ) -> dict[str, Any]:
        """Keep an upload that lies at `path`, or remove it and refuse."""
        with self._lock:
            try:
                self._files.check_upload(fields, filename, size)
            except WireError:
                path.unlink(missing_ok=True)
                raise
            file = self._files.add_upload(path, fields, filename or "", size)
            return self._files.render(file)

    def list_files(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of files."""
        with self._lock:
            return self._files.page(query)

    def get_file(self, file_id: str) -> dict[str, Any]:
        """One file object."""
        with self._lock:
            return self._files.render(self._files.get(file_id))

    def delete_file(self, file_id: str) -> dict[str, Any]:
        """Delete a file; batches that already validated it are not disturbed."""
        with self._lock:
            needed = any(
                batch.source is not None and batch.source.id == file_id and not batch.executed
                for batch in self._live.values()
            )
            return self._files.delete(file_id, keep_bytes=needed)

    def content(self, file_id: str) -> StoredFile:
        """The file whose bytes are asked for."""
        with self._lock:
            return self._files.open(file_id)

    def create_batch(self, request: Any) -> dict[str, Any]:
        """Create a batch; whether its file is any good shows later."""
        checked = check_creation(request)
        with self._lock:
            number = len(self._batches)
            batch_id = self._spool.new_id("batch_")
            run = (checked.get("metadata") or {}).get("batchor_run", "")
            batch = plan_batch(
                self._options,
                batch_id=batch_id,
                number=number,
                ledger_number=self._ledger.open_batch(batch_id, run),
                now=self._clock.now(),
                request=checked,
            )
            self._batches[batch.id] = self._live[batch.id] = batch
            self._apply_faults(batch, "create")
            return self._render(batch, "batches.create")

    def get_batch(self, batch_id: str) -> dict[str, Any]:
        """One batch as it is now."""
        with self._lock:
            batch = self._batch(batch_id)
            if batch.unseen_gets > 0:
                batch.unseen_gets -= 1
                raise _no_batch(batch_id)
            self._settle(only=batch_id)
            return self._render(batch, "batches.get")

    def list_batches(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of batches, newest first."""
        with self._lock:
            self._settle(budget_s=_LIST_BUDGET_S)
            now = self._clock.now()
            batches = [batch for batch in self._batches.values() if batch.visible_at <= now]
            batches.reverse()
            struck = self._struck_lists()
            for kind in struck:
                batches = kind.order(batches)
            data, has_more = page_of(batches, query, default=_DEFAULT_PAGE, highest=_MAX_PAGE)
            rendered = [self._render(batch, "batches.list") for batch in data]
            page = list_body(rendered, has_more=has_more)
            for kind in struck:
                kind.finish(page, query.get("after"))
            return page

    def cancel_batch(self, batch_id: str) -> dict[str, Any]:
        """Stop a batch; what it has executed by now is kept."""
        with self._lock:
            batch = self._batch(batch_id)
            self._settle(only=batch_id)
            now = self._clock.now()
            if batch.is_terminal(now):
                status = batch.status(now)
                raise WireError(409, f"Cannot cancel a batch with status '{status}'.")
            if batch.cancelling_at is None:
                batch.cancel(now, self._options.finalizing_s)
            return self._render(batch, "batches.cancel")

    def target(self, batch_id: str) -> Target:
        """What fault rules may match of a batch that is named in a call."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return Target()
        return Target(run=batch.run, batch=batch.number, endpoint=batch.endpoint)

    def creation_target(self, request: Any) -> Target:
        """What fault rules may match of a batch that is about to be created."""
        given = request if isinstance(request, dict) else {}
        run = (given.get("metadata") or {}).get("batchor_run", "")
        return Target(run=run, batch=len(self._batches), endpoint=given.get("endpoint"))

    def settle(self) -> None:
        """Execute everything that is due."""
        with self._lock:
            self._settle()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Status, run and creation time of every batch."""
        with self._lock:
            now = self._clock.now()
            return {
                batch.id: {
                    "status": batch.status(now),
                    "run": batch.run,
                    "endpoint": batch.endpoint,
                    "created_at": self._clock.unix(batch.created_at),
                    "total": batch.total,
                }
                for batch in self._batches.values()
            }

    def reset(self) -> None:
        """Forget every file and batch."""
        with self._lock:
            self._files.clear()
            self._batches.clear()
            self._live.clear()

    def _batch(self, batch_id: str) -> Batch:
        batch = self._batches.get(batch_id)
        if batch is None:
            raise _no_batch(batch_id)
        return batch

    def _settle(self, *, only: str | None = None, budget_s: float | None = None) -> None:
        now = self._clock.now()
        for batch in sorted(self._live.values(), key=lambda batch: batch.in_progress_at):
            if not batch.validated and batch.in_progress_at <= now:
                self._validate(batch)
        started = time.monotonic()
        for batch in sorted(self._live.values(), key=lambda batch: batch.execute_at):
            due = batch.errors is None and batch.validated and not batch.executed
            if not due or batch.execute_at > now or only not in (None, batch.id):
                continue
            if budget_s is not None and time.monotonic() - started > budget_s:
                break
            self._execute(batch)
        self._live = {
            batch.id: batch for batch in self._live.values() if not batch.is_terminal(now)
        }

    def _validate(self, batch: Batch) -> None:
        batch.validated = True
        batch.source = self._files.find(batch.input_file_id)
        if batch.source is None:
            message = f"Cannot find file {batch.input_file_id}, or it has been deleted."
            batch.errors = [_batch_error("invalid_request", message, "input_file_id")]
            return
        limit = self._options.max_requests_per_batch
        found = inspect_file(batch.source.path, batch.endpoint, limit)
        batch.total, batch.tokens, batch.model = found.total, found.tokens, found.model
        if found.errors:
            batch.errors = found.errors
        elif self._over_token_limit(batch):
            batch.errors = [_token_limit_error(batch.model, self._options.enqueued_token_limit)]
        else:
            self._apply_faults(batch, "validate")

    def _over_token_limit(self, batch: Batch) -> bool:
        limit = self._options.enqueued_token_limit
        if limit is None:
            return False
        enqueued = sum(
            other.tokens
            for other in self._batches.values()
            if other is not batch
            and other.model == batch.model
            and other.holds_tokens(batch.in_progress_at)
        )
        return enqueued + batch.tokens > limit

    def _apply_faults(self, batch: Batch, moment: Moment) -> None:
        for rule, kind in self._faults.rules(BatchKind, self.target(batch.id)):
            if kind.moment == moment and rule.strike():
                kind.apply(rule, batch)

    def _render(self, batch: Batch, route: str) -> dict[str, Any]:
        record = batch.render(self._clock.now(), self._clock)
        target = replace(self.target(batch.id), route=route)
        for rule, kind in self._faults.rules(RecordKind, target):
            if rule.strike(batch.id):
                kind.apply(rule, record)
        return record

    def _struck_lists(self) -> list[ListKind]:
        rules = self._faults.rules(ListKind, Target(route="batches.list"))
        return [kind for rule, kind in rules if rule.strike()]

    def _execute(self, batch: Batch) -> None:
        assert batch.source is not None
        execution = BatchExecution(
            batch,
            answerer=self._answerer,
            faults=self._faults,
            ledger=self._ledger,
            created_unix=self._clock.unix(batch.execute_at),
        )
        shuffler = self._shuffler(batch)
        with (
            LineFile(self.new_upload_path(), shuffler) as output,
            LineFile(self.new_upload_path(), shuffler) as errors,
        ):
            execution.write(batch.source.path, output, errors)
        batch.output_file_id = self._keep(batch, output, "output")
        batch.error_file_id = self._keep(batch, errors, "error")
        batch.executed = True
        if batch.spoilt == RESULTS_GONE:
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                self._files.delete(file_id, keep_bytes=False)
        if batch.source.deleted:
            batch.source.path.unlink(missing_ok=True)

    def _keep(self, batch: Batch, lines: LineFile, kind: str) -> str | None:
        is_kept = bool(lines.lines) or batch.has_empty_files
        if not is_kept or batch.spoilt == RESULTS_MISSING:
            lines.path.unlink()
            return None
        file = self._files.add(
            lines.path,
            filename=f"{batch.id}_{kind}.jsonl",
            purpose="batch_output",
            size_bytes=lines.path.stat().st_size,
            expiry_s=batch.output_expiry_s,
        )
        file.unready_gets = batch.unready_gets
        return file.id

    def _shuffler(self, batch: Batch) -> random.Random | None:
        if not self._options.shuffle_output:
            return None
        return random.Random(f"{self._options.seed}:{batch.number}")  # noqa: S311 no secret


def _no_batch(batch_id: str) -> WireError:
    return WireError(404, f"No batch found with id '{batch_id}'.", param="id")


def _batch_error(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "line": None, "message": message, "param": param}


def _token_limit_error(model: str | None, limit: int | None) -> dict[str, Any]:
    message = (
        f"Enqueued token limit reached for {model} in organization org-simulator. Limit:"
        f" {limit:,} enqueued tokens. Please try again once some in_progress batches have been"
        " completed."
    )
    return _batch_error("token_limit_exceeded", message)
