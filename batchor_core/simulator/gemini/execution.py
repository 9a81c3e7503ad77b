"""Executing a batch of either backend: answers and ledger entries for every request, once."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.execution import ExecutionLog
from batchor_core.simulator.gemini.answering import GeminiAnswerer
from batchor_core.simulator.gemini.batches import GeminiBatch
from batchor_core.simulator.gemini.requests import Line

Put = Callable[[Answer, Mapping[str, Any], str | None], None]
"""Writes an answer to a request, perhaps under another key."""


class BatchExecution:
    """One execution of one batch.

    Args:
        batch: The batch, validated; its counts are filled in.
        answerer: Who answers.
        log: Spoils and notes each execution.
        put: Writes an answer.
        put_raw: Writes a line as it is, where the results are lines.
    """

    def __init__(
        self,
        batch: GeminiBatch,
        *,
        answerer: GeminiAnswerer,
        log: ExecutionLog,
        put: Put,
        put_raw: Callable[[bytes], None],
    ) -> None:
        self._batch = batch
        self._answerer = answerer
        self._log = log
        self._put = put
        self._put_raw = put_raw

    def run(self, lines: Iterable[Line | None], executed: int) -> None:
        """Answer the first ``executed`` requests, and note the rest as left over."""
        for number, line in enumerate(lines):
            assert line is not None  # validation refuses a batch with such a line
            if number < executed:
                self._execute(line)
            else:
                ending = self._batch.ending
                self._log.note_left_over(line.key, f"batch_{ending}")
        self._log.close()

    def _execute(self, line: Line) -> None:
        batch = self._batch
        answer = self._answerer.answer(line, model=batch.model, endpoint=batch.endpoint)
        self._log.spoil(answer)
        if answer.status == 200:
            batch.completed += 1
        else:
            batch.failed += 1
        self._log.note(answer)
        for raw in answer.raw_before:
            self._put_raw(raw)
        if answer.raw_instead is not None:
            self._put_raw(answer.raw_instead)
            return
        for _ in range(answer.copies):
            self._put(answer, line.request, None)
        for key in answer.also_as:
            self._put(answer, line.request, key)
