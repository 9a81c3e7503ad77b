"""What Vertex AI does: batch prediction jobs over files in Google Cloud Storage."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from batchor_core.simulator.answers import Answer, estimate_tokens
from batchor_core.simulator.batch_plan import RESULTS_GONE, RESULTS_MISSING
from batchor_core.simulator.batch_service import BatchService
from batchor_core.simulator.execution import ExecutionLog, LineFile
from batchor_core.simulator.faults import Target
from batchor_core.simulator.gemini.answering import GeminiAnswerer
from batchor_core.simulator.gemini.batches import GeminiBatch, plan_batch, run_of, shown_page
from batchor_core.simulator.gemini.bodies import vertex_line
from batchor_core.simulator.gemini.execution import BatchExecution
from batchor_core.simulator.gemini.requests import vertex_lines
from batchor_core.simulator.gemini.wire import GeminiError, field, rfc3339, rpc_status
from batchor_core.simulator.world import World

_MAX_PAGE = 100
_FILTER = re.compile(r'(?:displayName|display_name)="((?:[^"\\]|\\.)*)"')


class VertexService(BatchService[GeminiBatch]):
    """The batch prediction jobs of one simulated project.

    Its files lie in a stand-in for Google Cloud Storage, at the address that
    ``SimulatorOptions.gcs_endpoint`` names; the real one is never asked.
    """

    protocol = "gemini"
    prefix = "vertex."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._answerer = GeminiAnswerer(world.writer)

    def create_job(self, place: str, request: Any) -> dict[str, Any]:
        """Create a job; whether its file is any good shows later.

        Args:
            place: ``projects/<project>/locations/<location>``.
            request: The body of the call.
        """
        uris = field(request, "inputConfig", "gcsSource", "uris")
        prefix = field(request, "outputConfig", "gcsDestination", "outputUriPrefix")
        display_name, model = field(request, "displayName"), field(request, "model")
        if not isinstance(display_name, str) or not 1 <= len(display_name) <= 128:
            raise GeminiError(400, "display_name: 1 to 128 characters")
        if not (isinstance(uris, list) and uris and isinstance(prefix, str)):
            raise GeminiError(400, "input_config and output_config must be set")
        if not isinstance(model, str) or not model.startswith("publishers/google/models/"):
            raise GeminiError(400, f"Invalid model {model!r}")
        with self._lock:
            number = len(self._batches)
            job_id = f"{place}/batchPredictionJobs/{self._spool.new_id('')}"
            run = run_of(display_name)
            batch = plan_batch(
                self._options,
                self._clock.now(),
                id=job_id,
                number=number,
                ledger_number=self._ledger.open_batch(job_id, run),
                endpoint="generateContent",
                run=run,
                display_name=display_name,
                model=model,
                input_name=str(uris[0]),
                labels=field(request, "labels") or {},
                output_prefix=prefix.rstrip("/"),
            )
            self._open(batch)
            return self._render(batch, "batches.create")

    def get_job(self, name: str) -> dict[str, Any]:
        """One job as it is now."""
        with self._lock:
            batch = self._batch(name)
            if batch.unseen_gets > 0:
                batch.unseen_gets -= 1
                raise _no_job(name)
            self._settle(only=name)
            return self._render(batch, "batches.get")

    def list_jobs(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of jobs, newest first, perhaps those of one name alone."""
        with self._lock:
            batches, struck = self._listed()
            wanted = _name_in(query.get("filter", ""))
            if wanted is not None:
                batches = [batch for batch in batches if batch.display_name == wanted]
            shown, more = shown_page(query, batches, struck, _MAX_PAGE)
            jobs = [self._render(batch, "batches.list") for batch in shown]
            return {**({"batchPredictionJobs": jobs} if jobs else {}), **more}

    def cancel_job(self, name: str) -> dict[str, Any]:
        """Stop a job; what it has executed by now is kept."""
        with self._lock:
            batch = self._batch(name)
            self._settle(only=name)
            now = self._clock.now()
            if batch.is_terminal(now):
                raise GeminiError(
                    400, f"The job is {batch.status(now)} already.", name="FAILED_PRECONDITION"
                )
            if batch.cancelling_at is None:
                if not batch.validated:
                    self._validate(batch)
                batch.stop(now, batch.in_progress_at, self._options.finalizing_s)
            return {}

    def delete_job(self, name: str) -> dict[str, Any]:
        """Forget a job that has ended."""
        with self._lock:
            batch = self._batch(name)
            self._settle(only=name)
            if not batch.is_terminal(self._clock.now()):
                raise GeminiError(400, "The job is at work.", name="FAILED_PRECONDITION")
            del self._batches[name]
            return {"done": True}

    def creation_target(self, request: Any) -> Target:
        """What fault rules may match of a job that is about to be created."""
        run = run_of(str(field(request, "displayName") or ""))
        return Target(run=run, batch=len(self._batches), endpoint="generateContent")

    @cached_property
    def _bucket(self) -> Any:
        import fsspec  # noqa: PLC0415 - gcsfs is an extra

        endpoint = self._options.gcs_endpoint
        if endpoint is None:
            raise OSError("the simulator was given no stand-in for Google Cloud Storage")
        options = {"endpoint_url": endpoint, "token": "anon", "project": "p"}
        bucket = fsspec.filesystem("gs", skip_instance_cache=True, **options)
        bucket.dircache.use_listings_cache = False
        return bucket

    def _batch(self, name: str) -> GeminiBatch:
        batch = self._batches.get(name)
        if batch is None:
            raise _no_job(name)
        return batch

    def _prepare(self, now: float) -> None:
        for batch in self._live.values():
            if not batch.validated and batch.in_progress_at <= now:
                self._validate(batch)

    def _validate(self, batch: GeminiBatch) -> None:
        batch.validated = True
        path = self._spool.path(self._spool.new_id("job-"))
        try:
            self._bucket.get_file(batch.input_name, str(path))
        except (OSError, ImportError, ValueError) as error:
            batch.error = rpc_status("INVALID_ARGUMENT", f"Cannot read {batch.input_name}: {error}")
            return
        batch.source = path
        batch.tokens = estimate_tokens(path.stat().st_size)
        for number, line in enumerate(vertex_lines(path), start=1):
            batch.total += 1
            if line is None:
                batch.error = rpc_status("INVALID_ARGUMENT", f"Line {number} is no request.")
                return
        if not batch.total:
            batch.error = rpc_status("INVALID_ARGUMENT", "The file is empty.")
        elif self._is_over_limit(batch):
            batch.error = rpc_status("RESOURCE_EXHAUSTED", "Too many tokens are enqueued.")
        else:
            self._apply_faults(batch, "validate")

    def _is_over_limit(self, batch: GeminiBatch) -> bool:
        limit, now = self._options.enqueued_token_limit, self._clock.now()
        held = sum(
            other.tokens
            for other in self._batches.values()
            if other.model == batch.model and other is not batch and other.holds_tokens(now)
        )
        return limit is not None and held + batch.tokens > limit

    def _record(self, batch: GeminiBatch) -> dict[str, Any]:
        return batch.job(self._clock.now(), self._clock)

    def _execute(self, batch: GeminiBatch) -> None:
        batch.executed = True
        if batch.source is None:
            return
        at = rfc3339(batch.execute_at, self._clock)
        target = f"{batch.output_prefix}/prediction-model-{at}"
        path = self._spool.path(self._spool.new_id("results-"))
        with LineFile(path, self._shuffler(batch)) as output:  # it never keeps the order

            def put(answer: Answer, request: Mapping[str, Any], key: str | None) -> None:
                output.write(vertex_line(answer, request, at, key))

            log = ExecutionLog(batch, faults=self._faults, ledger=self._ledger)
            execution = BatchExecution(
                batch, answerer=self._answerer, log=log, put=put, put_raw=output.write
            )
            execution.run(vertex_lines(batch.source), int(batch.total * batch.portion))
        if batch.spoilt != RESULTS_MISSING:
            batch.output = {"gcsOutputDirectory": target}
            if batch.spoilt != RESULTS_GONE and output.lines:
                self._bucket.put_file(str(path), f"{target}/predictions.jsonl")
        _remove(path, batch.source)


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _name_in(text: str) -> str | None:
    if not text:
        return None
    found = _FILTER.fullmatch(text)
    if found is None:
        raise GeminiError(400, f"Invalid filter {text!r}")
    return re.sub(r"\\(.)", r"\1", found.group(1))


def _no_job(name: str) -> GeminiError:
    return GeminiError(404, f"The BatchPredictionJob {name!r} does not exist.")
