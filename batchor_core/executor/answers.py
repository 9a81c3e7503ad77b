"""The answer sheet of one chunk: one outcome an item, whatever the provider sends.

Lines are read in the order they come and in bounded memory. A valid answer is written at once;
of a faulty one only the place in the file is remembered, since a valid one may still follow, and
it is written when the files are read to their end. The first valid answer of an item wins.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from batchor_core.executor.cycle import Cycle
from batchor_core.executor.outcomes import FaultyRow, OkRow, OutcomeFile, OutcomeTotals
from batchor_core.ids import custom_id
from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.model.records import ChunkRecord
from batchor_core.planning.arrow_mapper import ModelColumns
from batchor_core.planning.schema_compiler import AnswerValidator, InvalidAnswer
from batchor_core.providers.protocol import Answer, RawPart

ROWS_AT_ONCE = 4096
OPEN, FAULTED, WRITTEN = 0, 1, 2
NOT_EXECUTED = (ItemErrorCode.BATCH_EXPIRED, ItemErrorCode.BATCH_CANCELLED)


@dataclass(frozen=True, kw_only=True)
class SheetTotals:
    """What a finished sheet amounts to.

    Attributes:
        quarantined: Lines that could not be read, or are not of this chunk.
    """

    file: OutcomeTotals
    quarantined: int


class Place(NamedTuple):
    """Where a line lies that becomes an item's outcome if no better one follows.

    ``fault`` is what was found wrong with a complete answer; None where the line itself says it.
    ``is_executed`` tells whether the provider has executed the request.
    """

    part: RawPart
    offset: int
    length: int
    fault: ItemFault | None = None
    is_executed: bool = True


class _Complete(NamedTuple):
    """A complete answer on its way to validation; ``item`` is its index in the chunk."""

    item: int
    answer: Answer
    offset: int
    length: int


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
        table = pq.read_table(items_path, columns=["row", "attempts"])
        rows: list[int] = table["row"].to_pylist()
        self._items = {custom_id(chunk.token, row): item for item, row in enumerate(rows)}
        self._states = bytearray(len(rows))
        self._places: dict[int, Place] = {}
        self._faulty: list[FaultyRow] = []
        self._quarantined = self._strangers = 0
        self._file = OutcomeFile(cycle, chunk, rows, table["attempts"].to_pylist(), path)

    @property
    def open_count(self) -> int:
        """Items that no line was seen for."""
        return self._states.count(OPEN)

    @property
    def stranger_count(self) -> int:
        """Readable lines that are not of this chunk."""
        return self._strangers

    def missing_of(self, executed: int | None) -> int:
        """Return how many requests have no line though the provider has executed them.

        Lines that cannot be read are the answers to some of them, unless none could be read.

        Args:
            executed: How many it has executed in all; None: all.
        """
        heads = self._heads()
        open_count = sum(self._states[item] == OPEN for item in heads)
        found = len(heads) - open_count
        if not open_count or not found:
            return open_count if executed is None else min(open_count, executed)
        unexecuted = sum(
            self._states[item] == FAULTED and not self._places[item].is_executed for item in heads
        )
        seen = found - unexecuted + self._quarantined - self._strangers
        total = len(heads) - unexecuted if executed is None else executed
        return min(open_count, max(0, total - seen))

    @property
    def is_anothers(self) -> bool:
        """Whether there are readable answers, and none of them is to an item of this chunk."""
        return self._strangers > 0 and self.open_count == len(self._states)

    def read(self, parts: Sequence[RawPart]) -> None:
        """Read the result files."""
        for part in parts:
            self._read_part(part)

    def close_faulted(self) -> None:
        """Write the outcomes of items whose only answers are faulty."""
        with ExitStack() as stack:
            files: dict[Path, IO[bytes]] = {}
            for item, place in sorted(self._places.items()):
                if self._states[item] != FAULTED:
                    continue
                path = place.part.path
                if path not in files:
                    files[path] = stack.enter_context(path.open("rb"))
                files[path].seek(place.offset)
                answer = self._answer_at(item, place, files[path].read(place.length))
                fault = place.fault or (answer.fault if answer else None)
                self._close(item, answer, fault or _UNREADABLE)
        self._places.clear()

    def close_line(self, line: int, fault: ItemFault) -> None:
        """Write the outcome of the item in a line (from 1) of the request file."""
        if 1 <= line <= len(self._states) and self._states[line - 1] != WRITTEN:
            self._close(line - 1, None, fault)

    def close_rest(self, fault: ItemFault) -> None:
        """Write the same outcome for every item that has none."""
        for item, state in enumerate(self._states):
            if state != WRITTEN:
                self._close(item, None, fault)

    def commit(self) -> SheetTotals:
        """Finish the outcome file and return its totals.

        Raises:
            AssertionError: An item has no outcome: a bug in the caller.
        """
        assert self._states.count(WRITTEN) == len(self._states)
        self._flush_faulty()
        return SheetTotals(file=self._file.commit(), quarantined=self._quarantined)

    def __enter__(self) -> "AnswerSheet":
        self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def _answer_at(self, item: int, place: Place, content: bytes) -> Answer | None:  # noqa: ARG002
        """Return the answer on a line that was seen before."""
        return self._plan.provider.decode(place.part, content)

    def _read_part(self, part: RawPart) -> None:
        decode = self._plan.provider.decode
        complete: list[_Complete] = []
        for offset, line in lines_of(part.path):
            answer = decode(part, line)
            item = None if answer is None else self._items.get(answer.custom_id)
            if answer is None or item is None:  # unreadable, or not of this chunk
                self._put_aside(answer)
            elif self._states[item] == WRITTEN:
                continue
            elif answer.fault is not None:
                is_executed = answer.fault.code not in NOT_EXECUTED
                self._remember(item, Place(part, offset, len(line), None, is_executed))
            else:
                complete.append(_Complete(item, answer, offset, len(line)))
                if len(complete) >= ROWS_AT_ONCE:
                    self._take(complete, part)
                    complete = []
        self._take(complete, part)

    def _put_aside(self, answer: Answer | None) -> None:
        """Count a line that is unreadable, or not of this chunk, and what it has cost."""
        self._quarantined += 1
        if answer is not None:
            self._strangers += 1
            self._file.count_stranger(answer)

    def _heads(self) -> Sequence[int]:
        """Return one item of each request."""
        return range(len(self._states))

    def _remember(self, item: int, place: Place) -> None:
        """Keep the place of an item's first faulty line, but rather of one that was paid for."""
        if self._states[item] == OPEN or place.fault is not None:
            self._states[item] = FAULTED
            self._places[item] = place

    def _take(self, answers: list[_Complete], part: RawPart) -> None:
        """Write the valid ones among complete answers; of the others the places are kept."""
        valid: list[_Complete] = []
        outputs: list[BaseModel] = []
        for each in answers:
            if self._states[each.item] == WRITTEN:
                continue  # another line for this item, among these, was valid
            output = self._validated(each.answer)
            if isinstance(output, InvalidAnswer):
                self._reject(each, part, output.message)
                continue
            self._states[each.item] = WRITTEN
            valid.append(each)
            if output is not None:
                outputs.append(output)
        if self._plan.columns is None:
            self._file.write_ok([OkRow(each.item, each.answer) for each in valid], None)
        elif valid:
            self._write_structured(self._plan.columns, valid, outputs, part)
        self._keep()

    def _validated(self, answer: Answer) -> BaseModel | InvalidAnswer | None:
        """Return the answer as the model's instance; None for a text run."""
        if self._plan.validator is None:
            return None
        return validated(self._plan.validator, answer.text)

    def _reject(self, answer: _Complete, part: RawPart, message: str) -> None:
        self._states[answer.item] = FAULTED
        place = Place(part, answer.offset, answer.length, _invalid_fault(message))
        self._remember(answer.item, place)

    def _write_structured(
        self,
        columns: ModelColumns,
        answers: list[_Complete],
        outputs: list[BaseModel],
        part: RawPart,
    ) -> None:
        """Write valid answers, but for those that the columns cannot hold."""
        rows = [OkRow(each.item, each.answer) for each in answers]
        stored = stored_answers(columns, rows, outputs)
        for number, message in stored.invalid.items():
            self._reject(answers[number], part, message)
        self._file.write_ok(stored.rows, stored.output)

    def _close(self, item: int, answer: Answer | None, fault: ItemFault) -> None:
        self._states[item] = WRITTEN
        self._faulty.append(FaultyRow(item, answer, fault))
        if len(self._faulty) >= ROWS_AT_ONCE:
            self._flush_faulty()

    def _flush_faulty(self) -> None:
        self._file.write_faulty(self._faulty)
        self._faulty = []
        self._keep()


