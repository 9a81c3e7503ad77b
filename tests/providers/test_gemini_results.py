"""Result lines of Gemini, and what each of them means."""

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import ItemErrorCode
from batchor_core.providers.gemini.results import developer_answer, vertex_answer
from batchor_core.providers.protocol import Answer

USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 40,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 30,
    "toolUsePromptTokenCount": 5,
    "totalTokenCount": 142,
}


def response(
    *parts: dict[str, Any], finish: str | None = "STOP", usage: Any = USAGE, **more: Any
) -> dict[str, Any]:
    """Return a response of one candidate."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": "gemini-test-001",
        "responseId": "r1",
        **more,
    }


def developer(record: dict[str, Any]) -> Answer | None:
    """Decode a line of the Developer API."""
    return developer_answer(json.dumps({"key": "abcdefgh-1", **record}).encode())


def vertex(record: dict[str, Any]) -> Answer | None:
    """Decode a line of Vertex AI."""
    line = {
        "status": "",
        "processed_time": "2026-01-01T00:00:00.000+00:00",
        "request": {"labels": {"custom_id": "abcdefgh-1"}, "contents": []},
        "response": {},
        **record,
    }
    return vertex_answer(json.dumps(line).encode())


Decode = Callable[[dict[str, Any]], Answer | None]
both = pytest.mark.parametrize("decode", [developer, vertex])


def answer_to(decode: Decode, *parts: dict[str, Any], **more: Any) -> Answer:
    """Decode a line with a response of these parts."""
    answer = decode({"response": response(*parts, **more)})
    assert answer is not None
    assert answer.custom_id == "abcdefgh-1"
    return answer


@both
@pytest.mark.parametrize("usual", [True, False])
def test_a_complete_answer(decode: Decode, usual: bool) -> None:
    """An answer would be lost, or charged for other tokens than the provider counted."""
    odd = {} if usual else {"promptFeedback": {}, "embedding": None}
    parts = [{"text": "hello"}] if usual else [{"text": "hel"}, {"text": "lo"}]
    answer = answer_to(decode, *parts, **odd)
    assert answer == Answer(
        custom_id="abcdefgh-1",
        text="hello",
        finish_reason="stop",
        model="gemini-test-001",
        request_id="r1",
        input_tokens=105,
        cached_input_tokens=40,
        output_tokens=37,
        reasoning_tokens=30,
    )


@both
def test_thoughts_are_no_answer(decode: Decode) -> None:
    """The model's thoughts would be stored as its answer."""
    thought = {"text": "hmm", "thought": True}
    answer = answer_to(decode, thought, {"text": "yes", "thought": False})
    assert (answer.text, answer.fault) == ("yes", None)
    alone = answer_to(decode, thought)
    assert alone.text is None
    assert alone.fault is not None
    assert (alone.fault.code, alone.fault.retryable) == (ItemErrorCode.EMPTY_ANSWER, True)


@both
@pytest.mark.parametrize(
    ("finish", "code", "retryable"),
    [
        ("MAX_TOKENS", ItemErrorCode.TRUNCATED, False),
        ("SAFETY", ItemErrorCode.REFUSED, False),
        ("IMAGE_SAFETY", ItemErrorCode.REFUSED, False),
        ("PROHIBITED_CONTENT", ItemErrorCode.CONTENT_FILTERED, False),
        ("SPII", ItemErrorCode.CONTENT_FILTERED, False),
        ("BLOCKLIST", ItemErrorCode.CONTENT_FILTERED, False),
        ("RECITATION", ItemErrorCode.CONTENT_FILTERED, False),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call", True),
        ("MALFORMED_RESPONSE", "malformed_response", True),
        ("OTHER", "other", True),
        ("A_NEW_WORD", "a_new_word", True),
    ],
)
def test_finish_reasons(decode: Decode, finish: str, code: str, retryable: bool) -> None:
    """Half an answer would count as one (python-genai#1984), or a refusal be asked for again."""
    answer = answer_to(decode, {"text": "half an"}, finish=finish)
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.retryable) == (code, retryable)
    assert answer.fault.consumes_attempt
    assert answer.finish_reason == finish.lower()
    assert answer.output_tokens == 37


@both
def test_the_reason_in_words(decode: Decode) -> None:
    """Nobody could see why an answer was withheld."""
    record = response(finish="SAFETY")
    record["candidates"][0] |= {"finishMessage": "sexually explicit", "content": {}}
    answer = decode({"response": record})
    assert answer is not None
    assert answer.fault is not None
    assert "sexually explicit" in answer.fault.message


