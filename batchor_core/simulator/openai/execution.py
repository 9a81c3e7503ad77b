"""Executing a batch: answers and ledger entries for every line, once."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.faults import FaultBook, FaultRule, Target
from batchor_core.simulator.ledger import Execution, Ledger
from batchor_core.simulator.line_faults import LineKind
from batchor_core.simulator.openai.answering import OpenAIAnswerer
from batchor_core.simulator.openai.batches import Batch
from batchor_core.simulator.openai.bodies import left_over_line, result_line
from batchor_core.simulator.openai.requests import RequestLine, decode_line, raw_lines

_LEDGER_ROWS = 5_000
_SHUFFLED_LINES = 1_000


class LineFile:
    """A result file being written; `shuffler` reorders its lines within a window."""

    def __init__(self, path: Path, shuffler: random.Random | None) -> None:
        self.path = path
        self.lines = 0
        self._shuffler = shuffler
        self._window: list[bytes] = []
        self._handle: BinaryIO = path.open("wb", buffering=1024 * 1024)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._flush()
        self._handle.close()

    def write(self, line: bytes) -> None:
        """Append a line, given without its end."""
        self.lines += 1
        if self._shuffler is None:
            self._handle.write(line + b"\n")
            return
        self._window.append(line)
        if len(self._window) >= _SHUFFLED_LINES:
            self._flush()

    def _flush(self) -> None:
        if self._shuffler is not None:
            self._shuffler.shuffle(self._window)
        for line in self._window:
            self._handle.write(line + b"\n")
        self._window = []


class BatchExecution:
    """One execution of one batch.

    Args:
        batch: The batch, validated; its counts and usage are filled in.
        answerer: Who answers.
        faults: Rules that spoil answers.
        ledger: Where each execution is noted.
        created_unix: Creation time written into the answers.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        answerer: OpenAIAnswerer,
        faults: FaultBook,
        ledger: Ledger,
        created_unix: int,
    ) -> None:
        self._batch = batch
        self._answerer = answerer
        self._ledger = ledger
        self._created_unix = created_unix
        target = Target(run=batch.run, batch=batch.number, endpoint=batch.endpoint)
        self._rules: list[tuple[FaultRule, LineKind]] = faults.rules(LineKind, target)
        self._pending: list[Execution] = []

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
                self._note(Execution(line.custom_id, b"", 0, code, 0, 0))
        self._flush_ledger()

    def _execute(self, line: RequestLine, number: int, output: LineFile, errors: LineFile) -> None:
        answer = self._answerer.answer(line, self._created_unix)
        if self._rules or self._batch.spoilt:
            self._spoil(answer)
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

    def _spoil(self, answer: Answer) -> None:
        batch = self._batch
        target = Target(
            run=batch.run,
            batch=batch.number,
            endpoint=batch.endpoint,
            custom_id=answer.custom_id,
            prompt=answer.prompt,
        )
        item = (batch.run, answer.custom_id.rpartition("-")[2], answer.digest)
        for rule, kind in self._rules:
            if rule.match.hits(target) and rule.strike(item):
                kind.apply(rule, answer)
        answer.fault = answer.fault or batch.spoilt

    def _count(self, answer: Answer) -> None:
        batch = self._batch
        if answer.status == 200:
            batch.completed += 1
        else:
            batch.failed += 1
        if answer.billed:
            batch.input_tokens += answer.input_tokens
            batch.output_tokens += answer.output_tokens
        self._note(
            Execution(
                answer.custom_id,
                answer.digest,
                int(answer.billed),
                answer.fault,
                answer.input_tokens,
                answer.output_tokens,
            )
        )

    def _note(self, execution: Execution) -> None:
        self._pending.append(execution)
        if len(self._pending) >= _LEDGER_ROWS:
            self._flush_ledger()

    def _flush_ledger(self) -> None:
        self._ledger.record(self._batch.ledger_number, self._pending)
        self._pending = []


def _requests(source: Path) -> Iterator[RequestLine]:
    for raw in raw_lines(source):
        yield decode_line(raw)
