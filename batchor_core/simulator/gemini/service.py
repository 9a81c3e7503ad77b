"""What the Developer API does: files, and batches that live, execute once, and end."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from batchor_core.simulator.answers import Answer, estimate_tokens
from batchor_core.simulator.batch_plan import RESULTS_GONE, RESULTS_MISSING
from batchor_core.simulator.batch_service import BatchService
from batchor_core.simulator.execution import ExecutionLog, LineFile
from batchor_core.simulator.faults import Target
from batchor_core.simulator.gemini.answering import GeminiAnswerer
from batchor_core.simulator.gemini.batches import GeminiBatch, plan_batch, run_of, shown_page
from batchor_core.simulator.gemini.bodies import developer_line, inlined_entry
from batchor_core.simulator.gemini.execution import BatchExecution
from batchor_core.simulator.gemini.files import FileShelf
from batchor_core.simulator.gemini.requests import developer_lines
from batchor_core.simulator.gemini.wire import GeminiError, field, rpc_status
from batchor_core.simulator.spool import StoredFile
from batchor_core.simulator.world import World

MAX_FILE_BYTES = 2_000_000_000
MAX_INLINE_BYTES = 20_000_000
MAX_PAGE = 100
RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37s"}
_encode = msgspec.json.Encoder().encode


class GeminiService(BatchService[GeminiBatch]):
    """Files and batches of one simulated account of the Developer API."""

    protocol = "gemini"
    prefix = "gemini."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._answerer = GeminiAnswerer(world.writer)
        limit = self._options.max_file_bytes
        self._files = FileShelf(
            self._spool, self._clock, MAX_FILE_BYTES if limit is None else limit
        )

    def start_upload(self, request: Any) -> str:
        """Begin an upload; returns the id of its session."""
        with self._lock:
            return self._files.start(request)

    def upload(
        self, session: str, chunk: bytes, offset: int, is_last: bool
    ) -> dict[str, Any] | None:
        """Take a piece of an upload."""
        with self._lock:
            return self._files.append(session, chunk, offset=offset, is_last=is_last)

    def list_files(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of files."""
        with self._lock:
            return self._files.page(query)

    def get_file(self, name: str) -> dict[str, Any]:
        """One file."""
        with self._lock:
            return self._files.render(self._files.get(name))

    def delete_file(self, name: str) -> dict[str, Any]:
        """Delete a file; batches that were made from it are not disturbed."""
        with self._lock:
            file = self._files.get(name)
            self._files.forget(file, keep_bytes=True)
            if not self._is_needed(file.path):
                file.path.unlink(missing_ok=True)
            return {}

    def content(self, name: str) -> StoredFile:
        """The file whose bytes are asked for."""
        with self._lock:
            return self._files.open(name)

    def create_batch(self, model: str, endpoint: str, request: Any) -> dict[str, Any]:
        """Create a batch over a file, or over requests in the call."""
        with self._lock:
            display_name, input_name, source = self._checked(request)
            run = run_of(display_name)
            batch_id = self._spool.new_id("batches/")
            tokens = estimate_tokens(source.stat().st_size)
            self._check_room(model, tokens)
            batch = plan_batch(
                self._options,
                self._clock.now(),
                id=batch_id,
                number=len(self._batches),
                ledger_number=self._ledger.open_batch(batch_id, run),
                endpoint=endpoint,
                run=run,
                display_name=display_name,
                model=model,
                input_name=input_name,
                source=source,
                tokens=tokens,
            )
            self._open(batch)
            return self._render(batch, "batches.create")

    def get_batch(self, name: str) -> dict[str, Any]:
        """One batch as it is now."""
        with self._lock:
            batch = self._batch(name)
            if batch.unseen_gets > 0:
                batch.unseen_gets -= 1
                raise _no_batch(name)
            self._settle(only=name)
            return self._render(batch, "batches.get")

    def list_batches(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of batches, newest first."""
        with self._lock:
            batches, struck = self._listed()
            shown, more = shown_page(query, batches, struck, MAX_PAGE)
            operations = [self._render(batch, "batches.list") for batch in shown]
            return {**({"operations": operations} if operations else {}), **more}

    def cancel_batch(self, name: str) -> dict[str, Any]:
        """Stop a batch; it is cancelled at once, and gives no results."""
        with self._lock:
            batch = self._batch(name)
            self._settle(only=name)
            now = self._clock.now()
            if batch.is_terminal(now):
                raise GeminiError(
                    400,
                    f"The batch is {batch.status(now)} already.",
                    name="FAILED_PRECONDITION",
                )
            batch.validated = True
            batch.stop(now, batch.in_progress_at, 0.0)
            self._settle(only=name)
            return {}

    def delete_batch(self, name: str) -> dict[str, Any]:
        """Forget a batch; one at work goes on unseen."""
        with self._lock:
            self._settle(only=name)
            del self._batches[self._batch(name).id]
            return {}

    def creation_target(self, endpoint: str, request: Any) -> Target:
        """What fault rules may match of a batch that is about to be created."""
        run = run_of(str(field(request, "batch", "displayName") or ""))
        return Target(run=run, batch=len(self._batches), endpoint=endpoint)

    def reset(self) -> None:
        """Forget every file and batch."""
        with self._lock:
            self._files.clear()
            super().reset()

    def _checked(self, request: Any) -> tuple[str, str | None, Path]:
        """Return (display name, input file, where the requests lie) of a create call."""
        display_name = field(request, "batch", "displayName") or ""
        if not isinstance(display_name, str) or len(display_name) > 512:
            raise GeminiError(400, "* batch.display_name: at most 512 characters")
        source = field(request, "batch", "inputConfig")
        name = field(source, "fileName")
        if isinstance(name, str):
            file = self._files.get(name)
            return display_name, name, file.path
        entries = field(source, "requests", "requests")
        if not isinstance(entries, list) or not entries:
            raise GeminiError(400, "* batch.input_config: is not specified")
        path = self._spool.path(self._spool.new_id("inline-"))
        with path.open("wb") as handle:
            for entry in entries:
                key = field(entry, "metadata", "key")
                handle.write(_encode({"key": key, "request": field(entry, "request")}) + b"\n")
        if path.stat().st_size > MAX_INLINE_BYTES:
            path.unlink()
            raise GeminiError(400, "Request payload size exceeds the limit: 20971520 bytes.")
        return display_name, None, path

    def _check_room(self, model: str, tokens: int) -> None:
        limit = self._options.enqueued_token_limit
        now = self._clock.now()
        held = sum(
            batch.tokens
            for batch in self._batches.values()
            if batch.model == model and batch.holds_tokens(now)
        )
        if limit is not None and held + tokens > limit:
            raise GeminiError(
                429,
                "You exceeded your current quota: batch enqueued tokens.",
                details=[quota_failure(limit), RETRY_INFO],
            )

    def _batch(self, name: str) -> GeminiBatch:
        batch = self._batches.get(name)
        if batch is None:
            raise _no_batch(name)
        return batch

    def _prepare(self, now: float) -> None:
        for batch in self._live.values():
            if not batch.validated and batch.in_progress_at <= now:
                self._validate(batch)

    def _validate(self, batch: GeminiBatch) -> None:
        batch.validated = True
        assert batch.source is not None
        for number, line in enumerate(developer_lines(batch.source), start=1):
            batch.total += 1
            if line is None:
                batch.error = rpc_status("INVALID_ARGUMENT", f"Line {number} is no request.")
                return
        limit = self._options.max_requests_per_batch
        if not batch.total or (limit is not None and batch.total > limit):
            batch.error = rpc_status("INVALID_ARGUMENT", f"A batch of {batch.total} requests.")
            return
        self._apply_faults(batch, "validate")

    def _record(self, batch: GeminiBatch) -> dict[str, Any]:
        return batch.operation(self._clock.now(), self._clock)

    def _render(self, batch: GeminiBatch, route: str) -> dict[str, Any]:
        record = super()._render(batch, route)
        if route == "batches.list" and "responsesFile" not in batch.output:
            # A list leaves out the answers that a batch holds itself.
            record["metadata"].pop("output", None)
            record.pop("response", None)
        return record

    def _execute(self, batch: GeminiBatch) -> None:
        assert batch.source is not None
        # A batch that is cancelled or expires gives nothing, and bills nothing.
        executed = int(batch.total * batch.portion) if batch.ending == "completed" else 0
        if batch.input_name is None:
            self._execute_inlined(batch, executed)
        else:
            self._execute_to_file(batch, executed)
        batch.executed = True
        if batch.spoilt == RESULTS_MISSING:
            batch.output = {}
        if not self._is_needed(batch.source):
            batch.source.unlink(missing_ok=True)

    def _is_needed(self, source: Path) -> bool:
        """Whether requests that lie there are a file's, or are still to be executed."""
        waiting = (batch for batch in self._live.values() if not batch.executed)
        return self._files.holds(source) or any(batch.source == source for batch in waiting)

    def _execute_to_file(self, batch: GeminiBatch, executed: int) -> None:
        shuffler = self._shuffler(batch) if self._options.shuffle_output else None
        with LineFile(self._spool.path(self._spool.new_id("results-")), shuffler) as output:

            def put(answer: Answer, _: Mapping[str, Any], key: str | None) -> None:
                output.write(developer_line(answer, key))

            self._execution(batch, put, output.write).run(
                developer_lines(batch.source or Path()), executed
            )
        name = self._files.add_results(output.path, batch.unready_gets)
        batch.output = {"responsesFile": name}
        if batch.spoilt == RESULTS_GONE and (file := self._files.find(name)):
            self._files.forget(file)

    def _execute_inlined(self, batch: GeminiBatch, executed: int) -> None:
        entries: list[dict[str, Any]] = []

        def put(answer: Answer, _: Mapping[str, Any], key: str | None) -> None:
            entries.append(inlined_entry(answer, key))

        execution = self._execution(batch, put, partial(_no_lines, entries))
        execution.run(developer_lines(batch.source or Path()), executed)
        if self._options.shuffle_output:
            self._shuffler(batch).shuffle(entries)
        batch.output = {"inlinedResponses": {"inlinedResponses": entries}}

    def _execution(self, batch: GeminiBatch, put: Any, put_raw: Any) -> BatchExecution:
        log = ExecutionLog(batch, faults=self._faults, ledger=self._ledger)
        return BatchExecution(batch, answerer=self._answerer, log=log, put=put, put_raw=put_raw)


def quota_failure(limit: int) -> dict[str, Any]:
    """The detail of a 429 that names the limit of enqueued tokens."""
    metric = "generativelanguage.googleapis.com/batch_enqueued_tokens"
    return {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaMetric": metric, "quotaId": metric, "quotaValue": str(limit)}],
    }


def _no_lines(entries: list[dict[str, Any]], _: bytes) -> None:
    """An answer that is held in JSON cannot be broken as a line can: it comes as nothing."""
    entries.append({})


def _no_batch(name: str) -> GeminiError:
    return GeminiError(404, f"Requested entity was not found: {name} is not a valid batch.")