@both
@pytest.mark.parametrize(
    ("reason", "code"),
    [("SAFETY", ItemErrorCode.REFUSED), ("PROHIBITED_CONTENT", ItemErrorCode.CONTENT_FILTERED)],
)
def test_a_blocked_prompt_has_no_candidates(decode: Decode, reason: str, code: str) -> None:
    """A prompt that is blocked each time would be sent until the attempts are used up."""
    record = {"promptFeedback": {"blockReason": reason}, "usageMetadata": {"promptTokenCount": 9}}
    answer = decode({"response": record})
    assert answer is not None
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.retryable) == (code, False)
    assert answer.input_tokens == 9


@both
@pytest.mark.parametrize("record", [{}, {"response": None}, {"response": []}, {"response": "x"}])
def test_neither_response_nor_error(decode: Decode, record: dict[str, Any]) -> None:
    """A row without an answer would be lost, or be final."""
    answer = decode(record)
    assert answer is not None
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.retryable) == (ItemErrorCode.UNREADABLE_RESULT, True)


@both
@pytest.mark.parametrize("record", [{"candidates": []}, {"candidates": None}, {"x": 1}])
def test_a_response_without_anything_is_asked_for_again(
    decode: Decode, record: dict[str, Any]
) -> None:
    """A row would be final although nothing speaks against asking again."""
    answer = decode({"response": record})
    assert answer is not None
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.retryable) == (ItemErrorCode.EMPTY_ANSWER, True)


@pytest.mark.parametrize(
    ("error", "code", "retryable", "consumes"),
    [
        ({"code": 3, "message": "bad"}, "INVALID_ARGUMENT", False, False),
        ({"code": 8}, "RESOURCE_EXHAUSTED", True, True),
        ({"code": 13}, "INTERNAL", True, True),
        ({"code": 14}, "UNAVAILABLE", True, True),
        ({"code": 4}, "DEADLINE_EXCEEDED", True, True),
        ({"code": 7}, "PERMISSION_DENIED", True, False),
        ({"code": 16}, "UNAUTHENTICATED", True, False),
        ({"code": 1}, "CANCELLED", True, False),
        ({"code": "3"}, "INVALID_ARGUMENT", False, False),
        ({"code": 400, "status": "INVALID_ARGUMENT"}, "INVALID_ARGUMENT", False, False),
        ({"code": 400}, "INVALID_ARGUMENT", False, False),
        ({"code": 429}, "RESOURCE_EXHAUSTED", True, True),
        ({"code": 503}, "UNAVAILABLE", True, True),
        ({"status": "UNAVAILABLE"}, "UNAVAILABLE", True, True),
        ({"code": "INVALID_ARGUMENT"}, "INVALID_ARGUMENT", False, False),
        ({"error": {"code": 3}}, "INVALID_ARGUMENT", False, False),
        ({"code": 3, "details": [{"@type": "x", "reason": "y"}]}, "INVALID_ARGUMENT", False, False),
        ({"code": 3, "message": "API key expired."}, "INVALID_ARGUMENT", True, False),
        ({"code": 9, "message": "enable billing"}, "FAILED_PRECONDITION", True, False),
        ({"code": 9}, "FAILED_PRECONDITION", False, False),
        ({"code": 402}, "PERMISSION_DENIED", True, False),
        ({"code": 7, "message": "file x, or it may not exist"}, "NOT_FOUND", False, False),
        ({"code": 99}, "UNKNOWN", True, True),
        ("something went wrong", "UNKNOWN", True, True),
        ([1], "UNKNOWN", True, True),
        (True, "UNKNOWN", True, True),
    ],
)
def test_errors_of_lines(error: object, code: str, retryable: bool, consumes: bool) -> None:
    """A bad request would be sent again and again, or an outage be final (python-genai#2693)."""
    for record in ({"error": error}, {"response": {"error": error}}):
        answer = developer(record)
        assert answer is not None
        assert answer.fault is not None
        found = (answer.fault.code, answer.fault.retryable, answer.fault.consumes_attempt)
        assert found == (code, retryable, consumes)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        ("Bad Request: 400 the schema is too deep", "INVALID_ARGUMENT", False),
        ("Too Many Requests: 429 slow down", "RESOURCE_EXHAUSTED", True),
        ('{"error": {"code": 503}}', "UNAVAILABLE", True),
        ("Internal error occurred.", "UNKNOWN", True),
        ("Failed after 4000 tokens", "UNKNOWN", True),
    ],
)
def test_status_texts_of_vertex(status: str, code: str, retryable: bool) -> None:
    """A line with a status would count as an answer, or a bad request be sent again."""
    answer = vertex({"status": status, "response": {}})
    assert answer is not None
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.retryable) == (code, retryable)