class StoredAnswers(NamedTuple):
    """Valid answers as a column of structs, but for those that the columns cannot hold.

    ``invalid`` says why, by the answer's place among those given.
    """

    rows: list[OkRow]
    output: pa.StructArray
    invalid: Mapping[int, str]


def stored_answers(
    columns: ModelColumns, rows: list[OkRow], outputs: Sequence[BaseModel]
) -> StoredAnswers:
    """Turn valid answers, and what they were parsed into, into what an outcome file takes."""
    converted = columns.convert(outputs)
    output = pa.StructArray.from_arrays(converted.columns, fields=list(columns.schema))
    if converted.invalid:
        kept = [number not in converted.invalid for number in range(len(rows))]
        output = output.filter(pa.array(kept))
        rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
    return StoredAnswers(rows, output, converted.invalid)


def validated(validator: AnswerValidator, text: str | None) -> BaseModel | InvalidAnswer:
    """Hold an answer against the output model, whose own validators may raise anything."""
    try:
        return validator.check(text or "")
    except Exception as exc:  # noqa: BLE001
        return InvalidAnswer(message=f"the model's validation raised {type(exc).__name__}")


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


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield (offset, line with its end) of a file, split on ``\n`` only, blank ones left out.

    Other line separators (U+2028, NEL) may stand inside JSON strings.
    """
    offset = 0
    with path.open("rb") as file:
        for line in file:  # a binary file is split on b"\n" alone
            if not line.isspace():
                yield offset, line
            offset += len(line)
