"""Writing the outcome file of one submission: judged rows, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts.tables import OUTCOME_FIELDS, OUTPUT, outcome_schema
from batchor_core.executor.cycle import Cycle
from batchor_core.model.faults import ItemFault
from batchor_core.model.records import ArtifactRef, ChunkRecord, Usage
from batchor_core.model.states import Verdict
from batchor_core.planning.retries import judge
from batchor_core.providers.protocol import Answer

_USAGE_COLUMNS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
_ALL_USAGE = (*_USAGE_COLUMNS, "cache_write_tokens")
_ANSWER_COLUMNS = ("finish_reason", "model", "request_id", *_USAGE_COLUMNS)
_NO_ANSWER = Answer(custom_id="")


class OkRow(NamedTuple):
    """An item's valid answer; ``item`` is its index in the chunk."""

    item: int
    answer: Answer


class FaultyRow(NamedTuple):
    """An item without a usable answer; ``answer`` is None where there is none at all."""

    item: int
    answer: Answer | None
    fault: ItemFault


@dataclass(frozen=True, kw_only=True)
class OutcomeTotals:
    """What a finished outcome file amounts to."""

    outcomes: ArtifactRef
    ok_count: int
    failed_count: int
    retry_count: int
    usage: Usage


class OutcomeFile:
    """An outcome file on its way. Leaving the context without ``commit`` leaves nothing behind.

    Args:
        cycle: The run's plan, retry policy and artifacts.
        chunk: The chunk.
        rows: The row of each item of the chunk.
        attempts: What each item has used up before.
        path: Where the file shall lie.
    """

    def __init__(
        self,
        cycle: Cycle,
        chunk: ChunkRecord,
        rows: Sequence[int],
        attempts: Sequence[int],
        path: str,
    ) -> None:
        self._cost = cycle.plan.cost
        self._policy = cycle.plan.job.retry_policy
        self._round = chunk.round
        self._rows = rows
        self._attempts = attempts
        self._schema = outcome_schema(cycle.plan.output_schema)
        self._file = cycle.artifacts.writer(path)
        self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        self._verdicts = dict.fromkeys(Verdict, 0)
        self._tokens = [0, 0, 0, 0, 0]

    def write_ok(self, rows: Sequence[OkRow], output: pa.Array | None) -> None:
        """Append valid answers; ``output`` holds them parsed (or vectors), None for texts."""
        count = len(rows)
        if not count:
            return
        self._verdicts[Verdict.OK] += count
        answers = [row.answer for row in rows]
        self._write(
            {
                "row": [self._rows[row.item] for row in rows],
                "verdict": [Verdict.OK.value] * count,
                "attempts": [self._attempts[row.item] + 1 for row in rows],
                "error_code": [None] * count,
                "error_message": [None] * count,
                "text": [answer.text for answer in answers],
            },
            answers,
            output,
        )

    def write_reused(self, rows: Sequence[OkRow], output: pa.Array | None) -> None:
        """Append valid answers that an earlier run has paid for; their usage has to be zero."""
        if not rows:
            return
        self._verdicts[Verdict.OK] += len(rows)
        count = len(rows)
        answers = [row.answer for row in rows]
        self._write(
            {
                "row": [self._rows[row.item] for row in rows],
                "verdict": [Verdict.OK.value] * count,
                "attempts": [self._attempts[row.item] for row in rows],
                "error_code": [None] * count,
                "error_message": [None] * count,
                "text": [answer.text for answer in answers],
                "reused": [True] * count,
                "cost_usd": [0.0] * count,
            },
            answers,
            output,
        )

    def write_faulty(self, rows: Sequence[FaultyRow]) -> None:
        """Judge items without a usable answer, and append them."""
        if not rows:
            return
        judged = [
            judge(
                row.fault,
                attempts=self._attempts[row.item],
                round_=self._round,
                policy=self._policy,
            )
            for row in rows
        ]
        for each in judged:
            self._verdicts[each.verdict] += 1
        output = None
        if OUTPUT in self._schema.names:
            output = pa.nulls(len(rows), self._schema.field(OUTPUT).type)
        self._write(
            {
                "row": [self._rows[row.item] for row in rows],
                "verdict": [each.verdict.value for each in judged],
                "attempts": [each.attempts for each in judged],
                "error_code": [row.fault.code for row in rows],
                "error_message": [row.fault.message for row in rows],
                "text": [row.answer.text if row.answer else None for row in rows],
            },
            [row.answer or _NO_ANSWER for row in rows],
            output,
        )

    def count_stranger(self, answer: Answer) -> None:
        """Count what a line has cost that belongs to no row."""
        usage = [getattr(answer, name) for name in _ALL_USAGE]
        self._tokens = [total + each for total, each in zip(self._tokens, usage, strict=True)]

    def commit(self) -> OutcomeTotals:
        """Finish the file and return its totals."""
        self._writer.close()
        inputs, cached, outputs, reasoning, written = self._tokens
        return OutcomeTotals(
            outcomes=self._file.commit(),
            ok_count=self._verdicts[Verdict.OK],
            failed_count=self._verdicts[Verdict.FAILED],
            retry_count=self._verdicts[Verdict.RETRY],
            usage=Usage(
                input_tokens=inputs,
                cached_input_tokens=cached,
                output_tokens=outputs,
                reasoning_tokens=reasoning,
                cost_usd=self._cost(inputs, cached, outputs, written),
            ),
        )

    def __enter__(self) -> "OutcomeFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._writer.is_open:
                self._writer.close()
        finally:
            self._file.close()

    def _write(
        self, judged: dict[str, list[Any]], answers: Sequence[Answer], output: pa.Array | None
    ) -> None:
        """Append rows; ``judged`` holds the columns that do not come from the answer itself."""
        columns = judged | {name: [getattr(a, name) for a in answers] for name in _ANSWER_COLUMNS}
        # More of them cached than there are would make up for what other rows have cost.
        cached_of = map(min, columns["cached_input_tokens"], columns["input_tokens"])
        columns["cached_input_tokens"] = list(cached_of)
        usage = [columns[name] for name in _USAGE_COLUMNS]
        usage.append([answer.cache_write_tokens for answer in answers])
        self._tokens = [total + sum(each) for total, each in zip(self._tokens, usage, strict=True)]
        columns.setdefault("reused", [False] * len(answers))
        inputs, cached, outputs, _, written = usage
        if "cost_usd" not in columns:
            columns["cost_usd"] = list(map(self._cost, inputs, cached, outputs, written))
        for number, answer in enumerate(answers):
            if answer is _NO_ANSWER:  # nothing is known of it, which is not the same as zero
                for name in (*_USAGE_COLUMNS, "cost_usd"):
                    columns[name][number] = None
        arrays = [pa.array(columns[field.name], field.type) for field in OUTCOME_FIELDS]
        if output is not None:
            arrays.append(output)
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
