"""Result lines of Anthropic's batches."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.anthropic.results import decode_line
from batchor_core.providers.anthropic.usual_lines import usual_answer
from batchor_core.providers.protocol import Answer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
USAGE = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 3,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 2},
    "service_tier": "batch",
}


def text(said: Any) -> dict[str, Any]:
    """Make a text block."""
    return {"type": "text", "text": said, "citations": None}


def call(given: Any) -> dict[str, Any]:
    """Make a tool call."""
    return {"type": "tool_use", "id": "toolu_1", "name": "f", "input": given}


def succeeded(*content: Any, **fields: Any) -> dict[str, Any]:
    """Make a result with a message."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-1",
        "content": list(content),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }
    return {"type": "succeeded", "message": {**message, **fields}}


def errored(kind: Any, message: Any = "m", **details: Any) -> dict[str, Any]:
    """Make a result with an error."""
    error = {"type": kind, "message": message} | ({"details": details} if details else {})
    body = {"type": "error", "error": error, "request_id": "req_1"}
    return {"type": "errored", "error": body}


def line(result: Any, **fields: Any) -> bytes:
    """Make a result line."""
    return json.dumps({"custom_id": "a-0", "result": result, **fields}).encode()


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
    usual = line(succeeded(text("yes")))
    thinking = {"type": "thinking", "thinking": "hidden", "signature": "s"}
    unusual = line(succeeded(thinking, text("yes")))
    assert usual_answer(usual) == read(usual) == read(unusual)
    assert usual_answer(unusual) is None
    assert read(usual) == Answer(
        custom_id="a-0",
        text="yes",
        finish_reason="end_turn",
        model="claude-1",
        request_id="msg_1",
        input_tokens=19,
        cached_input_tokens=3,
        cache_write_tokens=5,
        output_tokens=7,
        reasoning_tokens=2,
    )


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 4, "output_tokens": 2},
        {
            "input_tokens": 4,
            "output_tokens": 2,
            "cache_creation_input_tokens": None,
            "cache_read_input_tokens": None,
            "output_tokens_details": None,
        },
    ],
)
def test_usage_without_details(usage: dict[str, Any]) -> None:
    """Answers of models without cache or thinking would not be read on the fast path."""
    answer = usual_answer(line(succeeded(text("a"), usage=usage)))
    assert answer is not None
    assert (answer.input_tokens, answer.output_tokens, answer.reasoning_tokens) == (4, 2, 0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (line(succeeded(text("a"), text("b"))), "ab"),
        (line(succeeded(text("stop"), stop_reason="stop_sequence")), "stop"),
        (line(succeeded(text("a\u2028b\u0085c"))), "a\u2028b\u0085c"),
        (line(succeeded(text("x" * 3_000_000))), "x" * 3_000_000),
        (b"\xef\xbb\xbf" + line(succeeded(text("bom"))), "bom"),
        (line(succeeded(text("crlf"))) + b"\r", "crlf"),
        (line(succeeded(text("lone \ud800 surrogate"))), "lone ? surrogate"),
        (line(succeeded(text("nan"), score=float("nan"))), "nan"),
        (line(succeeded(text("nul \x00"))), "nul \x00"),
        (line(succeeded(text("more"), unknown={"a": 1}), extra=[1]), "more"),
        (line(succeeded("odd", 7, text("among odd blocks"))), "among odd blocks"),
        (line(succeeded(call({"b": 1, "a": "ü"}), stop_reason="tool_use")), '{"b": 1, "a": "ü"}'),
        (line(succeeded(call({"n": 10**30}), stop_reason="tool_use")), f'{{"n": {10**30}}}'),
    ],
)
def test_answers_in_odd_clothes(raw: bytes, said: str) -> None:
    """An answer that was paid for would be thrown away and paid again."""
    answer = read(raw)
    assert (answer.text, answer.fault) == (said, None)
    assert answer.text is not None
    answer.text.encode()  # can be stored


