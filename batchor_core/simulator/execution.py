"""Executing a batch of any protocol: spoiling answers, writing lines, noting each execution."""

import random
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from batchor_core.simulator.answers import Answer
from batchor_core.simulator.batch_plan import BatchPlan
from batchor_core.simulator.faults import FaultRule, ProtocolFaults, Target
from batchor_core.simulator.ledger import Execution, Ledger
from batchor_core.simulator.line_faults import LineKind

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


class ExecutionLog:
    """Spoils the answers of one batch as rules say, and notes every execution in the ledger.

    Args:
        batch: The batch that is executed.
        faults: Rules that spoil answers.
        ledger: Where each execution is noted.
    """

    def __init__(self, batch: BatchPlan, *, faults: ProtocolFaults, ledger: Ledger) -> None:
        self._batch = batch
        self._ledger = ledger
        target = Target(run=batch.run, batch=batch.number, endpoint=batch.endpoint)
        self._rules: list[tuple[FaultRule, LineKind]] = faults.rules(LineKind, target)
        self._pending: list[Execution] = []
        self._inputs: Counter[bytes] = Counter()

    def spoil(self, answer: Answer) -> None:
        """Do to an answer what the rules say."""
        batch = self._batch
        if not self._rules and not batch.spoilt:
            return
        target = Target(
            run=batch.run,
            batch=batch.number,
            endpoint=batch.endpoint,
            custom_id=answer.custom_id,
            prompt=answer.prompt,
        )
        row = answer.custom_id.rpartition("-")[2]
        items = [(batch.run, "", each.digest) for each in answer.inputs]
        items = items or [(batch.run, row, answer.digest)]
        for rule, kind in self._rules:
            if rule.match.hits(target) and rule.strike(*items):
                kind.apply(rule, answer)
        answer.fault = answer.fault or batch.spoilt

    def note(self, answer: Answer) -> None:
        """Note an executed request, or each of the inputs that share it."""
        if answer.inputs:
            self._note_inputs(answer)
            return
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

    def note_left_over(self, custom_id: str, code: str, inputs: int = 1) -> None:
        """Note a request that an expired or cancelled batch did not come to."""
        for _ in range(inputs):
            self._note(Execution(custom_id, b"", 0, code, 0, 0))

    def close(self) -> None:
        """Write what is pending; nothing is in the ledger for sure before."""
        self._ledger.record(self._batch.ledger_number, self._pending)
        self._pending = []

    def _note_inputs(self, answer: Answer) -> None:
        for digest, tokens in answer.inputs:
            self._inputs[digest] += 1
            self._note(
                Execution(
                    answer.custom_id,
                    digest,
                    int(answer.billed),
                    answer.fault,
                    tokens if answer.billed else 0,
                    0,
                    part=f"{digest.hex()}.{self._inputs[digest]}",
                )
            )

    def _note(self, execution: Execution) -> None:
        self._pending.append(execution)
        if len(self._pending) >= _LEDGER_ROWS:
            self.close()