def test_snake_case_and_counts_as_texts() -> None:
    """Lines in protobuf's other spelling would cost nothing, or be unreadable."""
    line = {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finish_reason": "STOP"}],
        "usage_metadata": {"prompt_token_count": "12", "candidates_token_count": "3"},
        "model_version": "m",
    }
    answer = developer({"response": line})
    assert answer is not None
    assert (answer.text, answer.fault, answer.model) == ("hi", None, "m")
    assert (answer.input_tokens, answer.output_tokens) == (12, 3)


@pytest.mark.parametrize("count", [3, "3"])
@pytest.mark.parametrize("usual", [True, False])
def test_an_embedding(count: object, usual: bool) -> None:
    """A vector would be stored as another one."""
    values = {"values": [0.5, -1, 0.25]}
    record: dict[str, Any] = {"embedding": values, "tokenCount": count}
    if not usual:
        record = {"embedding": values, "token_count": count}
    answer = developer({"response": record})
    assert answer is not None
    assert answer.vectors == [struct.pack("<3f", 0.5, -1, 0.25)]
    assert (answer.fault, answer.text, answer.input_tokens) == (None, None, 3)


@pytest.mark.parametrize("values", [None, [], {}, "abc", ["x"], [None], [1e300], {"a": 1}])
def test_embeddings_that_are_none(values: object) -> None:
    """A broken vector would end up in the results."""
    answer = developer({"response": {"embedding": {"values": values}, "tokenCount": 3}})
    assert answer is not None
    assert answer.vectors is None
    assert answer.fault is not None
    assert answer.fault.retryable


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"key":1,"response":{}}',
        b'{"response":{"candidates":[]}}',
        b'{"key":"\xff"}',
        b'{"request":{"labels":[]}}',
        b'{"key":"a","response":{"status',
    ],
)
def test_lines_that_name_no_row(line: bytes) -> None:
    """A broken line would be given to some row, or stop everything."""
    assert developer_answer(line) is None
    assert vertex_answer(line) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"hello"', b'"he\\ud800llo"'),
        (b'"promptTokenCount": 100', b'"promptTokenCount": 1e999'),
        (b'"promptTokenCount": 100', b'"promptTokenCount": NaN'),
        (b'"promptTokenCount": 100', b'"promptTokenCount": -1'),
        (b'"index": 0', b'"index": NaN'),
    ],
)
def test_answers_in_bad_json_are_read(old: bytes, new: bytes) -> None:
    """An answer that was paid for would be asked for again."""
    line = json.dumps({"key": "a-1", "response": response({"text": "hello"})}).encode()
    assert old in line
    answer = developer_answer(b"\xef\xbb\xbf" + line.replace(old, new, 1) + b"\r")
    assert answer is not None
    assert answer.fault is None
    assert (answer.text or "").startswith("he")
    json.dumps(answer.text).encode()


KEYS = st.sampled_from(
    [
        "key",
        "response",
        "error",
        "request",
        "labels",
        "custom_id",
        "status",
        "candidates",
        "content",
        "parts",
        "text",
        "thought",
        "finishReason",
        "promptFeedback",
        "blockReason",
        "usageMetadata",
        "promptTokenCount",
        "embedding",
        "values",
        "code",
        "message",
        "details",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["STOP", "SAFETY", "abcdefgh-1", "429", ""])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5)
)


@given(record=st.dictionaries(KEYS, VALUES))
def test_no_shape_breaks_the_decoders(record: dict[str, Any]) -> None:
    """One line of a shape that nobody thought of would stop a run."""
    line = json.dumps(record).encode()
    for answer in (developer_answer(line), vertex_answer(line), developer(record), vertex(record)):
        if answer is not None:
            assert answer.text or answer.vectors or answer.fault
            counts = (answer.input_tokens, answer.output_tokens, answer.reasoning_tokens)
            assert all(isinstance(count, int) and count >= 0 for count in counts)


@given(line=st.binary())
def test_no_bytes_break_the_decoders(line: bytes) -> None:
    """One broken line would stop a run."""
    assert developer_answer(line) is None
    assert vertex_answer(line) is None


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_vectors_survive_the_way(values: list[float]) -> None:
    """Similarities would be computed from other numbers than the provider's."""
    answer = developer({"response": {"embedding": {"values": values}, "tokenCount": 1}})
    assert answer is not None
    (vector,) = answer.vectors or []
    back = struct.unpack(f"<{len(values)}f", vector)
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(back, values, strict=True))
