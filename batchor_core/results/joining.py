"""Joining items with their outcomes into a part of the result table, all in Arrow."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchor_core.artifacts.tables import KEPT, OUTPUT
from batchor_core.errors import RowConservationError
from batchor_core.model.states import Verdict

BATCH_ID = "provider_batch_id"
"""Further column of outcome tables here: the batch that each outcome came from."""

_SUMMED = (
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_usd",
)
"""Of an item that was sent several times, these are summed: each time was paid for."""


def join_outcomes(
    items: pa.Table,
    outcomes: pa.Table,
    *,
    schema: pa.Schema,
    unanswered: tuple[str, str] | None,
) -> pa.Table:
    """Return the result rows of some items, in the order of the items.

    Args:
        items: An items file of round 0.
        outcomes: Outcomes of these items and no others, from any number of rounds; ``retry``
            ones only add to the usage.
        schema: Of the result table.
        unanswered: (code, message) of items without a final outcome.

    Raises:
        RowConservationError: An item has two final outcomes, or none although it must have one.
    """
    is_retry = pc.equal(outcomes["verdict"], Verdict.RETRY.value)
    final = outcomes.filter(pc.invert(is_retry))
    if pc.count_distinct(final["row"]).as_py() != final.num_rows:
        raise RowConservationError("an item has two final outcomes: nothing was written")
    rows = items["row"].combine_chunks()
    found = final.take(pc.index_in(rows, value_set=final["row"].combine_chunks()))
    if unanswered is None and found["row"].null_count:
        raise RowConservationError(
            f"{found['row'].null_count} item(s) have no final outcome: nothing was written"
        )
    usage = _usage(rows, found, outcomes.filter(is_retry))
    columns = _columns(items, found, usage, unanswered or ("", ""))
    return pa.table([columns[field.name] for field in schema], schema=schema)


def _usage(rows: pa.Array, found: pa.Table, retried: pa.Table) -> dict[str, Any]:
    """Return the summed columns: those of the final outcome plus those of the tries before it."""
    usage = {name: found[name] for name in _SUMMED}
    if not retried.num_rows:
        return usage
    sums = retried.group_by("row").aggregate([(name, "sum") for name in _SUMMED])
    earlier = sums.take(pc.index_in(rows, value_set=sums["row"].combine_chunks()))
    for name in _SUMMED:
        before = earlier[f"{name}_sum"]
        both = pc.add(pc.fill_null(usage[name], 0), pc.fill_null(before, 0))
        known = pc.or_(pc.is_valid(usage[name]), pc.is_valid(before))
        usage[name] = pc.if_else(known, both, pa.scalar(None, both.type))
    return usage


def _columns(
    items: pa.Table, found: pa.Table, usage: dict[str, Any], unanswered: tuple[str, str]
) -> dict[str, Any]:
    """Return every column that a result table may have, by name."""
    count = items.num_rows
    status = pc.fill_null(found["verdict"], Verdict.FAILED.value)
    is_ok = pc.equal(status, Verdict.OK.value)
    no_text = pa.scalar(None, pa.string())
    code, message = unanswered
    no_outcome = pc.is_null(found["verdict"])
    columns: dict[str, Any] = {
        "item_id": items["item_id"],
        "output_text": pc.if_else(is_ok, found["text"], no_text),
        "batch_status": status,
        "batch_error_code": pc.if_else(no_outcome, code, found["error_code"]),
        "batch_error_message": pc.if_else(no_outcome, message, found["error_message"]),
        "batch_output_text": pc.if_else(is_ok, no_text, found["text"]),
        "batch_finish_reason": found["finish_reason"],
        "batch_attempts": pc.coalesce(found["attempts"], items["attempts"]),
        "batch_reused": pa.repeat(pa.scalar(value=False), count),
        "batch_model": found["model"],
        "batch_provider_batch_id": found[BATCH_ID],
        "batch_request_id": found["request_id"],
    }
    columns |= {f"batch_{name}": column for name, column in usage.items()}
    columns |= _struct_columns(items, KEPT)
    columns |= _struct_columns(found, OUTPUT)
    return columns


def _struct_columns(table: pa.Table, name: str) -> dict[str, Any]:
    if name not in table.schema.names:
        return {}
    struct = table[name].combine_chunks()
    return dict(zip(struct.type.names, struct.flatten(), strict=True))
