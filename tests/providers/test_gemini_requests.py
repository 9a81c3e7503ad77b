"""Request lines of Gemini, against what its REST API takes."""

import base64
import hashlib
import json
from typing import Any

import pytest

from batchor_core.errors import ConfigurationError
from batchor_core.ids import custom_id
from batchor_core.model.items import File, Image, Message, PromptParts
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.gemini.requests import request_encoder
from batchor_core.providers.protocol import RequestEncoder

HOST = "generativelanguage.googleapis.com"
PNG = b"\x89PNG\r\n\x1a\n0000"
SCHEMA = CompiledSchema(
    name="Verdict",
    schema={
        "type": "OBJECT",
        "properties": {"why": {"type": "STRING"}, "answer": {"type": "STRING"}},
        "propertyOrdering": ["why", "answer"],
    },
    notes=(),
)


def config(**fields: Any) -> GeminiProviderConfig:
    """Configure a model on the Developer API."""
    return GeminiProviderConfig(**{"model": "gemini-test", "backend": "developer", **fields})


def encoder(
    *,
    system_prompt: str | None = None,
    schema: CompiledSchema | None = None,
    host: str = HOST,
    **fields: Any,
) -> RequestEncoder:
    """Return the encoder of a run."""
    return request_encoder(config(**fields), host=host, system_prompt=system_prompt, schema=schema)


def body_of(prompt: str | PromptParts, **fields: Any) -> Any:
    """Return the body of a prompt, decoded."""
    _, body = encoder(**fields).encode(prompt)
    assert b"\n" not in body
    return json.loads(body)


def embedder(**fields: Any) -> RequestEncoder:
    """Return the encoder of a run over embeddings."""
    return encoder(**{"model": "gemini-embedding-001", "endpoint": "embeddings", **fields})


def test_a_plain_prompt() -> None:
    """The provider would refuse the simplest of all requests."""
    assert body_of("hello") == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


def test_all_that_a_job_can_say() -> None:
    """Instructions, parameters or the schema would not arrive, or outside of generationConfig."""
    body = body_of(
        "hello",
        system_prompt="be brief",
        schema=SCHEMA,
        generation_config={"temperature": 0, "top_p": 0.5},
        request_params={"safetySettings": [{"category": "c", "threshold": "t"}]},
        max_output_tokens=99,
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "safetySettings": [{"category": "c", "threshold": "t"}],
        "generationConfig": {
            "temperature": 0,
            "topP": 0.5,
            "maxOutputTokens": 99,
            "responseMimeType": "application/json",
            "responseSchema": SCHEMA.schema,
        },
        "contents": [{"role": "user", "parts": [{"text": "hello"}]}],
    }


@pytest.mark.parametrize("dialect", ["responseSchema", "responseJsonSchema"])
def test_the_schema_keeps_its_order(dialect: str) -> None:
    """The model would fill in its verdict before its reasons."""
    _, body = encoder(schema=SCHEMA, schema_dialect=dialect).encode("x")
    assert f'"{dialect}":'.encode() in body
    assert body.index(b'"why"') < body.index(b'"answer"')
    assert list(json.loads(body)["generationConfig"]) == ["responseMimeType", dialect]


def test_a_line_and_its_parts() -> None:
    """A retry would cut out the wrong bytes, or send an id of the old chunk."""
    one = encoder(system_prompt="be brief")
    _, body = one.encode("hello")
    line = one.line(custom_id("abcdefgh", 12), body)
    assert json.loads(line) == {"key": "abcdefgh-12", "request": json.loads(body)}
    assert line.endswith(b"}\n")
    assert line[one.body_offset("abcdefgh-12") :].startswith(body)
    assert json.loads(one.relabel(line, "zyxwvuts"))["key"] == "zyxwvuts-12"


def test_a_line_for_vertex() -> None:
    """No answer could be told apart: Vertex AI returns nothing but the request."""
    one = encoder(backend="vertex", system_prompt="be brief")
    _, body = one.encode("hello")
    line = one.line(custom_id("abcdefgh", 12), body)
    request = json.loads(line)["request"]
    assert request == {"labels": {"custom_id": "abcdefgh-12"}, **json.loads(body)}
    assert line[one.body_offset("abcdefgh-12") + 1 :].startswith(body[1:])
    again = json.loads(one.relabel(line, "zyxwvuts"))["request"]["labels"]
    assert again == {"custom_id": "zyxwvuts-12"}


def test_few_shot_turns() -> None:
    """Examples would be refused (the role is called model here), or come in the wrong order."""
    turns = [Message(role="user", content="2+2"), Message(role="assistant", content="4")]
    body = body_of(PromptParts(prompt="3+3", messages=turns))
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "2+2"}]},
        {"role": "model", "parts": [{"text": "4"}]},
        {"role": "user", "parts": [{"text": "3+3"}]},
    ]


def test_pictures_and_documents() -> None:
    """Media would be refused, or lost from the prompt."""
    parts = [
        "look",
        Image(data=PNG),
        Image(url="https://host/cat.webp"),
        File(url="gs://bucket/a.pdf", media_type="application/pdf"),
        File(data=b"%PDF-1"),
    ]
    body = body_of(PromptParts(prompt=parts))
    assert body["contents"][0]["parts"] == [
        {"text": "look"},
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}},
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://host/cat.webp"}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/a.pdf"}},
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0x"}},
    ]


