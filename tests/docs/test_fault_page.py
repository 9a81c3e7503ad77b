"""The page on faults: every row of its tables, held against the code."""

import builtins
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchor_core.executor.vector_answers import _of_one_in
from batchor_core.model.faults import FaultKind, ItemErrorCode, ItemFault
from batchor_core.providers.anthropic import faults as anthropic_faults
from batchor_core.providers.anthropic import records as anthropic_records
from batchor_core.providers.anthropic import results as anthropic_results
from batchor_core.providers.gemini import bucket as gemini_bucket
from batchor_core.providers.gemini import faults as gemini_faults
from batchor_core.providers.gemini import records as gemini_records
from batchor_core.providers.gemini import results as gemini_results
from batchor_core.providers.openai import chat_results, embeddings
from batchor_core.providers.openai import faults as openai_faults
from batchor_core.providers.openai import records as openai_records
from batchor_core.providers.openai import results as openai_results
from batchor_core.providers.protocol import Answer, BatchPhase, ProviderBatch

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
ALTERNATIVES = frozenset({"status", "code", "reason", "state", "results", "status or exception"})
"""Columns whose cells list what is treated alike."""

Row = dict[str, str]


def _table(heading: str, column: str) -> list[Row]:
    """Return the rows of the table under a heading whose first column is called so.

    A row whose cells list alternatives stands for each combination of them.
    """
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    blocks = (block.strip() for block in section.split("\n\n"))
    (table,) = (block for block in blocks if block.startswith(f"| {column} |"))
    names, _, *lines = (_cells(line) for line in table.splitlines())
    rows = []
    for cells in lines:
        listed = [
            cell.split(", ") if name in ALTERNATIVES else [cell]
            for name, cell in zip(names, cells, strict=True)
        ]
        rows += [dict(zip(names, values, strict=True)) for values in itertools.product(*listed)]
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip().strip("`") for cell in line.split("|")[1:-1]]


def _id(value: Any) -> str:
    return " ".join(list(value.values())[:3]) if isinstance(value, dict) else str(value)


def _walk(*tables: tuple[Any, list[Row]]) -> pytest.MarkDecorator:
    """Parametrize a test by ``how`` (what belongs to a table) and ``row``."""
    cases = [(how, row) for how, rows in tables for row in rows]
    ids = [f"{number}-{_id(row)}" for number, (_, row) in enumerate(cases)]
    return pytest.mark.parametrize(("how", "row"), cases, ids=ids)


def _verdict(fault: ItemFault | None) -> tuple[str, str]:
    assert fault is not None
    words = {True: "yes", False: "no"}
    return words[fault.retryable], words[fault.consumes_attempt]


def _said(row: Row, column: str) -> str | None:
    """Return what a cell names; None where it stands for any, or none."""
    return None if row[column] in ("*", "") else row[column]


def _openai_errors(row: Row) -> list[dict[str, Any]]:
    """Return errors with a row's code in either place."""
    error = {"code": None, "type": None, "message": row.get("message") or "m", "param": None}
    return [{**error, place: _said(row, "code")} for place in ("code", "type")]


def _anthropic_errors(row: Row) -> list[dict[str, Any]]:
    error = {"type": "error", "message": row["message"] or "m"}
    code = _said(row, "code")
    detailed = {**error, "details": {"error_code": code}}
    return [{**error, "type": code} if code else error, detailed]


def _gemini_errors(row: Row) -> list[dict[str, Any]]:
    """Return errors with a row's code by name and by number, and its reason in the details."""
    error: dict[str, Any] = {"message": row["message"] or "m"}
    if reason := _said(row, "reason"):
        error["details"] = [{"@type": "x"}, {"reason": reason}]
    code = row.get("code", "*")
    if code == "*":
        return [error]
    return [{**error, "status": code}, {**error, "code": gemini_faults._NUMBERS[code]}]


CALL_TABLES = (
    ((openai_faults, _openai_errors), _table("### Calls: OpenAI", "status")),
    ((anthropic_faults, _anthropic_errors), _table("### Calls: Anthropic", "status")),
    ((gemini_faults, _gemini_errors), _table("### Calls: Gemini", "status")),
)
DEFINITE = {
    int(status)
    for found in re.findall(r"definite refusal \(([\d,\s]+)\)", PAGE)
    for status in found.split(",")
}


