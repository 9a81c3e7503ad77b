"""Answers that an earlier run has paid for: found by key, copied, and never asked again.

Runs once for a run, between the end of its source and its first batch. A chunk with answered
items is replaced by two: the answered part, which is done, and the rest, which is sent.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from batchor_core.artifacts.tables import ITEMS_SCHEMA, OUTPUT
from batchor_core.errors import RunNotFoundError
from batchor_core.executor.answers import stored_answers, validated
from batchor_core.executor.cycle import Cycle
from batchor_core.executor.earlier_answers import ANSWER_COLUMNS, EarlierAnswers
from batchor_core.executor.outcomes import OkRow, OutcomeFile, OutcomeTotals
from batchor_core.executor.recut import items_of, next_seq, recut
from batchor_core.executor.seal import Position
from batchor_core.ids import SubmissionKey, new_submission_id
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import (
    ChunkRecord,
    Collected,
    NewChunk,
    NewSubmission,
    Usage,
)
from batchor_core.model.states import (
    UNCOLLECTED_SUBMISSION_STATES,
    ChunkState,
)
from batchor_core.planning.schema_compiler import InvalidAnswer
from batchor_core.providers.protocol import Answer

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 4096
_SCOPES = 20
"""So many models may share a namespace before fewer runs than allowed are looked through."""


def reuse(cycle: Cycle) -> bool:
    """Give the run's items the answers that earlier runs have to the very same requests.

    A crash leaves some chunks looked at: the next cycle looks at the others.

    Returns:
        Whether an answer was found.
    """
    if cycle.run.reuse_done:
        return False
    earlier, within_run = _earlier_runs(cycle), cycle.plan.job.reuse.within_run
    if not (earlier or within_run):
        return False
    did, answers = False, EarlierAnswers(cycle, earlier, cycle.plan.job.reuse.match)
    for chunk in _ready(cycle):
        if chunk.round == 0 and chunk.parent_seq is None:
            did |= _reuse_in(cycle, chunk, answers)
            cycle.keeper.keep()
    if within_run:
        did |= _hold_duplicates(cycle)
    cycle.run = cycle.store.finish_reuse(cycle.lease)
    return did


def settle_duplicates(cycle: Cycle) -> bool:
    """Once all else is answered: give the rows that wait for it the answers of their like.

    A crash leaves some chunks waiting: the next cycle goes on with them.

    Returns:
        Whether there were any.
    """
    if not cycle.plan.job.reuse.within_run:
        return False
    ready = _ready(cycle)
    held = [chunk for chunk in ready if chunk.is_duplicate]
    if not held or len(held) < len(ready) or _is_anything_open(cycle):
        return False
    answers = EarlierAnswers(cycle, [cycle.run.run_id], "request")
    for chunk in held:
        _reuse_in(cycle, chunk, answers)
        cycle.keeper.keep()
    left = [chunk.seq for chunk in _ready(cycle)]
    if left:
        message = "the row that asks the very same has failed"
        cycle.store.abandon_chunks(cycle.lease, left, ItemErrorCode.DUPLICATE_FAILED, message)
    return True


def _ready(cycle: Cycle) -> list[ChunkRecord]:
    return cycle.store.list_chunks(cycle.run.run_id, states=[ChunkState.READY])


def _is_anything_open(cycle: Cycle) -> bool:
    """Whether an answer may still come."""
    submissions = cycle.store.list_submissions(cycle.run.run_id)
    return any(
        s.state in UNCOLLECTED_SUBMISSION_STATES or (s.retry_count and not s.retries_packed)
        for s in submissions
    )


def _hold_duplicates(cycle: Cycle) -> bool:
    """Take rows that ask what an earlier row asks out of the chunks that are sent."""
    seen = pl.Series([], dtype=pl.Binary)
    did = False
    for chunk in _ready(cycle):
        if chunk.is_duplicate:  # by an earlier cycle: what it asks is sent by another chunk
            continue
        items = items_of(cycle, chunk)
        keys = pl.Series(items["request_key"].cast(pa.binary()).combine_chunks())
        is_new = keys.is_first_distinct() & ~keys.is_in(seen.implode())
        seen = pl.concat([seen, keys.filter(is_new)])
        if is_new.all():
            continue
        _hold(cycle, chunk, items, is_new.to_arrow())
        cycle.keeper.keep()
        did = True
    return did


def _hold(cycle: Cycle, chunk: ChunkRecord, items: pa.Table, is_new: pa.Array) -> None:
    seq = next_seq(cycle)
    parts: list[NewChunk] = []
    for is_held, mask in ((False, is_new), (True, pc.invert(is_new))):
        part = items.filter(mask)
        if part.num_rows:
            position = Position(seq=seq + len(parts), parent_seq=chunk.seq, is_duplicate=is_held)
            parts += recut(cycle, [(chunk, part)], position)
    cycle.store.split_chunk(cycle.lease, chunk.seq, parts)


def _earlier_runs(cycle: Cycle) -> list[str]:
    """Return the ids of the runs whose answers count, the newest first."""
    run, policy = cycle.run, cycle.plan.job.reuse
    if policy.source == "off":
        return []
    found = [*_predecessors(cycle), *policy.run_ids]
    if policy.source == "namespace":
        known = cycle.store.list_runs(namespace=run.namespace, limit=policy.max_runs * _SCOPES)
        alike = [each.run_id for each in known if each.scope == run.scope]
        found += alike[: policy.max_runs]
    return [run_id for run_id in dict.fromkeys(found) if run_id != run.run_id]


def _predecessors(cycle: Cycle) -> list[str]:
    """Return the run that this one supersedes, the one that was superseded by that, and so on."""
    found: list[str] = []
    run_id = cycle.run.predecessor
    while run_id is not None and run_id not in found:
        found.append(run_id)
        try:
            run_id = cycle.store.get_run(run_id).predecessor
        except RunNotFoundError:
            break
    return found


def _reuse_in(cycle: Cycle, chunk: ChunkRecord, earlier: EarlierAnswers) -> bool:
    items = items_of(cycle, chunk)
    answers = earlier.to(keys := earlier.keys_of(cycle.run.run_id, items))
    if answers is None:
        return False
    places = pc.index_in(keys, value_set=answers["key"])
    found = _Found(
        items=pc.indices_nonzero(pc.is_valid(places)).to_pylist(),
        answers=answers.take(places.drop_null()),
    )
    submission_id = new_submission_id()
    answered, totals = _write_outcomes(cycle, chunk, items, found, submission_id)
    if not answered:
        return False
    mask = [False] * items.num_rows
    for item in answered:
        mask[item] = True
    parts = _Parts(items=_with_keys_of(items, found, mask), is_answered=pa.array(mask))
    _commit(cycle, chunk, parts, submission_id, totals)
    logger.info(
        "run %s: %d of %d items of chunk %d were answered before",
        cycle.run.run_id,
        len(answered),
        chunk.item_count,
        chunk.seq,
    )
    return True


def _with_keys_of(items: pa.Table, found: "_Found", mask: Sequence[bool]) -> pa.Table:
    """Return the items with the keys of those requests that their answers really answer.

    They differ where items are matched: whoever looks for answers to the new request later shall
    not be given these.
    """
    keys = items["request_key"].to_pylist()
    asked = found.answers["request_key"].to_pylist()
    for item, key in zip(found.items, asked, strict=True):
        if mask[item]:
            keys[item] = key
    place = items.schema.get_field_index("request_key")
    return items.set_column(place, "request_key", pa.array(keys, items.schema.field(place).type))


@dataclass(frozen=True, kw_only=True)
class _Found:
    """Earlier answers: for each item that has one, its index in the chunk, and the answer."""

    items: list[int]
    answers: pa.Table


def _write_outcomes(
    cycle: Cycle, chunk: ChunkRecord, items: pa.Table, found: _Found, submission_id: str
) -> tuple[list[int], OutcomeTotals | None]:
    """Write the answers that are valid today; return whose they are, and the file's totals."""
    path = cycle.layout.outcomes(submission_id, cycle.lease.token)
    rows, attempts = items["row"].to_pylist(), items["attempts"].to_pylist()
    answered: list[int] = []
    with OutcomeFile(cycle, chunk, rows, attempts, path) as file:
        for begin in range(0, len(found.items), _ROWS_AT_ONCE):
            some = found.answers.slice(begin, _ROWS_AT_ONCE)
            numbers = found.items[begin : begin + _ROWS_AT_ONCE]
            kept, output = _checked(cycle, numbers, some)
            file.write_reused(kept, output)
            answered += [row.item for row in kept]
            cycle.keeper.keep()
        return answered, file.commit() if answered else None