def test_parameters_of_one_item() -> None:
    """An item's own parameter would be lost, or stand beside the job's in the other spelling."""
    parts = PromptParts(prompt="x", params={"top_p": 0.1, "seed": 3})
    body = body_of(parts, generation_config={"topP": 0.9, "temperature": 1})
    assert body["generationConfig"] == {"topP": 0.1, "seed": 3, "temperature": 1}


@pytest.mark.parametrize("name", ["maxOutputTokens", "response_schema", "responseMimeType"])
def test_parameters_that_are_ours(name: str) -> None:
    """An item would override the output model, and its answers not be readable."""
    with pytest.raises(ValueError, match="set by the job itself"):
        encoder().encode(PromptParts(prompt="x", params={name: 1}))


@pytest.mark.parametrize(
    "body",
    [
        {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"topK": 1}},
        {"contents": [{"parts": [{"text": "x"}]}], "generation_config": {"top_k": 1}},
    ],
)
@pytest.mark.parametrize("named", [{}, {"model": "gemini-test"}, {"model": "models/gemini-test"}])
@pytest.mark.parametrize("backend", ["developer", "vertex"])
def test_raw_bodies(body: dict[str, Any], named: dict[str, str], backend: str) -> None:
    """The escape hatch would change what the user wrote, or not work on a backend."""
    one = encoder(backend=backend)
    _, encoded = one.encode(PromptParts(body={**body, **named}))
    assert json.loads(encoded) == body
    request = json.loads(one.line("abcdefgh-0", encoded))["request"]
    request.pop("labels", None)
    assert request == body


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"model": "gemini-other", "contents": []}, "names the model"),
        ({"labels": {"a": "b"}, "contents": []}, "labels"),
        ({}, "empty"),
        ({"model": "gemini-test"}, "empty"),
        ({"contents": [float("nan")]}, "not JSON"),
    ],
)
def test_raw_bodies_that_cannot_be_sent(body: dict[str, Any], why: str) -> None:
    """A whole batch would be refused for one row, or two rows get the same id."""
    with pytest.raises(ValueError, match=why):
        encoder().encode(PromptParts(body=body))


def test_keys_tell_requests_apart() -> None:
    """An answer of another model, host or endpoint would be reused for this one."""
    variants = [
        encoder(),
        encoder(model="gemini-other"),
        encoder(host="elsewhere"),
        encoder(system_prompt="be brief"),
        encoder(schema=SCHEMA),
        embedder(),
        embedder(task_type="CLUSTERING"),
    ]
    keys = [each.encode("x")[0] for each in variants]
    assert len(set(keys)) == len(variants)
    assert encoder(model="models/gemini-test").encode("x")[0] == keys[0]


def test_the_key_is_over_the_canonical_body() -> None:
    """Prompts that are given in another form would be paid again."""
    one = encoder(system_prompt="be brief")
    key, body = one.encode("hello")
    identity = f"gemini\0{HOST}\0gemini-test:generateContent\0".encode()
    assert key == hashlib.blake2b(identity + body, digest_size=16).digest()
    assert one.encode(PromptParts(prompt="hello", system_prompt="be brief")) == (key, body)
    assert one.encode(PromptParts(prompt=["hello"])) == (key, body)
    assert encoder().encode(PromptParts(prompt="hello", system_prompt="be brief"))[1] == body


def test_lone_surrogates_are_refused() -> None:
    """One bad row would make the whole file unreadable."""
    with pytest.raises(ValueError, match="surrogate"):
        encoder().encode("\ud800")


def test_embeddings() -> None:
    """Texts would be embedded for another purpose, or in another length."""
    one = embedder(dimensions=8, task_type="RETRIEVAL_DOCUMENT")
    assert one.inputs_per_request == 1
    _, body = one.encode("hello")
    assert json.loads(body) == {
        "outputDimensionality": 8,
        "taskType": "RETRIEVAL_DOCUMENT",
        "content": {"parts": [{"text": "hello"}]},
    }
    assert json.loads(one.line("abcdefgh-1", body))["key"] == "abcdefgh-1"
    assert one.encode(PromptParts(prompt="hello"))[1] == body
    _, titled = embedder().encode(PromptParts(prompt="x", params={"title": "T"}))
    assert json.loads(titled) == {"title": "T", "content": {"parts": [{"text": "x"}]}}
    raw = {"content": {"parts": [{"text": "raw"}]}, "task_type": "CLUSTERING"}
    assert json.loads(embedder().encode(PromptParts(body=raw))[1]) == raw


@pytest.mark.parametrize(
    "prompt",
    [
        PromptParts(prompt=["a", "b"]),
        PromptParts(prompt="x", messages=[Message(role="user", content="y")]),
        PromptParts(prompt="x", system_prompt="be brief"),
        PromptParts(prompt="x", params={"taskType": "CLUSTERING"}),
    ],
)
def test_what_embeddings_do_not_take(prompt: PromptParts) -> None:
    """Part of a prompt would be left out in silence."""
    with pytest.raises(ValueError, match=r"embeddings take|set by the job"):
        embedder().encode(prompt)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"schema": SCHEMA}, "output model"),
        ({"system_prompt": "be brief"}, "system prompt"),
        ({"backend": "vertex"}, "Developer API only"),
    ],
)
def test_jobs_that_embeddings_cannot_do(wanted: dict[str, Any], why: str) -> None:
    """A run would be paid for and then have no answers."""
    with pytest.raises(ConfigurationError, match=why):
        embedder(**wanted)
