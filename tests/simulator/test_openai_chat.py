"""Chat and Responses requests with pictures and documents, and what they count as."""

import json
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
DATA = "data:image/png;base64," + "A" * 300_000


def body_of(world: Any, endpoint: str, **body: Any) -> dict[str, Any]:
    """The answer to one request."""
    request = {"model": "m", **body}
    line = {"custom_id": "a-0", "method": "POST", "url": endpoint, "body": request}
    content = json.dumps(line).encode() + b"\n"
    done = world.finish(world.create(world.upload(content), "run", endpoint))
    (answer,) = world.lines(done.output_file_id) or world.lines(done.error_file_id)
    found: dict[str, Any] = answer["response"]["body"]
    return found


def chat(*parts: Any) -> dict[str, Any]:
    """A chat body of one message."""
    return {"messages": [{"role": "user", "content": list(parts)}]}


def test_a_picture_counts_by_the_piece(world: Any) -> None:
    """Broken if a large picture counted as text, and a batch of few never fitted a queue."""
    text = {"type": "text", "text": "What is it?"}
    image = {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}
    answer = body_of(world, CHAT, **chat(text, image))
    assert "What is it?" in answer["choices"][0]["message"]["content"]
    assert 765 < answer["usage"]["prompt_tokens"] < 900
    parts = [{"type": "input_text", "text": "And?"}, {"type": "input_image", "image_url": DATA}]
    answer = body_of(world, RESPONSES, input=[{"role": "user", "content": parts}])
    assert 765 < answer["usage"]["input_tokens"] < 900


@pytest.mark.parametrize(
    ("size", "low", "high"), [(1_000, 1_000, 1_100), (4_000_000, 150_000, 160_000)]
)
def test_a_document_counts_by_its_size(world: Any, size: int, low: int, high: int) -> None:
    """Broken if documents were free, or counted letter by letter."""
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64," + "A" * size}
    answer = body_of(world, CHAT, **chat({"type": "file", "file": file}))
    assert low <= answer["usage"]["prompt_tokens"] <= high


def test_media_are_no_load_on_the_queue(worlds: Any) -> None:
    """Broken if a picture filled the queue that real tokens are counted for."""
    world = worlds(enqueued_token_limit=1_000)
    answer = body_of(world, CHAT, **chat({"type": "image_url", "image_url": {"url": DATA}}))
    assert answer["choices"]


def test_parts_of_the_other_endpoint_are_refused(world: Any) -> None:
    """Broken if a request that the real API refuses worked here."""
    answer = body_of(world, CHAT, **chat({"type": "input_text", "text": "x"}))
    assert answer["error"]["param"] == "messages"
    assert "'input_text'" in answer["error"]["message"]


def test_few_shot_messages_are_read(world: Any) -> None:
    """Broken if turns before the question were overlooked."""
    turns = [
        {"role": "system", "content": "SYS"},
        {"role": "user", "content": "Q1"},
        {"role": "assistant", "content": [{"type": "text", "text": "A1"}]},
        {"role": "user", "content": "Q2"},
    ]
    answer = body_of(world, CHAT, messages=turns)
    assert "SYS\nQ1\nA1\nQ2" in answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("endpoint", "field"), [(CHAT, "choices"), ("/v1/embeddings", "data")])
def test_a_failure_under_200_has_no_answer(world: Any, endpoint: str, field: str) -> None:
    """Broken if a scripted failure left an answer in place, that a client may rightly take."""
    world.sim.faults(kind="failed_body", code="server_error")
    asked = {"input": "x"} if field == "data" else {"messages": [{"role": "user", "content": "x"}]}
    answer = body_of(world, endpoint, **asked)
    assert (answer[field], answer["error"]["code"]) == ([], "server_error")
    assert world.sim.ledger().executed() == 0
