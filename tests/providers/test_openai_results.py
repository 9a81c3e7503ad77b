"""Result lines of OpenAI and of hosts that speak its protocol."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.openai.results import decode_line
from batchor_core.providers.openai.usual_lines import usual_answer
from batchor_core.providers.protocol import Answer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def message(*parts: Any, **fields: Any) -> dict[str, Any]:
    """Make a message item of an output."""
    return {"type": "message", "role": "assistant", "content": list(parts), **fields}


def said(text: Any) -> dict[str, Any]:
    """Make a message of one text."""
    return message({"type": "output_text", "text": text, "annotations": []})


def body(*output: Any, **fields: Any) -> dict[str, Any]:
    """Make a response body."""
    return {"id": "resp_1", "status": "completed", "model": "m-1", "output": list(output), **fields}


def line(response_body: Any, status: Any = 200, **fields: Any) -> bytes:
    """Make a result line."""
    response = {"status_code": status, "request_id": "req_1", "body": response_body}
    record = {"id": "batch_req_1", "custom_id": "a-0", "response": response, "error": None}
    return json.dumps({**record, **fields}).encode()


def read(raw: bytes) -> Answer:
    """Decode a line that names its item."""
    answer = decode_line(raw)
    assert answer is not None
    assert answer.custom_id == "a-0"
    return answer


def fault_of(raw: bytes) -> ItemFault:
    """Return why a line has no usable answer."""
    fault = read(raw).fault
    assert fault is not None
    assert fault.code
    assert fault.message
    return fault


def test_a_complete_answer() -> None:
    """Text, usage or model of every answer would be wrong."""
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hidden"}]}
    tool = {"type": "function_call", "name": "f", "arguments": "{}"}
    usual = line(body(said("yes"), usage=USAGE))
    unusual = line(body(reasoning, tool, said("yes"), usage=USAGE))
    assert usual_answer(usual) == read(usual) == read(unusual)
    assert usual_answer(unusual) is None
    assert read(usual) == Answer(
        custom_id="a-0",
        text="yes",
        finish_reason="stop",
        model="m-1",
        request_id="req_1",
        input_tokens=11,
        cached_input_tokens=3,
        output_tokens=7,
        reasoning_tokens=2,
        cache_write_tokens=1,
    )


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (line(body(said("a"), said("b"))), "ab"),
        (line(body(said("a\u2028b\u0085c"))), "a\u2028b\u0085c"),
        (line(body(said("x" * 3_000_000))), "x" * 3_000_000),
        (line(json.dumps(body(said("as a text")))), "as a text"),
        (b"\xef\xbb\xbf" + line(body(said("bom"))), "bom"),
        (line(body(said("crlf"))) + b"\r", "crlf"),
        (line(body(said("lone \ud800 surrogate"))), "lone ? surrogate"),
        (line(json.dumps(body(said("lone \ud800 surrogate")))), "lone ? surrogate"),
        (line(body(said("nan"), score=float("nan"))), "nan"),
        (line(body(said("inf"), score=float("-inf"))), "inf"),
        (line(body(said("far"), big=1)).replace(b'"big": 1', b'"big": 1e999'), "far"),
        (line(body(said("nul \x00"))), "nul \x00"),
        (line(body(said("more"), unknown={"a": 1}), extra=[1]), "more"),
        (line(body(said("status as text")), status="200"), "status as text"),
        (line(body(said("status as float")), status=200.0), "status as float"),
        (line(body({"type": "message", "content": "bare text"})), "bare text"),
        (line(body(said("no status"), status=None)), "no status"),
        (line(body(said("loud"), status="COMPLETED")), "loud"),
        (line(body(said("beside"), message({"type": "refusal", "refusal": "no"}))), "beside"),
    ],
)
def test_answers_in_odd_clothes(raw: bytes, text: str) -> None:
    """An answer that was paid for would be thrown away and paid again."""
    answer = read(raw)
    assert (answer.text, answer.fault) == (text, None)
    assert answer.text is not None
    answer.text.encode()  # can be stored


@pytest.mark.parametrize(
    ("raw", "code", "retryable", "consumes"),
    [
        (line({"error": {"message": "m", "code": "c"}}, 400), "c", False, False),
        (line({"error": {"message": "m", "type": "t"}}, 400), "t", False, False),
        (line({"error": {"message": "m"}}, 503), "http_503", True, True),
        (line("<html>", 502), "http_502", True, True),
        (line({}, 0), ItemErrorCode.TRANSPORT, True, True),
        (line({}, "0"), ItemErrorCode.TRANSPORT, True, True),
        (line({}, None), ItemErrorCode.TRANSPORT, True, True),
        (line({}, 10**30), ItemErrorCode.TRANSPORT, True, True),
        (
            line(None, response=None, error={"code": "batch_expired", "message": "m"}),
            "batch_expired",
            True,
            False,
        ),
        (line(None, response=None, error="text"), "not_executed", True, True),
        (line(None, response=None), ItemErrorCode.UNREADABLE_RESULT, True, True),
        (b'{"custom_id":"a-0"}', ItemErrorCode.UNREADABLE_RESULT, True, True),
        (line(None), ItemErrorCode.UNREADABLE_RESULT, True, True),
        (line([]), ItemErrorCode.UNREADABLE_RESULT, True, True),
        (line("no json"), ItemErrorCode.UNREADABLE_RESULT, True, True),
        (line({}), ItemErrorCode.EMPTY_ANSWER, True, True),
        (line(body()), ItemErrorCode.EMPTY_ANSWER, True, True),
        (line(body(said(""))), ItemErrorCode.EMPTY_ANSWER, True, True),
        (line(body(said(None))), ItemErrorCode.EMPTY_ANSWER, True, True),
        (line({"error": {"message": "m", "code": "server_error"}}), "server_error", True, True),
        (
            line(body(status="failed", error={"code": "server_error", "message": "m"})),
            "server_error",
            True,
            True,
        ),
        (
            line(body(status="failed", error={"code": "rate_limit_exceeded"})),
            "rate_limit_exceeded",
            True,
            True,
        ),
        (
            line(body(status="failed", error={"code": "invalid_prompt", "message": "m"})),
            "invalid_prompt",
            False,
            True,
        ),
        (line(body(status="failed", error=None)), "failed", False, True),
        (
            line(
                body(
                    said("ha"),
                    status="incomplete",
                    incomplete_details={"reason": "max_output_tokens"},
                )
            ),
            ItemErrorCode.TRUNCATED,
            False,
            True,
        ),
        (
            line(body(status="incomplete", incomplete_details={"reason": "content_filter"})),
            ItemErrorCode.CONTENT_FILTERED,
            False,
            True,
        ),
        (line(body(said("ha"), status="incomplete")), ItemErrorCode.TRUNCATED, False, True),
        (line(body(said("ha"), status="cancelled")), ItemErrorCode.TRUNCATED, True, True),
        (line(body(said("ha"), status="in_progress")), ItemErrorCode.TRUNCATED, True, True),
        (
            line(body(message({"type": "refusal", "refusal": "I can't"}))),
            ItemErrorCode.REFUSED,
            False,
            True,
        ),
    ],
)
def test_lines_without_a_usable_answer(
    raw: bytes, code: str, retryable: bool, consumes: bool
) -> None:
    """A failed row would count as answered, or be asked again though that is pointless."""
    fault = fault_of(raw)
    assert (fault.code, fault.retryable, fault.consumes_attempt) == (code, retryable, consumes)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\x00",
        b"null",
        b"[1]",
        b'"text"',
        b'{"custom_id":null}',
        b'{"custom_id":7}',
        b'{"custom_id":NaN}',
        b'{"custom_id":"\xff"}',
        line(body(said("cut")))[:-20],
        b"[" * 200_000,
        b'{"custom_id":"a","n":' + b"1" * 5_000 + b"}",
    ],
)
def test_lines_that_cannot_be_read(raw: bytes) -> None:
    """One bad line would make all answers of a batch unreadable."""
    assert decode_line(raw) is None


@pytest.mark.parametrize(
    ("tokens", "count"),
    [("12", 12), (12.0, 12), (-3, 0), (True, 0), (10**30, 0), ("x", 0), (None, 0), ([], 0)],
)
def test_token_counts(tokens: Any, count: int) -> None:
    """Costs would be wrong, or a number that no column holds would stop a run."""
    answer = read(line(body(said("a"), usage={"input_tokens": tokens, "output_tokens": 1})))
    assert (answer.input_tokens, answer.output_tokens) == (count, 1)


@pytest.mark.parametrize("usage", [None, [], "x", {"input_tokens_details": 3}])
def test_usage_of_any_shape(usage: Any) -> None:
    """An answer would be lost for the sake of its bill."""
    assert read(line(body(said("a"), usage=usage))).text == "a"


@given(JSON)
def test_any_json_is_survived(value: Any) -> None:
    """A host's new shape would crash the run that reads it."""
    decode_line(json.dumps(value).encode())
    for raw in (line(value), line(body(value)), line(value, status=500), line(body(said(value)))):
        answer = read(raw)
        assert msgspec.json.encode(answer)
    read(line(body(status=value, error=value, usage=value, model=value, output=value)))
    read(line(body(), response=value, error=value))
    read(line(body(), status=value))


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(raw: bytes) -> None:
    """A damaged download would crash the run that reads it."""
    decode_line(raw)
    decode_line(b'{"custom_id":"a","response":' + raw)
    decode_line(b'{"custom_id":"' + raw + b'","response":null}')
