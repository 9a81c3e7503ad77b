"""Joining items with their outcomes into a part of the result table, all in Arrow."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from batchor_core.artifacts.tables import KEPT, OUTPUT
from batchor_core.errors import RowConservationError
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.records import RunRecord
from batchor_core.model.states import RunState, Verdict
from batchor_core.results.outcome_files import BATCH_ID

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
        items: Rows of an items file of round 0.
        outcomes: Outcomes of these items and no others, from any number of rounds; ``retry``
            ones only add to usage and attempts.
        schema: Of the result table.
        unanswered: (code, message) of items without a final outcome; None where there must be
            none.

    Raises:
        RowConservationError: An item has two final outcomes, or none although it must have one.
    """
    is_retry = pc.equal(outcomes["verdict"], Verdict.RETRY.value)
    final = outcomes.filter(pc.invert(is_retry))
    if pc.count_distinct(final["row"]).as_py() != final.num_rows:
        raise RowConservationError("an item has two final outcomes: nothing was written")
    found = _matched(items, final)
    if unanswered is None and found["row"].null_count:
        raise RowConservationError(
            f"{found['row'].null_count} item(s) have no final outcome: nothing was written"
        )
    retried = outcomes.filter(is_retry)
    earlier = _matched(items, _sums(retried)) if retried.num_rows else None
    columns = _columns(items, found, unanswered or ("", "")) | _added_up(items, found, earlier)
    return pa.table([columns[field.name] for field in schema], schema=schema)


def error_of_unanswered(run: RunRecord) -> tuple[str, str]:
    """Return (code, message) of items that the end of a run leaves without an outcome."""
    if run.state is not RunState.FAILED:
        return ItemErrorCode.RUN_CANCELLED, run.control_reason or "the run was cancelled"
    return run.error_code or ItemErrorCode.RUN_FAILED, run.error_message or "the run was stopped"


def _matched(items: pa.Table, table: pa.Table) -> pa.Table:
    """Return the table's rows in the order of the items; null where it has none."""
    rows = table["row"].combine_chunks()
    return table.take(pc.index_in(items["row"].combine_chunks(), value_set=rows))


def _sums(retried: pa.Table) -> pa.Table:
    """Return usage and attempts of tries that were not the last, by row."""
    wanted = [(name, "sum") for name in _SUMMED]
    return retried.group_by("row").aggregate([*wanted, ("attempts", "max")])


def _added_up(items: pa.Table, found: pa.Table, earlier: pa.Table | None) -> dict[str, Any]:
    """Return usage and attempts: of the final outcome and of the tries before it."""
    attempts = [found["attempts"], items["attempts"]]
    usage = {name: found[name] for name in _SUMMED}
    if earlier is not None:
        attempts.insert(1, earlier["attempts_max"])  # of an item that was tried and given up
        for name in _SUMMED:
            usage[name] = plus(usage[name], earlier[f"{name}_sum"])
    columns = {f"batch_{name}": column for name, column in usage.items()}
    return columns | {"batch_attempts": pc.coalesce(*attempts)}


def plus(last: Any, before: Any) -> Any:
    """Add two columns, where null is nothing; null only where both are."""
    both = pc.add(pc.fill_null(last, 0), pc.fill_null(before, 0))
    known = pc.or_(pc.is_valid(last), pc.is_valid(before))
    return pc.if_else(known, both, pa.scalar(None, both.type))


def _columns(items: pa.Table, found: pa.Table, unanswered: tuple[str, str]) -> dict[str, Any]:
    """Return every other column that a result table may have, by name."""
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
        "batch_reused": pc.fill_null(found["reused"], fill_value=False),
        "batch_model": found["model"],
        "batch_provider_batch_id": found[BATCH_ID],
        "batch_request_id": found["request_id"],
    }
    columns |= _struct_columns(items, KEPT)
    columns |= _struct_columns(found, OUTPUT)
    return columns


def _struct_columns(table: pa.Table, name: str) -> dict[str, Any]:
    if name not in table.schema.names:
        return {}
    struct = table[name].combine_chunks()
    return dict(zip(struct.type.names, struct.flatten(), strict=True))
