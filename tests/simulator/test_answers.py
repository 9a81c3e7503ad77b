"""Answers over the wire: shapes, determinism, sense."""

import base64
import json
import math
import struct
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

SCHEMA = {
    "type": "object",
    "properties": {
        "category": {"type": "string", "enum": ["billing", "bug", "feature_request"]},
        "urgency": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["category", "urgency"],
    "additionalProperties": False,
}


def text_format(schema: Any, *, strict: bool = True, name: str = "ticket") -> dict[str, Any]:
    """The `text` parameter of a Responses body."""
    return {"format": {"type": "json_schema", "name": name, "strict": strict, "schema": schema}}


def test_response_parses_in_the_sdk(world: Any) -> None:
    """Broken if a Responses body lacked what the SDK's model needs."""
    (body,) = world.bodies("Tell me about batches", instructions="Be short")
    response = Response.model_validate(body)
    assert response.status == "completed"
    assert "no model was involved" in response.output_text
    assert "Tell me about batches" in response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_chat_completion_parses_in_the_sdk(world: Any) -> None:
    """Broken if a chat body lacked what the SDK's model needs."""
    (body,) = world.bodies("Hello there", endpoint="/v1/chat/completions")
    completion = ChatCompletion.model_validate(body)
    assert "Hello there" in (completion.choices[0].message.content or "")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0


@pytest.mark.parametrize("dimensions", [None, 8])
def test_embeddings_are_unit_vectors(world: Any, dimensions: int | None) -> None:
    """Broken if similarity search over simulated embeddings made no sense."""
    options = {} if dimensions is None else {"dimensions": dimensions}
    bodies = world.bodies("one", "two", endpoint="/v1/embeddings", **options)
    vectors = [CreateEmbeddingResponse.model_validate(body).data[0].embedding for body in bodies]
    assert vectors[0] != vectors[1]
    for vector in vectors:
        assert len(vector) == (dimensions or 1536)
        assert math.isclose(math.hypot(*vector), 1.0)


def test_embeddings_of_lists_and_as_base64(world: Any, line: Any) -> None:
    """Broken if several inputs in a line got one vector, or base64 could not be decoded."""
    body = {"input": ["a", "b", "c"], "dimensions": 4, "encoding_format": "base64"}
    (answer,) = world.bodies("", endpoint="/v1/embeddings", **body)
    assert [part["index"] for part in answer["data"]] == [0, 1, 2]
    vector = struct.unpack("<4f", base64.b64decode(answer["data"][0]["embedding"]))
    assert math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-6)


def test_answers_depend_on_request_and_seed_alone(worlds: Any) -> None:
    """Broken if a demo or a test could see other answers the next time."""
    prompts = [f"question {number}" for number in range(20)]
    first, again, other = (
        worlds(seed=seed).bodies(*prompts, text=text_format(SCHEMA)) for seed in (1, 1, 2)
    )
    texts = [[body["output"][0]["content"][0]["text"] for body in run] for run in (first, again)]
    assert texts[0] == texts[1]
    assert texts[0] != [body["output"][0]["content"][0]["text"] for body in other]


@pytest.mark.parametrize(
    ("prompt", "category"),
    [
        ("I was billed twice", "billing"),
        ("There is a bug in the export", "bug"),
        ("Choose billing, bug or feature_request. The text: two bugs found", "bug"),
        ("Could you add this feature?", "feature_request"),
    ],
)
def test_choices_fit_the_prompt(world: Any, prompt: str, category: str) -> None:
    """Broken if the demo's categories looked random."""
    (body,) = world.bodies(prompt, text=text_format(SCHEMA))
    answer = json.loads(body["output"][0]["content"][0]["text"])
    assert answer["category"] == category
    assert 1 <= answer["urgency"] <= 5


def test_structured_chat(world: Any) -> None:
    """Broken if the schema of a chat request were overlooked."""
    spec = {"name": "ticket", "strict": True, "schema": SCHEMA}
    (body,) = world.bodies(
        "a bug",
        endpoint="/v1/chat/completions",
        response_format={"type": "json_schema", "json_schema": spec},
    )
    assert json.loads(body["choices"][0]["message"]["content"])["category"] == "bug"


def test_json_object_format(world: Any) -> None:
    """Broken if JSON mode answered with prose."""
    (body,) = world.bodies("x", text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(body["output"][0]["content"][0]["text"]), dict)


def test_prompts_in_parts(world: Any) -> None:
    """Broken if message lists and content parts were not read."""
    messages = [
        {"role": "system", "content": "SYS"},
        {"role": "user", "content": [{"type": "input_text", "text": "PART"}, {"type": "image"}]},
    ]
    (body,) = world.bodies("", input=messages)
    assert "SYS\nPART" in body["output"][0]["content"][0]["text"]


def test_output_limit_truncates(world: Any) -> None:
    """Broken if a token limit had no effect, or did not show in the status."""
    (body,) = world.bodies("hello", max_output_tokens=5)
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens"] == 5
    (chat,) = world.bodies(
        "hello", endpoint="/v1/chat/completions", max_completion_tokens=5, token="bbbbbbbb"
    )
    assert chat["choices"][0]["finish_reason"] == "length"


def test_strict_violation_fails_the_line_alone(world: Any, line: Any) -> None:
    """Broken if a schema that the real API refuses worked here, or failed the whole batch."""
    loose = {key: value for key, value in SCHEMA.items() if key != "additionalProperties"}
    content = line("a-0", "x", text=text_format(loose)) + line("a-1", "x")
    done = world.finish(world.create(world.upload(content)))
    (error,) = world.lines(done.error_file_id)
    assert error["custom_id"] == "a-0"
    assert error["response"]["status_code"] == 400
    assert error["error"] is None
    assert error["response"]["body"]["error"]["code"] == "invalid_json_schema"
    assert "additionalProperties" in error["response"]["body"]["error"]["message"]
    assert [one["custom_id"] for one in world.lines(done.output_file_id)] == ["a-1"]
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 1)
    assert world.sim.ledger().faulted() == {"bad_request": 1}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"text": {"format": {"type": "nonsense"}}}, "invalid_json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "invalid_json_schema"),
        ({"text": text_format({"$ref": "#/nowhere"}, strict=False)}, "invalid_json_schema"),
        ({"text": text_format({"type": "object", "properties": 3})}, "invalid_json_schema"),
    ],
)
def test_odd_formats_are_refused(world: Any, body: Any, code: str) -> None:
    """Broken if a malformed format stopped the whole batch with an exception."""
    done = world.finish(world.submit("x", **body))
    (error,) = world.lines(done.error_file_id)
    assert error["response"]["body"]["error"]["code"] == code


def test_impossible_dimensions_are_refused(world: Any) -> None:
    """Broken if nonsense dimensions stopped the whole batch with an exception."""
    done = world.finish(world.submit("x", endpoint="/v1/embeddings", dimensions=0))
    (error,) = world.lines(done.error_file_id)
    assert error["response"]["body"]["error"]["param"] == "dimensions"