@_walk(*CALL_TABLES)
def test_calls(how: tuple[Any, Callable[[Row], list[dict[str, Any]]]], row: Row) -> None:
    """An operator would read of another reaction to a failed call than the run has."""
    faults, errors_of = how
    status = int(row["status"])
    for error in errors_of(row):
        body = {"error": error}
        fault = faults.call_fault(status, body, {})
        assert (fault.kind, fault.limit) == (row["kind"], _limit_in(row["message"]))
        created = faults.call_fault(status, body, {}, creating=True).kind
        assert created == (row["kind"] if status in DEFINITE else FaultKind.UNKNOWN_OUTCOME)


def _limit_in(message: str) -> int | None:
    """Return the queue limit that an example names, in thousands."""
    found = re.search(r"\d+,000", message)
    return int(found.group().replace(",", "")) if found else None


@pytest.mark.parametrize("row", _table("### Calls: Gemini", "status or exception"), ids=_id)
def test_bucket(row: Row) -> None:
    """A run would be paused by a passing failure of the bucket, or go on without rights."""
    named = row["status or exception"]
    fields = {"code": int(named)} if named.isdigit() else {}
    raised = getattr(builtins, named, None) or type(named, (Exception,), fields)
    assert gemini_bucket._fault_of(raised("m"), "m").kind == row["kind"]


def _openai_batch(state: str, results: str) -> ProviderBatch:
    record: dict[str, Any] = {"id": "b", "status": state}
    if results == "some":
        record |= {"output_file_id": "f", "request_counts": {"total": 3, "completed": 1}}
    return openai_records.batch_of(record)


