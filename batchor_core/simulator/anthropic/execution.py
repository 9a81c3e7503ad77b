"""Executing a message batch: an answer and a ledger entry for every request, once."""

from batchor_core.simulator.answers import Answer, estimate_tokens
from batchor_core.simulator.anthropic.answering import AnthropicAnswerer
from batchor_core.simulator.anthropic.batches import Batch
from batchor_core.simulator.anthropic.bodies import left_over_line, result_line
from batchor_core.simulator.anthropic.envelope import read_requests
from batchor_core.simulator.execution import ExecutionLog, LineFile

_LEFT_OVER = {
    "expired": ("expired", "batch_expired"),
    "cancelled": ("canceled", "batch_cancelled"),
}


class BatchExecution:
    """One execution of one batch.

    Args:
        batch: The batch; its counts are filled in.
        answerer: Who answers.
        log: Spoils and notes each execution.
    """

    def __init__(self, batch: Batch, *, answerer: AnthropicAnswerer, log: ExecutionLog) -> None:
        self._batch = batch
        self._answerer = answerer
        self._log = log
        self._cached: set[bytes] = set()

    def write(self, results: LineFile) -> None:
        """Answer the due portion of the requests, and say of the rest that it was left over."""
        batch = self._batch
        executed = int(batch.total * batch.portion)
        for number, (custom_id, params) in enumerate(read_requests(batch.source)):
            if number < executed:
                answer = self._answerer.answer(custom_id, params, batch.api_version)
                self._finish(answer, number, results)
                continue
            kind, code = _LEFT_OVER[batch.ending]
            batch.counts[kind] += 1
            results.write(left_over_line(custom_id, kind))
            self._log.note_left_over(custom_id, code)
        self._log.close()

    def _finish(self, answer: Answer, number: int, results: LineFile) -> None:
        self._use_cache(answer)
        self._log.spoil(answer)
        self._batch.counts["succeeded" if answer.status == 200 else "errored"] += 1
        self._log.note(answer)
        for raw in answer.raw_before:
            results.write(raw)
        if answer.raw_instead is not None:
            results.write(answer.raw_instead)
            return
        line = result_line(answer, number)
        for _ in range(answer.copies):
            results.write(line)
        for custom_id in answer.also_as:
            results.write(result_line(answer, number, custom_id))

    def _use_cache(self, answer: Answer) -> None:
        """Write what is to be cached the first time, and read it afterwards."""
        prefix = answer.cache_prefix
        if not prefix or answer.status != 200:
            return
        tokens = min(answer.input_tokens - 1, estimate_tokens(len(prefix)))
        if prefix in self._cached:
            answer.cached_tokens = tokens
        else:
            answer.cache_write_tokens = tokens
        self._cached.add(prefix)
