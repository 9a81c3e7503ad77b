"""Request lines of chat, and what both endpoints that answer in words make of a conversation."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.ids import custom_id
from batchor_core.model.items import File, Image, Message, Part, PromptParts
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.chat_requests import ChatEncoder
from batchor_core.providers.openai.config import OWNED_PARAMS
from batchor_core.providers.openai.requests import ENDPOINT_PATHS, ResponsesEncoder, TextEncoder
from tests.providers.test_openai_requests import SCHEMA, TEXT

PNG = b"\x89PNG\r\n\x1a\nrest"
PDF = b"%PDF-1.7 rest"
ENCODERS = {"chat": ChatEncoder, "responses": ResponsesEncoder}
BOTH = pytest.mark.parametrize("endpoint", ENCODERS)


def encoder(endpoint: str = "chat", **fields: Any) -> TextEncoder:
    """Make an encoder that differs in what a test names."""
    given = {"host": "api.openai.com", "system_prompt": "be brief", "schema": None}
    own = {name: fields.pop(name) for name in given if name in fields}
    config = OpenAIProviderConfig(**{"model": "gpt-test", "endpoint": endpoint, **fields})
    return ENCODERS[endpoint](config, **{**given, **own})


def sent(coder: TextEncoder, prompt: str | PromptParts) -> dict[str, Any]:
    """Return the body of a prompt's line, held against the documented shape (facts 1.1)."""
    name = custom_id("abcdefgh", 7)
    _, body = coder.encode(prompt)
    line = coder.line(name, body)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    offset = coder.body_offset(name)
    assert line[offset : offset + len(body)] == body
    record = json.loads(line)
    assert list(record) == ["custom_id", "method", "url", "body"]
    assert record["custom_id"] == name
    assert (record["method"], record["url"]) == ("POST", ENDPOINT_PATHS[coder.endpoint])
    found: dict[str, Any] = record["body"]
    return found


def turns(coder: TextEncoder, prompt: PromptParts) -> Any:
    """Return the messages of a prompt's body."""
    return sent(coder, prompt)["messages" if coder.endpoint == "chat" else "input"]


def test_a_chat_line_has_the_documented_shape() -> None:
    """The provider would reject every batch."""
    coder = encoder(max_output_tokens=9, params={"temperature": 0}, schema=SCHEMA)
    body = sent(coder, "hello")
    spec = {"name": "verdict", "schema": SCHEMA.schema, "strict": True}
    assert body == {
        "model": "gpt-test",
        "max_completion_tokens": 9,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": spec},
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
    }
    assert list(body["response_format"]["json_schema"]["schema"]["properties"]) == [
        "reasoning",
        "answer",
    ]


@given(TEXT, TEXT)
def test_any_text_is_sent_as_it_is(prompt: str, system: str) -> None:
    """Somebody's text would be altered on its way to the model, or break the line."""
    coder = encoder(system_prompt=None)
    found = turns(coder, PromptParts(prompt=prompt, system_prompt=system or None))
    assert found[-1] == {"role": "user", "content": prompt}
    assert found[:-1] == ([{"role": "system", "content": system}] if system else [])


@BOTH
@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), TEXT), min_size=1, max_size=4), TEXT
)
def test_any_conversation_keeps_its_order(
    endpoint: str, messages: list[tuple[Any, str]], prompt: str
) -> None:
    """Examples would be shown to the model in another order, or by another speaker."""
    parts = PromptParts(
        prompt=prompt, messages=[Message(role=role, content=text) for role, text in messages]
    )
    found = turns(encoder(endpoint, system_prompt=None), parts)
    assert [(turn["role"], turn["content"]) for turn in found] == [*messages, ("user", prompt)]


def test_keys_tell_chat_requests_apart() -> None:
    """An answer to one question would be taken for the answer to another, at no cost."""
    coders = [
        encoder(),
        encoder("responses"),
        encoder(model="gpt-other"),
        encoder(host="other.host"),
        encoder(system_prompt=None),
        encoder(system_prompt="be verbose"),
        encoder(schema=SCHEMA),
        encoder(schema=replace(SCHEMA, name="other")),
        encoder(params={"temperature": 1}),
        encoder(max_output_tokens=5),
    ]
    prompts: list[str | PromptParts] = [
        "hello ",
        PromptParts(prompt=["hello"]),
        PromptParts(prompt="hello", messages=[Message(role="user", content="hello")]),
        PromptParts(prompt="hello", params={"temperature": 0.5}),
        PromptParts(prompt=["hello", Image(data=PNG)]),
        PromptParts(prompt=["hello", Image(data=PNG, detail="low")]),
    ]
    keys = [coder.encode("hello")[0] for coder in coders]
    keys += [encoder().encode(prompt)[0] for prompt in prompts]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 for key in keys)


@BOTH
def test_keys_do_not_depend_on_how_a_prompt_is_put(endpoint: str) -> None:
    """Everything would be paid again after a harmless change of a program."""
    coder = encoder(endpoint)
    assert coder.encode("a") == coder.encode(PromptParts(prompt="a", system_prompt="be brief"))
    image = [Image(data=PNG), Image(url=f"data:image/png;base64,{base64.b64encode(PNG).decode()}")]
    first, second = (coder.encode(PromptParts(prompt=["a", each])) for each in image)
    assert first == second