def _anthropic_batch(state: str, results: str) -> ProviderBatch:
    counts = {"succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
    counts |= {results: 2} if results else {}
    record = {"id": "b", "processing_status": state, "request_counts": counts}
    return anthropic_records.batch_of(record)


def _developer_batch(state: str, results: str) -> ProviderBatch:
    output = {"output": {"responsesFile": "files/f"}} if results == "some" else {}
    metadata = {"state": f"BATCH_STATE_{state}", **output}
    return gemini_records.developer_batch({"name": "b", "metadata": metadata})


def _vertex_batch(state: str, results: str) -> ProviderBatch:
    stats = {"successfulCount": "1" if results == "some" else "0"}
    record = {"name": "b", "state": f"JOB_STATE_{state}", "completionStats": stats}
    return gemini_records.vertex_batch(record)


GEMINI_STATES = _table("### Batches: Gemini", "backend")


@_walk(
    (_openai_batch, _table("### Batches: OpenAI", "state")),
    (_anthropic_batch, _table("### Batches: Anthropic", "state")),
    (_developer_batch, [row for row in GEMINI_STATES if row["backend"] in ("both", "developer")]),
    (_vertex_batch, [row for row in GEMINI_STATES if row["backend"] in ("both", "vertex")]),
)
def test_states(how: Callable[[str, str], ProviderBatch], row: Row) -> None:
    """A batch would be waited for after its end, or rows that were executed be sent again."""
    batch = how("A_NEW_WORD" if row["state"] == "*" else row["state"], row["results"])
    found = {
        BatchPhase.WORKING: "at work",
        BatchPhase.ENDED: "in part" if batch.is_partial else "complete",
        BatchPhase.REJECTED: "rejected",
    }
    assert found[batch.phase] == row["it is"]


@pytest.mark.parametrize("row", _table("### Batches: OpenAI", "code"), ids=_id)
def test_rejected_batches_of_openai(row: Row) -> None:
    """An operator would read of another reaction to a failed batch than the run has."""
    line = int(row["line"]) if row["line"] else None
    for error in _openai_errors(row):
        entry = {**error, "line": line}
        fault, named = openai_faults.batch_fault({"object": "list", "data": [entry]})
        assert fault.kind == row["kind"]
        assert list(named) == ([line] if line and row["kind"] == "rejected" else [])
        assert not any(each.retryable or each.consumes_attempt for each in named.values())


@pytest.mark.parametrize("row", _table("### Batches: Gemini", "code"), ids=_id)
def test_rejected_batches_of_gemini(row: Row) -> None:
    """A bad key would use up the rounds of all rows, or a full queue fail them."""
    assert {gemini_faults.batch_fault(error).kind for error in _gemini_errors(row)} == {row["kind"]}


OPENAI_LINES = _table("### Result lines: OpenAI", "status")


@pytest.mark.parametrize("row", OPENAI_LINES, ids=_id)
def test_lines_of_openai(row: Row) -> None:
    """A user would count on retries that do not come, or on attempts that are used up."""
    for error in _openai_errors(row):
        fault = _openai_line_fault(row["status"], error)
        assert _verdict(fault) == (row["again"], row["attempt"])


def _openai_line_fault(status: str, error: dict[str, Any]) -> ItemFault:
    if status == "none":
        return openai_faults.unexecuted_fault(error)
    return openai_faults.line_fault(int(status), {"error": error})


@pytest.mark.parametrize("row", _table("### Result lines: Anthropic", "code"), ids=_id)
def test_errors_of_anthropic(row: Row) -> None:
    """A bad request would be sent until its attempts are used up, or an outage be final."""
    for error in _anthropic_errors(row):
        fault = anthropic_faults.item_fault({"type": "error", "error": error})
        assert _verdict(fault) == (row["again"], row["attempt"])


def _openai_line(body: Any) -> Mapping[str, Any]:
    response = {"status_code": 200, "request_id": "r", "body": body}
    return {"custom_id": "a", "response": response}


def _vertex_line(**fields: Any) -> Mapping[str, Any]:
    return {"request": {"labels": {"custom_id": "a"}}, "status": "", **fields}


Decode = Callable[[bytes], Answer | None]
Line = Callable[[Any], Mapping[str, Any]]


def _bodies(endpoint: str) -> list[Row]:
    """Return the table of bodies that follows the line that names an OpenAI endpoint."""
    part = PAGE.split(f"rom `/v1/{endpoint}`")[1]
    lines = [line for line in part.split("\n\n")[1].splitlines() if line.startswith("|")]
    names, _, *rows = (_cells(line) for line in lines)
    return [dict(zip(names, cells, strict=True)) for cells in rows]


RESPONSES, CHAT, EMBEDDINGS = map(_bodies, ("responses", "chat/completions", "embeddings"))
GEMINI_ERRORS = _table("### Result lines: Gemini", "error")
GEMINI_RESPONSES = _table("### Result lines: Gemini", "response")


@_walk(
    ((openai_results.decode_line, _openai_line), RESPONSES),
    ((chat_results.decode_chat_line, _openai_line), CHAT),
    ((embeddings.decode_vectors, _openai_line), EMBEDDINGS),
    (
        (anthropic_results.decode_line, lambda result: {"custom_id": "a", "result": result}),
        _table("### Result lines: Anthropic", "result"),
    ),
    ((gemini_results.developer_answer, lambda error: {"key": "a", "error": error}), GEMINI_ERRORS),
    ((gemini_results.vertex_answer, lambda error: _vertex_line(status=error)), GEMINI_ERRORS),
    (
        (gemini_results.developer_answer, lambda said: {"key": "a", "response": said}),
        GEMINI_RESPONSES,
    ),
    ((gemini_results.vertex_answer, lambda said: _vertex_line(response=said)), GEMINI_RESPONSES),
)
def test_lines(how: tuple[Decode, Line], row: Row) -> None:
    """A failure that hides in a result would not be on the page, or another verdict."""
    decode, line_of = how
    answer = decode(json.dumps(line_of(json.loads(next(iter(row.values()))))).encode())
    assert answer is not None
    assert answer.custom_id == "a"
    assert answer.fault is not None
    assert answer.fault.code == row["code"]
    assert _verdict(answer.fault) == (row["again"], row["attempt"])


@pytest.mark.parametrize("row", EMBEDDINGS, ids=_id)
def test_requests_that_rows_share(row: Row) -> None:
    """A row would fail for the text of another one."""
    answer = embeddings.decode_vectors(json.dumps(_openai_line(json.loads(row["body"]))).encode())
    assert answer is not None
    assert answer.fault is not None
    assert _of_one_in(range(1), answer.fault) == answer.fault
    shared = ("yes", "no") if row["again"] == "no" else (row["again"], row["attempt"])
    assert _verdict(_of_one_in(range(2), answer.fault)) == shared


def test_the_page_is_complete() -> None:
    """A status, code, kind or state that the code knows would be missing on the page."""
    for (faults, _), table in CALL_TABLES:
        assert {int(row["status"]) for row in table} >= DEFINITE
        definite = getattr(faults, "DEFINITE_REFUSALS", None) or faults._DEFINITE_REFUSALS
        assert definite == DEFINITE
    kinds = {row["kind"] for row in _table("## Kinds", "kind")}
    assert kinds == set(FaultKind)
    openai_codes = {row["code"] for row in CALL_TABLES[0][1]}
    assert openai_codes >= openai_faults._BILLING_CODES
    assert {row["code"] for row in CALL_TABLES[1][1]} >= anthropic_faults.BILLING_CODES
    states = {row["state"].lower() for row in GEMINI_STATES}
    assert states >= gemini_records._ENDED
    unsaid = [c for c in ItemErrorCode if f"`{c}`" not in PAGE and f"| {c} |" not in PAGE]
    assert not unsaid
