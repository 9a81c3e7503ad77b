"""Request lines and keys of Anthropic's Messages."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.ids import custom_id
from batchor_core.model.items import File, Image, Message, PromptParts
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.anthropic import AnthropicProviderConfig
from batchor_core.providers.anthropic.requests import MessagesEncoder

SCHEMA = CompiledSchema(
    name="verdict",
    schema={
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "answer": {"type": "boolean"}},
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    },
    notes=(),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PNG = b"\x89PNG\r\n\x1a\nabc"
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def encoder(
    *,
    host: str = "api.anthropic.com",
    system: str | None = "be brief",
    schema: CompiledSchema | None = None,
    **config: Any,
) -> MessagesEncoder:
    """Make an encoder that differs in what a test names."""
    settings = {"model": "claude-test", "max_tokens": 64, **config}
    return MessagesEncoder(
        AnthropicProviderConfig(**settings), host=host, system_prompt=system, schema=schema
    )


def params_of(prompt: str | PromptParts, **settings: Any) -> dict[str, Any]:
    """Encode a prompt, check the line's frame, and return what is in it."""
    coder = encoder(**settings)
    _, body = coder.encode(prompt)
    raw = coder.line(custom_id("abcdefgh", 3), body)
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"}}\n")
    record = json.loads(raw)
    assert list(record) == ["custom_id", "params"]
    assert record["custom_id"] == "abcdefgh-3"
    assert raw[coder.body_offset("abcdefgh-3") :] == body + b"}\n"
    found: dict[str, Any] = record["params"]
    assert found == json.loads(body)
    return found


def test_a_line_has_the_documented_shape() -> None:
    """Every row of every batch would be refused when it is executed."""
    params = {"thinking": {"type": "disabled"}, "stop_sequences": ["x"]}
    found = params_of("hello", schema=SCHEMA, effort="low", message_params=params)
    assert found == {
        "model": "claude-test",
        "max_tokens": 64,
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
        "system": "be brief",
        "output_config": {
            "effort": "low",
            "format": {"type": "json_schema", "schema": SCHEMA.schema},
        },
        "messages": [{"role": "user", "content": "hello"}],
    }


def test_the_schemas_own_order_is_kept() -> None:
    """A model would give its verdict before the reasoning that should lead to it."""
    _, body = encoder(schema=SCHEMA).encode("hello")
    assert body.index(b'"reasoning"') < body.index(b'"answer"')


def test_nothing_is_sent_that_nobody_asked_for() -> None:
    """Empty instructions or formats would be refused."""
    found = params_of("hello", system=None)
    assert sorted(found) == ["max_tokens", "messages", "model"]
    assert found == params_of(PromptParts(prompt="hello"), system="")


@given(TEXT)
def test_a_plain_text_and_its_parts_are_one_request(text: str) -> None:
    """The same question would be asked and paid again for how it was written down."""
    coder = encoder()
    assert coder.encode(text) == coder.encode(PromptParts(prompt=text))
    assert json.loads(coder.encode(text)[1])["messages"][0]["content"] == text


def test_keys_tell_requests_apart() -> None:
    """A row would get the answer to another question, or be asked again though nothing changed."""
    same = {encoder(message_params=p).encode("a")[0] for p in ({"x": 1, "y": 2}, {"y": 2, "x": 1})}
    assert len(same) == 1
    others = [
        encoder(),
        encoder(host="other"),
        encoder(system="be long"),
        encoder(model="claude-other"),
        encoder(max_tokens=65),
        encoder(schema=SCHEMA),
        encoder(effort="low"),
        encoder(message_params={"x": 1}),
    ]
    assert len({each.encode("a")[0] for each in others}) == len(others)


def test_a_sealed_line_moves_to_another_chunk() -> None:
    """A retried row would be taken for one of another chunk."""
    coder = encoder()
    _, body = coder.encode("hello")
    line = coder.line("abcdefgh-12", body)
    assert coder.relabel(line, "zyxwvuts") == coder.line("zyxwvuts-12", body)


def test_an_items_own_words() -> None:
    """Examples, instructions or parameters of single rows would be lost or mixed up."""
    parts = PromptParts(
        prompt="now you",
        system_prompt="be kind",
        messages=[
            Message(role="user", content="two?"),
            Message(role="assistant", content=["2", "!"]),
        ],
        params={"thinking": {"type": "adaptive"}},
    )
    found = params_of(parts, message_params={"thinking": {"type": "disabled"}, "metadata": {}})
    assert found["system"] == "be kind"
    assert found["thinking"] == {"type": "adaptive"}
    assert found["metadata"] == {}
    assert found["messages"] == [
        {"role": "user", "content": "two?"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "!"}],
        },
        {"role": "user", "content": "now you"},
    ]


