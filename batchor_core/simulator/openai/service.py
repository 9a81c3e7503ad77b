"""What the OpenAI protocol does: batches that live, execute once, and end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchor_core.simulator.batch_plan import RESULTS_GONE, RESULTS_MISSING
from batchor_core.simulator.batch_service import BatchService
from batchor_core.simulator.execution import ExecutionLog, LineFile
from batchor_core.simulator.faults import Target
from batchor_core.simulator.openai.answering import OpenAIAnswerer
from batchor_core.simulator.openai.batches import Batch, plan_batch
from batchor_core.simulator.openai.creation import check_creation
from batchor_core.simulator.openai.execution import BatchExecution
from batchor_core.simulator.openai.files import FileShelf
from batchor_core.simulator.openai.validation import inspect_file
from batchor_core.simulator.openai.wire import WireError, list_body, page_of
from batchor_core.simulator.spool import StoredFile
from batchor_core.simulator.world import World

MAX_REQUESTS = 50_000
MAX_FILE_BYTES = 200_000_000
_MAX_PAGE = 100
_DEFAULT_PAGE = 20


class OpenAIService(BatchService[Batch]):
    """Files and batches of one simulated account.

    Validation goes first and in the order of time, since batches compete for the token limit;
    execution follows.
    """

    protocol = "openai"
    prefix = ""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._answerer = OpenAIAnswerer(world.writer)
        limit = self._options.max_file_bytes
        self._files = FileShelf(
            self._spool, self._clock, MAX_FILE_BYTES if limit is None else limit
        )

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
            self._open(batch)
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
            batches, struck = self._listed()
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

    def creation_target(self, request: Any) -> Target:
        """What fault rules may match of a batch that is about to be created."""
        given = request if isinstance(request, dict) else {}
        run = (given.get("metadata") or {}).get("batchor_run", "")
        return Target(run=run, batch=len(self._batches), endpoint=given.get("endpoint"))

    def reset(self) -> None:
        """Forget every file and batch."""
        with self._lock:
            self._files.clear()
            super().reset()

    def _batch(self, batch_id: str) -> Batch:
        batch = self._batches.get(batch_id)
        if batch is None:
            raise _no_batch(batch_id)
        return batch

    def _prepare(self, now: float) -> None:
        for batch in sorted(self._live.values(), key=lambda batch: batch.in_progress_at):
            if not batch.validated and batch.in_progress_at <= now:
                self._validate(batch)

    def _validate(self, batch: Batch) -> None:
        batch.validated = True
        batch.source = self._files.find(batch.input_file_id)
        if batch.source is None:
            message = f"Cannot find file {batch.input_file_id}, or it has been deleted."
            batch.errors = [_batch_error("invalid_request", message, "input_file_id")]
            return
        limit = self._options.max_requests_per_batch or MAX_REQUESTS
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

    def _record(self, batch: Batch) -> dict[str, Any]:
        return batch.render(self._clock.now(), self._clock)

    def _execute(self, batch: Batch) -> None:
        assert batch.source is not None
        execution = BatchExecution(
            batch,
            answerer=self._answerer,
            log=ExecutionLog(batch, faults=self._faults, ledger=self._ledger),
            created_unix=self._clock.unix(batch.execute_at),
        )
        shuffler = self._shuffler(batch) if self._options.shuffle_output else None
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