@BOTH
def test_relabelling_moves_only_the_custom_id(endpoint: str) -> None:
    """A retried row would be sent with another prompt, or under an id that nobody knows."""
    coder = encoder(endpoint)
    _, body = coder.encode(
        PromptParts(prompt='"abcdefgh"', messages=[Message(role="user", content="x")])
    )
    line = coder.line(custom_id("abcdefgh", 12), body)
    assert coder.relabel(line, "zzzzzzzz") == coder.line(custom_id("zzzzzzzz", 12), body)


def test_chat_media(tmp_path: Path) -> None:
    """The model would not see a picture, or see it in place of another."""
    (tmp_path / "a.png").write_bytes(PNG)
    content: list[Part] = [
        "look:",
        Image(path=tmp_path / "a.png", detail="high"),
        Image(url="https://host/b.jpg"),
        File(data=PDF, name="c.pdf"),
    ]
    (turn,) = turns(encoder(system_prompt=None), PromptParts(prompt=content))
    png, pdf = (base64.b64encode(data).decode() for data in (PNG, PDF))
    assert turn["content"] == [
        {"type": "text", "text": "look:"},
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{png}", "detail": "high"},
        },
        {"type": "image_url", "image_url": {"url": "https://host/b.jpg"}},
        {
            "type": "file",
            "file": {"filename": "c.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
        },
    ]


def test_responses_media(tmp_path: Path) -> None:
    """The model would not see a picture, or see it in place of another."""
    (tmp_path / "c.pdf").write_bytes(PDF)
    content: list[Part] = [
        "look:",
        Image(url="https://host/b.jpg", detail="low"),
        File(path=tmp_path / "c.pdf"),
        File(url="https://host/d.pdf"),
    ]
    (turn,) = turns(encoder("responses"), PromptParts(prompt=content))
    pdf = base64.b64encode(PDF).decode()
    assert turn["content"] == [
        {"type": "input_text", "text": "look:"},
        {"type": "input_image", "image_url": "https://host/b.jpg", "detail": "low"},
        {
            "type": "input_file",
            "filename": "document.pdf",
            "file_data": f"data:application/pdf;base64,{pdf}",
        },
        {"type": "input_file", "file_url": "https://host/d.pdf"},
    ]


def test_chat_takes_no_document_by_its_url() -> None:
    """Each row would fail at the provider, with a message that names no way out."""
    with pytest.raises(ValueError, match="path or data, or use the endpoint 'responses'"):
        encoder().encode(PromptParts(prompt=["sum up", File(url="https://host/d.pdf")]))


@BOTH
def test_what_the_assistant_says_is_text(endpoint: str) -> None:
    """A row with a picture in an example's answer would fail at the provider."""
    said = Message(role="assistant", content=["I see"])
    (_, turn, _) = turns(
        encoder(endpoint, system_prompt=None),
        PromptParts(prompt="q", messages=[Message(role="user", content="e"), said]),
    )
    assert turn["content"][0]["type"] == ("text" if endpoint == "chat" else "output_text")
    shown = Message(role="assistant", content=["I see", Image(data=PNG)])
    with pytest.raises(ValueError, match="only what the user says"):
        encoder(endpoint).encode(PromptParts(prompt="q", messages=[shown]))


@BOTH
@pytest.mark.parametrize(
    "part",
    [Image(path="/no/such/picture.png"), Image(data=b"?"), Image(url="data:text,hello")],
    ids=["missing", "unknown", "no base64"],
)
def test_media_that_cannot_be_sent(endpoint: str, part: Part) -> None:
    """A row would be sent without its picture, or the run break without saying where."""
    with pytest.raises(ValueError, match=r"cannot be read|not known|data: URL"):
        encoder(endpoint).encode(PromptParts(prompt=[part]))


@BOTH
def test_params_of_one_item(endpoint: str) -> None:
    """One row's parameters would be ignored, or be used for the others as well."""
    coder = encoder(endpoint, params={"temperature": 0, "seed": 1})
    own = sent(coder, PromptParts(prompt="a", params={"temperature": 1}))
    assert (own["temperature"], own["seed"]) == (1, 1)
    assert sent(coder, "a")["temperature"] == 0


@BOTH
@pytest.mark.parametrize("name", sorted(OWNED_PARAMS))
def test_params_of_one_item_that_the_job_owns(endpoint: str, name: str) -> None:
    """A row's prompt or model would silently be replaced by another."""
    with pytest.raises(ValueError, match=f"{name}: set by the job itself"):
        encoder(endpoint).encode(PromptParts(prompt="a", params={name: 1}))


@BOTH
def test_a_raw_body_is_sent_as_it_is(endpoint: str) -> None:
    """What a user wrote by hand would be altered, or be sent to no model."""
    body = {"stop": ["x"], "messages": [{"role": "user", "content": "by hand"}], "n": 1}
    coder = encoder(endpoint, schema=SCHEMA, params={"temperature": 0})
    assert sent(coder, PromptParts(body=body)) == {"model": "gpt-test", **body}
    assert sent(coder, PromptParts(body={**body, "model": "gpt-test"}))["model"] == "gpt-test"


@BOTH
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "gpt-other"}, "a batch has one, 'gpt-test'"),
        ({"stream": True}, "stream"),
        ({"seed": float("nan")}, "not JSON"),
    ],
)
def test_raw_bodies_that_cannot_be_sent(endpoint: str, body: dict[str, Any], message: str) -> None:
    """One row would make the provider reject the whole batch."""
    with pytest.raises(ValueError, match=message):
        encoder(endpoint).encode(PromptParts(body=body))
