"""Executing a batch: answers and ledger entries for every line, once."""

from collections.abc import Iterator
from pathlib import Path

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.execution import ExecutionLog, LineFile
from batchor_core.simulator.openai.answering import OpenAIAnswerer
from batchor_core.simulator.openai.batches import Batch
from batchor_core.simulator.openai.bodies import left_over_line, result_line
from batchor_core.simulator.openai.requests import (
    RequestLine,
    decode_line,
    input_count,
    raw_lines,
)


class BatchExecution:
    """One execution of one batch.

    Args:
        batch: The batch, validated; its counts and usage are filled in.
        answerer: Who answers.
        log: Spoils and notes each execution.
        created_unix: Creation time written into the answers.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        answerer: OpenAIAnswerer,
        log: ExecutionLog,
        created_unix: int,
    ) -> None:
        self._batch = batch
        self._answerer = answerer
        self._log = log
        self._created_unix = created_unix

    def write(self, source: Path, output: LineFile, errors: LineFile) -> None:
        """Answer the due portion of `source`, and say of the rest that it was left over."""
        batch = self._batch
        executed = int(batch.total * batch.portion)
        code = "batch_expired" if batch.ending == "expired" else "batch_cancelled"
        for number, line in enumerate(_requests(source)):
            if number < executed:
                self._execute(line, number, output, errors)
            else:
                errors.write(left_over_line(line.custom_id, code, number))
                self._log.note_left_over(line.custom_id, code, input_count(line))
        self._log.close()

    def _execute(self, line: RequestLine, number: int, output: LineFile, errors: LineFile) -> None:
        answer = self._answerer.answer(line, self._created_unix)
        self._log.spoil(answer)
        self._count(answer)
        target = output if (answer.status == 200) is not answer.misfiled else errors
        for raw in answer.raw_before:
            target.write(raw)
        if answer.raw_instead is not None:
            target.write(answer.raw_instead)
            return
        encoded = result_line(answer, number)
        for _ in range(answer.copies):
            target.write(encoded)
        for custom_id in answer.also_as:
            target.write(result_line(answer, number, custom_id))

    def _count(self, answer: Answer) -> None:
        batch = self._batch
        if answer.status == 200:
            batch.completed += 1
        else:
            batch.failed += 1
        if answer.billed:
            batch.input_tokens += answer.input_tokens
            batch.output_tokens += answer.output_tokens
        self._log.note(answer)


def _requests(source: Path) -> Iterator[RequestLine]:
    for raw in raw_lines(source):
        yield decode_line(raw)
