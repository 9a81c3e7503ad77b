"""The answer sheet of one chunk: one outcome an item, whatever the provider sends.

Lines are read in the order they come and in bounded memory. A valid answer is written at once;
a faulty one is remembered by its place in the file only, since a valid one may still follow, and
is written when the files are read to their end. The first valid answer of an item wins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import OUTCOME_FIELDS, OUTPUT, outcome_schema
from batchor_core.executor.cycle import Cycle
from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.model.records import ArtifactRef, ChunkRecord, Usage
from batchor_core.model.states import Verdict
from batchor_core.planning.retries import judge
from batchor_core.planning.schema_compiler import InvalidAnswer
from batchor_core.providers.protocol import Answer, RawPart

_ROWS_AT_ONCE = 4096
_OPEN, _FAULTED, _WRITTEN = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class SheetTotals:
    """What a finished sheet amounts to."""

    outcomes: ArtifactRef
    ok_count: int
    failed_count: int
    retry_count: int
    usage: Usage
    quarantined: int


@dataclass(frozen=True, slots=True)
class _Row:
    """One judged item on its way to the file."""

    index: int
    answer: Answer | None
    fault: ItemFault | None


class AnswerSheet:
    """Takes a chunk's answers and writes its outcome file.

    Args:
        cycle: The run's plan, retry policy and artifacts.
        chunk: The chunk.
        items_path: Its checked items file.
        path: Where the outcome file shall lie.
    """

    def __init__(self, cycle: Cycle, chunk: ChunkRecord, items_path: Path, path: str) -> None:
        self._plan = cycle.plan
        self._keep = cycle.keeper.keep
        self._policy = cycle.plan.job.retry_policy
        self._round = chunk.round
        self._prefix = f"{chunk.token}-"
        table = pq.read_table(items_path, columns=["row", "attempts"])
        self._rows: list[int] = table["row"].to_pylist()
        self._attempts: list[int] = table["attempts"].to_pylist()
        self._index = {row: index for index, row in enumerate(self._rows)}
        self._states = bytearray(len(self._rows))
        self._places: dict[int, tuple[RawPart, int, int]] = {}
        columns = cycle.plan.columns
        self._schema = outcome_schema(columns.schema if columns else None)
        self._file = cycle.artifacts.writer(path)
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._faulty: list[_Row] = []
        self._verdicts = dict.fromkeys(Verdict, 0)
        self._tokens = [0, 0, 0, 0]
        self._quarantined = 0

    @property
    def open_count(self) -> int:
        """Items that no line was seen for."""
        return self._states.count(_OPEN)

    def read(self, parts: Sequence[RawPart]) -> None:
        """Read the result files; reading the same again changes nothing."""
        self._quarantined = 0
        for part in parts:
            self._read_part(part)

    def close_faulted(self) -> None:
        """Write the outcomes of items whose only answers are faulty."""
        for index, (part, offset, length) in sorted(self._places.items()):
            if self._states[index] != _FAULTED:
                continue
            with part.path.open("rb") as file:
                file.seek(offset)
                answer = self._plan.provider.decode(part, file.read(length))
            if answer is not None:
                self._close(index, answer, answer.fault or _UNREADABLE)
        self._places.clear()

    def close_line(self, line: int, fault: ItemFault) -> None:
        """Write the outcome of the item in a line (from 1) of the request file."""
        if 1 <= line <= len(self._rows) and self._states[line - 1] != _WRITTEN:
            self._close(line - 1, None, fault)

    def close_rest(self, fault: ItemFault) -> None:
        """Write the same outcome for every item that has none."""
        for index, state in enumerate(self._states):
            if state != _WRITTEN:
                self._close(index, None, fault)

    def commit(self) -> SheetTotals:
        """Finish the outcome file and return its totals.

        Raises:
            AssertionError: An item has no outcome: a bug in the caller.
        """
        assert self._states.count(_WRITTEN) == len(self._rows)
        self._flush_faulty()
        self._writer.close()
        inputs, cached, outputs, reasoning = self._tokens
        return SheetTotals(
            outcomes=self._file.commit(),
            ok_count=self._verdicts[Verdict.OK],
            failed_count=self._verdicts[Verdict.FAILED],
            retry_count=self._verdicts[Verdict.RETRY],
            usage=Usage(
                input_tokens=inputs,
                cached_input_tokens=cached,
                output_tokens=outputs,
                reasoning_tokens=reasoning,
                cost_usd=self._plan.cost(inputs, cached, outputs),
            ),
            quarantined=self._quarantined,
        )

    def __enter__(self) -> "AnswerSheet":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer.is_open:
            self._writer.close()
        self._file.close()

    def _read_part(self, part: RawPart) -> None:
        decode = self._plan.provider.decode
        complete: list[_Row] = []
        for offset, line in _lines(part.path):
            answer = decode(part, line)
            index = self._find(answer)
            if answer is None or index is None:
                self._quarantined += 1
            elif self._states[index] == _WRITTEN:
                continue
            elif answer.fault is not None:
                self._remember(index, part, offset, line)
            else:
                self._states[index] = _WRITTEN
                complete.append(_Row(index, answer, None))
                if len(complete) >= _ROWS_AT_ONCE:
                    self._take(complete)
                    complete = []
        self._take(complete)

    def _find(self, answer: Answer | None) -> int | None:
        """Return the item's index, or None for an id that is not of this chunk."""
        if answer is None or not answer.custom_id.startswith(self._prefix):
            return None
        try:
            return self._index.get(int(answer.custom_id[len(self._prefix) :]))
        except ValueError:
            return None

    def _remember(self, index: int, part: RawPart, offset: int, line: bytes) -> None:
        if self._states[index] == _OPEN:
            self._states[index] = _FAULTED
            self._places[index] = (part, offset, len(line))

    def _take(self, rows: list[_Row]) -> None:
        """Validate complete answers and write them all; those that are not valid as faulty."""
        if not rows:
            return
        validator, columns = self._plan.validator, self._plan.columns
        if validator is None or columns is None:
            self._emit(rows, None)
            return
        checked = [validator.check((row.answer.text if row.answer else "") or "") for row in rows]
        invalid = {
            n: each.message for n, each in enumerate(checked) if isinstance(each, InvalidAnswer)
        }
        outputs = [None if isinstance(each, InvalidAnswer) else each for each in checked]
        converted = columns.convert(outputs)
        invalid.update(converted.invalid)
        for n, message in invalid.items():
            rows[n] = _Row(rows[n].index, rows[n].answer, _invalid_fault(message))
        valid = pa.array([n in invalid for n in range(len(rows))])
        output = pa.StructArray.from_arrays(
            converted.columns, fields=list(columns.schema), mask=valid
        )
        self._emit(rows, output)
        self._keep()

    def _close(self, index: int, answer: Answer | None, fault: ItemFault) -> None:
        self._states[index] = _WRITTEN
        self._faulty.append(_Row(index, answer, fault))
        if len(self._faulty) >= _ROWS_AT_ONCE:
            self._flush_faulty()

    def _flush_faulty(self) -> None:
        rows, self._faulty = self._faulty, []
        if not rows:
            return
        output = None
        if OUTPUT in self._schema.names:
            output = pa.nulls(len(rows), self._schema.field(OUTPUT).type)
        self._emit(rows, output)
        self._keep()

    def _emit(self, rows: list[_Row], output: pa.Array | None) -> None:
        """Judge rows, count them, and append them to the file."""
        with_text = output is None  # the text of a valid structured answer is its parsed output
        values = [self._values(row, keep_text=with_text or row.fault is not None) for row in rows]
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*values, strict=True), OUTCOME_FIELDS, strict=True)
        ]
        if output is not None:
            arrays.append(output)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _values(self, row: _Row, *, keep_text: bool) -> tuple[Any, ...]:
        """Return a row of the outcome file, in the order of its columns."""
        index, answer, fault = row.index, row.answer, row.fault
        judgement = judge(
            fault, attempts=self._attempts[index], round_=self._round, policy=self._policy
        )
        self._verdicts[judgement.verdict] += 1
        head = (self._rows[index], judgement.verdict.value, judgement.attempts)
        why = (fault.code, fault.message) if fault else (None, None)
        if answer is None:
            return (*head, *why, *_NO_ANSWER)
        inputs, cached = answer.input_tokens, answer.cached_input_tokens
        outputs, reasoning = answer.output_tokens, answer.reasoning_tokens
        tokens = self._tokens
        tokens[0] += inputs
        tokens[1] += cached
        tokens[2] += outputs
        tokens[3] += reasoning
        return (
            *head,
            *why,
            answer.text if keep_text else None,
            answer.finish_reason,
            answer.model,
            inputs,
            cached,
            outputs,
            reasoning,
            self._plan.cost(inputs, cached, outputs),
            answer.request_id,
        )


_NO_ANSWER = (None,) * 9

_UNREADABLE = ItemFault(
    code=ItemErrorCode.UNREADABLE_RESULT,
    message="the line changed while it was read",
    retryable=True,
    consumes_attempt=True,
)


def _invalid_fault(message: str) -> ItemFault:
    return ItemFault(
        code=ItemErrorCode.INVALID_OUTPUT,
        message=message,
        retryable=True,
        consumes_attempt=True,
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield (offset, line without its end) of a file, split on ``\n`` only, blank ones left out.

    Other line separators (U+2028, NEL) may stand inside JSON strings.
    """
    offset = 0
    with path.open("rb") as file:
        for line in file:  # a binary file is split on b"\n" alone
            stripped = line.rstrip(b"\r\n")
            if stripped.strip():
                yield offset, stripped
            offset += len(line)