@pytest.mark.parametrize(
    ("result", "code", "again", "paid"),
    [
        (errored("invalid_request_error"), "invalid_request_error", False, False),
        (errored("not_found_error"), "not_found_error", False, False),
        (errored("request_too_large"), "request_too_large", False, False),
        (errored("api_error"), "api_error", True, True),
        (errored("overloaded_error"), "overloaded_error", True, True),
        (errored("rate_limit_error"), "rate_limit_error", True, True),
        (errored("timeout_error"), "timeout_error", True, True),
        (errored("news_error"), "news_error", True, True),
        (errored("authentication_error"), "authentication_error", True, False),
        (errored("permission_error"), "permission_error", True, False),
        (errored("billing_error"), "billing_error", True, False),
        (
            errored("rate_limit_error", error_code="enforced_spend_limit_reached"),
            "enforced_spend_limit_reached",
            True,
            False,
        ),
        (
            errored("invalid_request_error", "Your credit balance is too low to access the API"),
            "invalid_request_error",
            True,
            False,
        ),
        ({"type": "errored"}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ({"type": "errored", "error": "boom"}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        (
            {"type": "errored", "error": {"type": "api_error", "message": "m"}},
            "api_error",
            True,
            True,
        ),
        ({"type": "expired"}, ItemErrorCode.BATCH_EXPIRED, True, False),
        ({"type": "canceled"}, ItemErrorCode.BATCH_CANCELLED, True, False),
        ({"type": "postponed"}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ({**succeeded(text("a")), "type": "news"}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ({"type": ["a"]}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ({"type": "succeeded"}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ({}, ItemErrorCode.UNREADABLE_RESULT, True, True),
        (None, ItemErrorCode.UNREADABLE_RESULT, True, True),
        ([], ItemErrorCode.UNREADABLE_RESULT, True, True),
        (succeeded(), ItemErrorCode.EMPTY_ANSWER, True, True),
        (succeeded(text("")), ItemErrorCode.EMPTY_ANSWER, True, True),
        (succeeded(text(None)), ItemErrorCode.EMPTY_ANSWER, True, True),
        (succeeded(content=None), ItemErrorCode.EMPTY_ANSWER, True, True),
        (succeeded(text("ha"), stop_reason="max_tokens"), ItemErrorCode.TRUNCATED, False, True),
        (
            succeeded(stop_reason="model_context_window_exceeded"),
            ItemErrorCode.TRUNCATED,
            False,
            True,
        ),
        (succeeded(text("ha"), stop_reason="pause_turn"), ItemErrorCode.TRUNCATED, True, True),
        (succeeded(text("no"), stop_reason="refusal"), ItemErrorCode.REFUSED, False, True),
        (succeeded(text("a"), stop_reason="news"), ItemErrorCode.UNREADABLE_RESULT, False, True),
        (succeeded(text("a"), stop_reason=None), ItemErrorCode.UNREADABLE_RESULT, False, True),
        (succeeded(text("a"), call({}), stop_reason="tool_use"), "tool_use", False, True),
        (succeeded(call({}), call({}), stop_reason="tool_use"), "tool_use", False, True),
        (succeeded(call("x"), stop_reason="tool_use"), "tool_use", False, True),
    ],
)
def test_lines_without_a_usable_answer(result: Any, code: str, again: bool, paid: bool) -> None:
    """A failed row would count as answered, or be asked again though that is pointless."""
    fault = fault_of(line(result))
    assert (fault.code, fault.retryable, fault.consumes_attempt) == (code, again, paid)


def test_a_refusal_says_why() -> None:
    """Nobody could tell why a row has no answer."""
    details = {"type": "refusal", "category": "bio", "explanation": "no\nway"}
    fault = fault_of(line(succeeded(stop_reason="refusal", stop_details=details)))
    assert fault.message == "the model refused: bio: no way"


def test_an_answer_that_is_incomplete_keeps_its_text() -> None:
    """What was paid for could not even be looked at."""
    answer = read(line(succeeded(text("half an ans"), stop_reason="max_tokens")))
    assert (answer.text, answer.finish_reason) == ("half an ans", "max_tokens")


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_a_refused_parameter_says_how_to_opt_out(name: str) -> None:
    """A user whose raw bodies all fail would not learn of the version that takes them."""
    message = f"{name}: not supported as of API version 2026-10-21"
    fault = fault_of(line(errored("invalid_request_error", message)))
    assert fault.message.startswith(message)
    assert 'api_version="2023-06-01"' in fault.message
    other = fault_of(line(errored("invalid_request_error", "messages: too long")))
    assert "api_version" not in other.message


def test_the_request_of_an_error_is_told() -> None:
    """Support could not be asked about a failed row."""
    assert read(line(errored("api_error"))).request_id == "req_1"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r",
        b"\x00\x00",
        b"null",
        b"[1]",
        b'"text"',
        b'{"custom_id":null}',
        b'{"custom_id":7}',
        b'{"custom_id":NaN}',
        b'{"custom_id":"\xff"}',
        line(succeeded(text("cut")))[:-20],
        b"[" * 200_000,
        b'{"custom_id":"a","n":' + b"1" * 5_000 + b"}",
    ],
)
def test_lines_that_cannot_be_read(raw: bytes) -> None:
    """One bad line would make all answers of a batch unreadable."""
    assert decode_line(raw) is None


def test_an_input_of_absurd_depth() -> None:
    """One answer would crash the collection of a whole batch."""
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    raw = line(succeeded(call(0), stop_reason="tool_use")).replace(
        b'"input": 0', b'"input":' + deep
    )
    answer = decode_line(raw)
    assert answer is None or answer.text or answer.fault


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        ("12", 12),
        (12.0, 12),
        (-3, 0),
        (True, 0),
        (10**30, 0),
        (2**32, 0),
        ("x", 0),
        (None, 0),
        ([], 0),
    ],
)
def test_token_counts(tokens: Any, count: int) -> None:
    """Costs would be wrong, or a number that no column holds would stop a run."""
    usage = {"input_tokens": tokens, "cache_read_input_tokens": tokens, "output_tokens": 1}
    answer = read(line(succeeded(text("a"), usage=usage)))
    assert (answer.input_tokens, answer.cached_input_tokens) == (2 * count, count)


@pytest.mark.parametrize("usage", [None, [], "x", {"output_tokens_details": 3}])
def test_usage_of_any_shape(usage: Any) -> None:
    """An answer would be lost for the sake of its bill."""
    assert read(line(succeeded(text("a"), usage=usage))).text == "a"


@given(JSON)
def test_any_json_is_survived(value: Any) -> None:
    """A new shape would crash the run that reads it."""
    decode_line(json.dumps(value).encode())
    for result in (value, succeeded(value), succeeded(text(value)), errored(value, value)):
        assert msgspec.json.encode(read(line(result)))
    fields = ("content", "stop_reason", "stop_details", "usage", "model", "id")
    for stop in ("refusal", "tool_use", "end_turn"):
        for field in fields:
            changed = {"stop_reason": stop, field: value}
            assert msgspec.json.encode(read(line(succeeded(text("a"), **changed))))
        read(line(succeeded(call(value), stop_reason=stop)))
    for error in (value, {"error": value}, {"error": {"error": value}}, {"details": value}):
        assert fault_of(line({"type": "errored", "error": error})).message
    read(line({"type": value, "message": value}))


@given(st.binary(max_size=100))
def test_any_bytes_are_survived(raw: bytes) -> None:
    """One line of garbage would make all answers of a batch unreadable."""
    for each in (raw, b'{"custom_id":"a-0","result":' + raw + b"}"):
        answer = decode_line(each)
        assert answer is None or answer.custom_id
