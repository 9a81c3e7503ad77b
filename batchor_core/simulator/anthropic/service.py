"""What the Anthropic protocol does: message batches that live, execute once, and end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchor_core.simulator.anthropic.answering import AnthropicAnswerer
from batchor_core.simulator.anthropic.batches import ENDPOINT, Batch, plan_batch
from batchor_core.simulator.anthropic.envelope import keep_requests
from batchor_core.simulator.anthropic.execution import BatchExecution
from batchor_core.simulator.anthropic.wire import WireError, list_body, page_of
from batchor_core.simulator.batch_plan import RESULTS_MISSING
from batchor_core.simulator.batch_service import BatchService
from batchor_core.simulator.execution import ExecutionLog, LineFile
from batchor_core.simulator.faults import Target
from batchor_core.simulator.world import World

MAX_REQUESTS = 100_000
MAX_BODY_BYTES = 256_000_000


class AnthropicService(BatchService[Batch]):
    """The message batches of one simulated workspace."""

    protocol = "anthropic"
    prefix = "anthropic."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._answerer = AnthropicAnswerer(world.writer)

    def create_batch(self, body: bytes, api_version: str) -> dict[str, Any]:
        """Create a batch; what is wrong with single requests shows in its results."""
        most_bytes = self._options.max_file_bytes or MAX_BODY_BYTES
        if len(body) > most_bytes:
            raise WireError(413, f"Request exceeds the maximum size of {most_bytes} bytes")
        batch_id = self._spool.new_id("msgbatch_")
        source = self._spool.path(batch_id)
        total = keep_requests(body, source, self._options.max_requests_per_batch or MAX_REQUESTS)
        with self._lock:
            self._check_queue(total, source)
            batch = plan_batch(
                self._options,
                batch_id=batch_id,
                number=len(self._batches),
                ledger_number=self._ledger.open_batch(batch_id, ""),
                now=self._clock.now(),
                api_version=api_version,
                source=source,
                total=total,
            )
            self._open(batch)
            self._apply_faults(batch, "validate")
            return self._render(batch, "batches.create")

    def get_batch(self, batch_id: str) -> dict[str, Any]:
        """Return one batch as it is now."""
        with self._lock:
            return self._render(self._seen(batch_id), "batches.get")

    def list_batches(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a page of batches, newest first."""
        with self._lock:
            batches, struck = self._listed()
            kept = [batch for batch in batches if not batch.deleted]
            data, has_more = page_of(kept, query)
            rendered = [self._render(batch, "batches.list") for batch in data]
            page = list_body(rendered, has_more=has_more)
            for kind in struck:
                kind.finish(page, query.get("after_id"))
            return page

    def cancel_batch(self, batch_id: str) -> dict[str, Any]:
        """Stop a batch; what it has executed by now is kept."""
        with self._lock:
            batch = self._seen(batch_id)
            now = self._clock.now()
            if batch.has_ended(now):
                raise WireError(400, f"Batch {batch_id} cannot be canceled: it has ended.")
            if batch.cancelling_at is None:
                batch.cancel(now, self._options.finalizing_s)
            return self._render(batch, "batches.cancel")

    def delete_batch(self, batch_id: str) -> dict[str, Any]:
        """Forget an ended batch and its results."""
        with self._lock:
            batch = self._seen(batch_id)
            if not batch.has_ended(self._clock.now()):
                raise WireError(400, f"Batch {batch_id} cannot be deleted: it is in progress.")
            batch.deleted = True
            batch.results.unlink(missing_ok=True)
            return {"id": batch_id, "type": "message_batch_deleted"}

    def results(self, batch_id: str) -> Path:
        """Return the file of an ended batch's results."""
        with self._lock:
            batch = self._seen(batch_id)
            now = self._clock.now()
            if batch.unready_gets > 0 and batch.has_ended(now):
                batch.unready_gets -= 1
                raise WireError(404, f"Batch {batch_id} has no results.")
            is_missing = batch.spoilt == RESULTS_MISSING or batch.archived_at(now) is not None
            if is_missing or not batch.has_ended(now):
                raise WireError(404, f"Batch {batch_id} has no results.")
            return batch.results

    def creation_target(self) -> Target:
        """Return what fault rules may match of a batch that is about to be created."""
        return Target(run="", batch=len(self._batches), endpoint=ENDPOINT)

    def reset(self) -> None:
        """Forget every batch, and its files."""
        with self._lock:
            for batch in self._batches.values():
                batch.source.unlink(missing_ok=True)
                batch.results.unlink(missing_ok=True)
            super().reset()

    def _seen(self, batch_id: str) -> Batch:
        """Return a batch that exists and may be seen, with all that is due by now."""
        batch = self._batches.get(batch_id)
        if batch is None or batch.deleted:
            raise WireError(404, f"No batch found with ID {batch_id}.")
        if batch.unseen_gets > 0:
            batch.unseen_gets -= 1
            raise WireError(404, f"No batch found with ID {batch_id}.")
        self._settle(only=batch_id)
        return batch

    def _check_queue(self, total: int, source: Path) -> None:
        limit = self._options.enqueued_request_limit
        if limit is None:
            return
        self._settle()
        now = self._clock.now()
        queued = sum(b.total for b in self._batches.values() if b.holds_requests(now))
        if queued + total > limit:
            source.unlink()
            raise WireError(
                429,
                f"This would exceed your organization's limit of {limit:,} batch requests in the"
                " processing queue. Please try again once batches have ended.",
            )

    def _execute(self, batch: Batch) -> None:
        log = ExecutionLog(batch, faults=self._faults, ledger=self._ledger)
        execution = BatchExecution(batch, answerer=self._answerer, log=log)
        with LineFile(batch.results, self._shuffler(batch)) as results:
            execution.write(results)
        batch.executed = True
        batch.source.unlink()

    def _record(self, batch: Batch) -> dict[str, Any]:
        return batch.render(self._clock.now(), self._clock)