def test_what_is_the_same_for_all_rows_is_marked_for_the_cache() -> None:
    """Long instructions would be paid in full for every row."""
    examples = [Message(role="user", content="two?"), Message(role="assistant", content="2")]
    found = params_of(PromptParts(prompt="now you", messages=examples), prompt_cache="1h")
    assert found["system"] == [{"type": "text", "text": "be brief", **HOUR}]
    first, last, prompt = found["messages"]
    assert first["content"] == "two?"
    assert last["content"] == [{"type": "text", "text": "2", **HOUR}]
    assert prompt["content"] == "now you"


@pytest.mark.parametrize("content", ["", [], ["a", ""]])
def test_an_empty_example_is_not_marked(content: Any) -> None:
    """Anthropic refuses to cache an empty text: every row would fail."""
    examples = [Message(role="assistant", content=content)]
    found = params_of(PromptParts(prompt="a", messages=examples), prompt_cache="5m")
    assert "cache_control" not in json.dumps(found["messages"])


def test_pictures_and_documents() -> None:
    """Rows with media would be refused, or be answered without looking at them."""
    image = base64.b64encode(PNG).decode()
    pdf = base64.b64encode(b"%PDF-1").decode()
    parts = PromptParts(
        prompt=[
            "look:",
            Image(data=PNG, detail="low"),
            Image(url="https://e.org/a.png"),
            File(data=b"%PDF-1", name="a.pdf"),
            File(url="https://e.org/a.pdf"),
            File(data="grüße".encode(), name="notes.txt"),
            File(url=f"data:application/pdf;base64,{pdf}"),
        ]
    )
    (turn,) = params_of(parts)["messages"]
    of_pdf = {"type": "base64", "media_type": "application/pdf", "data": pdf}
    notes = {"type": "text", "media_type": "text/plain", "data": "grüße"}
    assert turn["content"] == [
        {"type": "text", "text": "look:"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": image},
        },
        {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}},
        {"type": "document", "source": of_pdf, "title": "a.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://e.org/a.pdf"}},
        {"type": "document", "source": notes, "title": "notes.txt"},
        {"type": "document", "source": of_pdf},
    ]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (Image(data=b"BM", media_type="image/bmp"), "reads no image/bmp"),
        (File(data=b"PK", media_type="application/zip"), "reads no application/zip"),
        (File(url="https://e.org/a.txt"), "fetches PDF documents only"),
        (File(data=b"\xff\xfe", name="a.txt"), "not in UTF-8"),
        (File(data=b"?"), "give media_type"),
        (Image(path=Path("/nowhere/a.png")), "cannot be read"),
    ],
)
def test_media_that_cannot_be_sent(part: Image | File, problem: str) -> None:
    """A row would be sent that can only fail, after hours."""
    with pytest.raises(ValueError, match=problem):
        encoder().encode(PromptParts(prompt=[part]))


def test_media_of_the_assistant() -> None:
    """A row would be sent that can only fail, after hours."""
    examples = [Message(role="assistant", content=[Image(data=PNG)])]
    with pytest.raises(ValueError, match="only what the user says"):
        encoder().encode(PromptParts(prompt="a", messages=examples))


@pytest.mark.parametrize(
    "name", ["max_tokens", "messages", "model", "output_config", "stream", "system"]
)
def test_owned_fields_are_refused(name: str) -> None:
    """One row would silently ask another model, or for a stream, which a batch cannot give."""
    with pytest.raises(ValueError, match=name):
        encoder().encode(PromptParts(prompt="a", params={name: 1}))


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_of_one_item(name: str) -> None:
    """A row would be sent that the API version refuses, which shows only when it is executed."""
    parts = [PromptParts(prompt="a", params={name: 1}), raw(**{name: 1})]
    for each in parts:
        with pytest.raises(ValueError, match='api_version="2023-06-01"'):
            encoder().encode(each)
        assert params_of(each, api_version="2023-06-01")[name] == 1


def raw(**fields: Any) -> PromptParts:
    """Make a body of the user's own."""
    messages = [{"role": "user", "content": "a"}]
    return PromptParts(body={"max_tokens": 5, "messages": messages, **fields})


def test_a_body_of_the_users_own() -> None:
    """The escape hatch would change what the user wrote."""
    assert params_of(raw(system="s"), schema=SCHEMA, message_params={"metadata": {}}) == {
        "model": "claude-test",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "a"}],
        "system": "s",
    }


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"max_tokens": 5, "model": "other"}, "the job 'claude-test'"),
        ({"max_tokens": 5, "stream": True}, "stream"),
        ({"messages": []}, "no max_tokens"),
        ({"max_tokens": float("nan")}, "not JSON"),
    ],
)
def test_a_body_that_cannot_be_sent(body: dict[str, Any], problem: str) -> None:
    """A row would be sent that can only fail, after hours."""
    with pytest.raises(ValueError, match=problem):
        encoder().encode(PromptParts(body=body))


def test_a_lone_surrogate_is_refused() -> None:
    """The whole request file would be one that nobody can read."""
    for prompt in ("\ud800", PromptParts(prompt=["\ud800"])):
        with pytest.raises(ValueError, match="surrogate"):
            encoder().encode(prompt)