def _checked(
    cycle: Cycle, numbers: Sequence[int], answers: pa.Table
) -> tuple[list[OkRow], pa.Array | None]:
    """Return the answers that the output model takes today, and what they are parsed into."""
    plan = cycle.plan
    rows = [
        OkRow(item, Answer(custom_id="", **values))
        for item, values in zip(numbers, answers.select(ANSWER_COLUMNS).to_pylist(), strict=True)
    ]
    if plan.dimensions is not None:
        output = answers[OUTPUT].combine_chunks()
        fits = output.type == pa.struct(list(plan.output_schema or ()))
        return (rows, output) if fits else ([], None)
    if plan.validator is None or plan.columns is None:
        return rows, None
    valid: list[OkRow] = []
    outputs: list[BaseModel] = []
    for row in rows:
        checked = validated(plan.validator, row.answer.text)
        if not isinstance(checked, InvalidAnswer):
            valid.append(row)
            outputs.append(checked)
    if not valid:
        return [], None
    stored = stored_answers(plan.columns, valid, outputs)
    return stored.rows, stored.output


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """A chunk's items, and which of them are answered."""

    items: pa.Table
    is_answered: pa.Array


def _commit(
    cycle: Cycle,
    chunk: ChunkRecord,
    parts: _Parts,
    submission_id: str,
    totals: OutcomeTotals | None,
) -> None:
    """Replace the chunk by its answered part and the rest, in one transaction."""
    assert totals is not None
    seq = next_seq(cycle)
    answered = _answered_part(cycle, chunk, parts.items.filter(parts.is_answered), seq)
    rest_items = parts.items.filter(pc.invert(parts.is_answered))
    rest = None
    if rest_items.num_rows:
        position = Position(seq=seq + 1, parent_seq=chunk.seq, is_duplicate=chunk.is_duplicate)
        [rest] = recut(cycle, [(chunk, rest_items)], position)
    key = SubmissionKey(
        run_id=cycle.run.run_id,
        chunk_seq=seq,
        chunk_token=chunk.token,
        submission_id=submission_id,
        store_id=cycle.store.store_id,
    )
    submission = NewSubmission(
        submission_id=submission_id,
        run_id=cycle.run.run_id,
        chunk_seq=seq,
        key=str(key),
        account=cycle.run.account,
        credential=cycle.plan.provider.credential,
        scope=cycle.run.scope,
        reserved_requests=0,
        reserved_tokens=0,
        reserved_cost_usd=0.0,
    )
    collected = Collected(
        outcomes=totals.outcomes,
        ok_count=totals.ok_count,
        failed_count=0,
        retry_count=0,
        reused_count=totals.ok_count,
        retry_at=None,
        usage=Usage(cost_usd=0.0),  # known, even where the price is not
        quarantined=0,
    )
    cycle.probe("reuse.written")
    cycle.store.reuse_answers(
        cycle.lease,
        chunk.seq,
        answered=answered,
        rest=rest,
        submission=submission,
        collected=collected,
    )
    cycle.probe("reuse.committed")


def _answered_part(cycle: Cycle, chunk: ChunkRecord, items: pa.Table, seq: int) -> NewChunk:
    """Write the items file of what is answered; its requests stay where they are."""
    with cycle.artifacts.writer(cycle.layout.items(seq, cycle.lease.token)) as file:
        pq.write_table(items.cast(ITEMS_SCHEMA), file, compression="zstd")
        written = file.commit()
    rows = pc.min_max(items["row"]).as_py()
    return NewChunk(
        token=chunk.token,
        round=0,
        parent_seq=chunk.seq,
        item_count=items.num_rows,
        first_row=rows["min"],
        last_row=rows["max"],
        items=written,
        requests=chunk.requests,
        input_tokens=0,
        output_tokens=0,
        cost_usd=0.0,
    )
