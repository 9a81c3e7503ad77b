"""The answer sheet of a chunk of embeddings: a line answers all items that share its request."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from batchor_core.executor.answers import (
    FAULTED,
    NOT_EXECUTED,
    WRITTEN,
    AnswerSheet,
    Place,
    lines_of,
)
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.outcomes import OkRow
from batchor_core.ids import custom_id
from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.model.records import ChunkRecord
from batchor_core.planning.result_schema import embedding_field
from batchor_core.providers.protocol import Answer, RawPart

_FLOAT_BYTES = 4


class VectorSheet(AnswerSheet):
    """Takes the vectors of a chunk's items.

    What is wrong with a request that several items share may be the fault of one of them: all are
    sent again, each in a request of its own.

    Args:
        cycle: The run's plan, retry policy and artifacts.
        chunk: The chunk.
        items_path: Its checked items file.
        path: Where the outcome file shall lie.
        dimensions: The length that every vector must have.
    """

    def __init__(
        self, cycle: Cycle, chunk: ChunkRecord, items_path: Path, path: str, *, dimensions: int
    ) -> None:
        super().__init__(cycle, chunk, items_path, path)
        self._dimensions = dimensions
        self._field = embedding_field(dimensions)
        table = pq.read_table(items_path, columns=["row", "request"])
        rows: list[int] = table["row"].to_pylist()
        self._requests = _ranges(table["request"].to_pylist())
        self._packs = {custom_id(chunk.token, rows[pack[0]]): pack for pack in self._requests}
        self._last_place: tuple[Place, Answer | None] | None = None

    def close_line(self, line: int, fault: ItemFault) -> None:
        """Write the outcomes of the items in a line (from 1) of the request file."""
        if 1 <= line <= len(self._requests):
            pack = self._requests[line - 1]
            for item in pack:
                if self._states[item] != WRITTEN:
                    self._close(item, None, _of_one_in(pack, fault))

    def _read_part(self, part: RawPart) -> None:
        for offset, line in lines_of(part.path):
            answer = self._plan.provider.decode(part, line)
            pack = None if answer is None else self._packs.get(answer.custom_id)
            if answer is None or pack is None:  # unreadable, or not of this chunk
                self._put_aside(answer)
                continue
            fault = answer.fault
            if fault is None:
                vectors = self._checked(answer.vectors, len(pack))
                if isinstance(vectors, pa.Array):
                    self._write_vectors(pack, answer, vectors)
                    continue
                fault = vectors
            is_executed = fault.code not in NOT_EXECUTED
            place = Place(part, offset, len(line), _of_one_in(pack, fault), is_executed)
            for item in pack:
                if self._states[item] != WRITTEN:
                    self._states[item] = FAULTED
                    self._places.setdefault(item, place)

    def _checked(self, vectors: Sequence[bytes] | None, count: int) -> pa.Array | ItemFault:
        """Return the vectors as one column, or what is wrong with them."""
        if vectors is None or len(vectors) != count:
            return _invalid(f"{len(vectors or ())} vectors for {count} inputs")
        size = self._dimensions * _FLOAT_BYTES
        for vector in vectors:
            if len(vector) != size:
                found = len(vector) // _FLOAT_BYTES
                return _invalid(f"a vector of {found} dimensions, not {self._dimensions}")
        content = pa.py_buffer(b"".join(vectors))
        flat = pa.Array.from_buffers(pa.float32(), count * self._dimensions, [None, content])
        if not pc.all(pc.is_finite(flat)).as_py():
            return _invalid("a vector with values that are no numbers")
        return pa.FixedSizeListArray.from_arrays(flat, type=self._field.type)

    def _write_vectors(self, pack: range, answer: Answer, vectors: pa.Array) -> None:
        output = pa.StructArray.from_arrays([vectors], fields=[self._field])
        rows = [OkRow(item, _share(answer, number, pack)) for number, item in enumerate(pack)]
        is_open = [self._states[item] != WRITTEN for item in pack]
        if not all(is_open):
            output = output.filter(pa.array(is_open))
            rows = [row for row, wanted in zip(rows, is_open, strict=True) if wanted]
        for row in rows:
            self._states[row.item] = WRITTEN
        self._file.write_ok(rows, output)
        self._keep()

    def _heads(self) -> Sequence[int]:
        return [pack.start for pack in self._requests]

    def _answer_at(self, item: int, place: Place, content: bytes) -> Answer | None:
        """Return an item's share of the answer at a place, which its neighbours have as well."""
        if self._last_place is None or self._last_place[0] is not place:
            self._last_place = (place, super()._answer_at(item, place, content))
        answer = self._last_place[1]
        if answer is None:
            return None
        pack = self._packs[answer.custom_id]
        return _share(answer, item - pack.start, pack)


def _ranges(requests: Sequence[int]) -> list[range]:
    """Return the items of each request: neighbours that have the same number."""
    begins = [i for i, number in enumerate(requests) if i == 0 or number != requests[i - 1]]
    ends = [*begins[1:], len(requests)]
    return [range(begin, end) for begin, end in zip(begins, ends, strict=True)]


def _share(answer: Answer, number: int, pack: range) -> Answer:
    """Return what one of the inputs of a request has cost: the shares add up to the whole."""
    count = len(pack)

    def part(total: int) -> int:
        return total * (number + 1) // count - total * number // count

    return msgspec.structs.replace(
        answer,
        vectors=None,
        input_tokens=part(answer.input_tokens),
        cached_input_tokens=part(answer.cached_input_tokens),
        output_tokens=part(answer.output_tokens),
    )


def _of_one_in(pack: range, fault: ItemFault) -> ItemFault:
    """Return the fault of one item; where others share its request, it is sent again alone."""
    if len(pack) == 1 or fault.retryable:
        return fault
    return replace(fault, retryable=True, consumes_attempt=False)


def _invalid(message: str) -> ItemFault:
    return ItemFault(
        code=ItemErrorCode.INVALID_OUTPUT, message=message, retryable=True, consumes_attempt=True
    )
