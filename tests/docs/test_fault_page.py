"""The page on faults: every row of its tables, held against the code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchor_core.model.faults import ItemFault
from batchor_core.providers.openai.faults import (
    _BILLING_CODES,
    _DEFINITE_REFUSALS,
    batch_fault,
    call_fault,
    line_fault,
    unexecuted_fault,
)
from batchor_core.providers.openai.results import decode_line

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def _rows(*header: str) -> Iterator[dict[str, str]]:
    """The rows of the table whose header begins so."""
    lines = iter(PAGE.read_text().splitlines())
    start = f"| {' | '.join(header)} |"
    names = next(line for line in lines if line.startswith(start)).split("|")[1:-1]
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        yield dict(zip((name.strip() for name in names), cells, strict=True))


def _error(row: dict[str, str]) -> dict[str, Any]:
    code = None if row["code"] == "*" else row["code"]
    return {"code": code, "message": row.get("message") or "m", "type": None, "param": None}


def _verdict(fault: ItemFault | None) -> tuple[str, str]:
    assert fault is not None
    return tuple("yes" if each else "no" for each in (fault.retryable, fault.consumes_attempt))


CALLS = list(_rows("status", "code", "message", "kind"))
BATCHES = list(_rows("code", "line", "message", "kind"))
LINES = list(_rows("status", "code", "again"))
BODIES = list(_rows("body", "code", "again"))


def _id(row: dict[str, str]) -> str:
    return " ".join(list(row.values())[:3])


@pytest.mark.parametrize("row", CALLS, ids=_id)
def test_calls(row: dict[str, str]) -> None:
    """An operator would read of another reaction to a failed call than the run has."""
    status, body = int(row["status"]), {"error": _error(row)}
    assert call_fault(status, body, {}).kind == row["kind"]
    created = call_fault(status, body, {}, creating=True).kind
    assert created == (row["kind"] if status in _DEFINITE_REFUSALS else "unknown_outcome")


@pytest.mark.parametrize("row", BATCHES, ids=_id)
def test_batches(row: dict[str, str]) -> None:
    """An operator would read of another reaction to a failed batch than the run has."""
    line = int(row["line"]) if row["line"] else None
    fault, named = batch_fault({"object": "list", "data": [{**_error(row), "line": line}]})
    assert fault.kind == row["kind"]
    assert list(named) == ([line] if line and row["kind"] == "rejected" else [])
    assert not any(each.retryable or each.consumes_attempt for each in named.values())


@pytest.mark.parametrize("row", LINES, ids=_id)
def test_lines(row: dict[str, str]) -> None:
    """A user would count on retries that do not come, or on attempts that are used up."""
    error = _error(row)
    if row["status"] == "none":
        fault = unexecuted_fault(error)
    else:
        fault = line_fault(int(row["status"]), {"error": error})
    assert _verdict(fault) == (row["again"], row["attempt"])


@pytest.mark.parametrize("row", BODIES, ids=_id)
def test_bodies(row: dict[str, str]) -> None:
    """A failure that hides under HTTP 200 would not be on the page, or another verdict."""
    response = {"status_code": 200, "request_id": "r", "body": json.loads(row["body"])}
    answer = decode_line(json.dumps({"custom_id": "a", "response": response}).encode())
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.code == row["code"]
    assert _verdict(answer.fault) == (row["again"], row["attempt"])


def test_the_page_is_complete() -> None:
    """A status or code that the code knows would be missing on the page."""
    statuses = {int(row["status"]) for row in CALLS}
    assert statuses >= _DEFINITE_REFUSALS
    assert {row["code"] for row in CALLS} >= _BILLING_CODES
    text = PAGE.read_text()
    assert all(str(status) in text for status in _DEFINITE_REFUSALS)
