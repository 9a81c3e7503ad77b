"""Result lines of chat, from OpenAI and from hosts that speak its protocol."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.openai.chat_results import decode_chat_line
from batchor_core.providers.openai.usual_lines import usual_chat_answer
from batchor_core.providers.protocol import Answer
from tests.providers.test_openai_results import JSON, line

USAGE = {
    "prompt_tokens": 11,
    "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
    "completion_tokens": 7,
    "completion_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def chat(content: Any = None, finish: Any = "stop", *, message: Any = None, **fields: Any) -> Any:
    """Return a body of one choice."""
    said = {"role": "assistant", "content": content, "refusal": None, **(message or {})}
    choice = {"index": 0, "message": said, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "m-1", "choices": [choice], **fields}


def read(raw: bytes) -> Answer:
    """Decode a line that names its item."""
    answer = decode_chat_line(raw)
    assert answer is not None
    assert answer.custom_id == "a-0"
    return answer


def part(text: Any, kind: str = "text") -> dict[str, Any]:
    """Return a part of a message."""
    return {"type": kind, "text": text}


def test_a_complete_answer() -> None:
    """Text, usage or model of every answer would be wrong."""
    usual = line(chat("yes", usage=USAGE))
    unusual = line(chat([part("yes")], usage=USAGE))
    assert usual_chat_answer(usual) == read(usual) == read(unusual)
    assert usual_chat_answer(unusual) is None
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
    "usage",
    [
        {"prompt_tokens": 11, "completion_tokens": 7},
        {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": None},
        {"prompt_tokens": 11, "completion_tokens": 7, "completion_tokens_details": {}},
        {"prompt_tokens": "11", "completion_tokens": 7.0, "prompt_tokens_details": [1]},
    ],
)
def test_usage_without_details(usage: Any) -> None:
    """Answers of hosts that count less closely would be lost, or cost nothing."""
    answer = read(line(chat("yes", usage=usage)))
    assert (answer.text, answer.fault) == ("yes", None)
    assert (answer.input_tokens, answer.output_tokens) == (11, 7)
    assert (answer.cached_input_tokens, answer.reasoning_tokens) == (0, 0)


@pytest.mark.parametrize("usage", [None, [], "x"])
def test_usage_of_any_shape(usage: Any) -> None:
    """An answer would be lost for the sake of its bill."""
    assert read(line(chat("a", usage=usage))).text == "a"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (chat([part("a"), part("b")]), "ab"),
        (chat(["a", "b"]), "ab"),
        (chat([part("a", "output_text"), {"text": "b"}]), "ab"),
        (chat([{"type": "thinking", "thinking": [part("hm")]}, part("a")]), "a"),
        (chat([{"type": "reasoning", "text": "hm"}, part("a")]), "a"),
        (chat("a", message={"reasoning_content": "hm", "tool_calls": []}), "a"),
        (chat("a", message={"refusal": "no"}), "a"),
        (chat("a", "tool_calls"), "a"),
        (chat("a", "eos"), "a"),
        (chat("a", None), "a"),
        (chat("a", 7, model=None), "a"),
        (chat("a\u2028b\u0085c"), "a\u2028b\u0085c"),
        (json.dumps(chat("as a text")), "as a text"),
        ({**chat("first"), "choices": chat("first")["choices"] * 2}, "first"),
    ],
)
def test_answers_in_odd_clothes(body: Any, text: str) -> None:
    """An answer that was paid for would be thrown away and paid again."""
    answer = read(line(body))
    assert (answer.text, answer.fault) == (text, None)


@pytest.mark.parametrize(
    ("body", "code", "retryable"),
    [
        (chat("ha", "length"), ItemErrorCode.TRUNCATED, False),
        (chat(None, "length"), ItemErrorCode.TRUNCATED, False),
        (chat("ha", "LENGTH"), ItemErrorCode.TRUNCATED, False),
        (chat("ha", "model_length"), ItemErrorCode.TRUNCATED, False),
        (chat("ha", "error"), ItemErrorCode.TRUNCATED, True),
        (chat("ha", "content_filter"), ItemErrorCode.CONTENT_FILTERED, False),
        (chat(None, message={"refusal": "no"}), ItemErrorCode.REFUSED, False),
        (chat([{"type": "refusal", "refusal": "no"}]), ItemErrorCode.REFUSED, False),
        (chat([{"type": "refusal"}]), ItemErrorCode.REFUSED, False),
        (chat(None, "tool_calls"), ItemErrorCode.EMPTY_ANSWER, False),
        (chat("", "function_call"), ItemErrorCode.EMPTY_ANSWER, False),
        (chat(None), ItemErrorCode.EMPTY_ANSWER, True),
        (chat(""), ItemErrorCode.EMPTY_ANSWER, True),
        (chat([part(None)]), ItemErrorCode.EMPTY_ANSWER, True),
        ({"choices": []}, ItemErrorCode.EMPTY_ANSWER, True),
        ({"choices": [None]}, ItemErrorCode.EMPTY_ANSWER, True),
        ({}, ItemErrorCode.EMPTY_ANSWER, True),
        ({"error": {"code": "server_error", "message": "m"}}, "server_error", True),
        ({"error": {"code": "invalid_prompt", "message": "m"}}, "invalid_prompt", False),
        ({"error": {"code": 502, "message": "m"}}, "502", True),
        ({"error": {"code": 400, "message": "m"}}, "400", False),
        ({"error": {"code": "insufficient_quota"}}, "insufficient_quota", True),
    ],
)
def test_bodies_without_a_usable_answer(body: Any, code: str, retryable: bool) -> None:
    """A failed row would count as answered, or be asked again though that is pointless."""
    fault = read(line(body)).fault
    assert isinstance(fault, ItemFault)
    assert (fault.code, fault.retryable) == (code, retryable)
    assert fault.message


def test_what_was_said_is_kept() -> None:
    """A user could not see why an answer was refused, or what there was of one."""
    assert read(line(chat("ha", "length", usage=USAGE))).text == "ha"
    refused = read(line(chat(None, message={"refusal": "I can't"}, usage=USAGE)))
    assert (refused.text, refused.output_tokens) == ("I can't", 7)


@given(JSON)
def test_any_json_is_survived(value: Any) -> None:
    """A host's new shape would crash the run that reads it."""
    decode_chat_line(json.dumps(value).encode())
    for raw in (
        line(value),
        line(chat(value)),
        line(chat([value, {"type": value, "text": value}])),
        line(chat("a", value, message={"refusal": value})),
        line({"choices": value, "usage": value, "model": value, "error": value}),
        line({"choices": [{"message": value}]}),
        line(chat("a"), status=value),
        line(chat("a"), response=value, error=value),
    ):
        answer = read(raw)
        assert answer.text or answer.fault
        assert msgspec.json.encode(answer)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(raw: bytes) -> None:
    """A damaged download would crash the run that reads it."""
    decode_chat_line(raw)
    decode_chat_line(b'{"custom_id":"a","response":{"status_code":200,"body":' + raw)
