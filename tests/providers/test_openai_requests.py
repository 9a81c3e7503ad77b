"""Request lines and keys of the Responses endpoint, and the configuration behind them."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from batchor_core.errors import ConfigurationError
from batchor_core.ids import custom_id
from batchor_core.model.items import PromptParts
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.openai import OpenAIEnqueueLimitConfig, OpenAIProviderConfig
from batchor_core.providers.openai.config import OWNED_PARAMS
from batchor_core.providers.openai.requests import ResponsesEncoder

SECRET = "sk-request-0123456789"
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


def encoder(
    *,
    host: str = "api.openai.com",
    system: str | None = "be brief",
    schema: CompiledSchema | None = SCHEMA,
    **config: Any,
) -> ResponsesEncoder:
    """Make an encoder that differs in what a test names."""
    settings = {"model": "gpt-test", "params": {"temperature": 0, "top_p": 1}, **config}
    return ResponsesEncoder(
        OpenAIProviderConfig(**settings), host=host, system_prompt=system, schema=schema
    )


def check_line(raw: bytes) -> dict[str, Any]:
    """Hold a line against the documented shape (facts 1.1); return its body."""
    assert raw.endswith(b"}\n")
    assert raw.count(b"\n") == 1
    record = json.loads(raw)
    assert list(record) == ["custom_id", "method", "url", "body"]
    assert (record["method"], record["url"]) == ("POST", "/v1/responses")
    body = record["body"]
    assert isinstance(body["model"], str)
    assert isinstance(body["input"], str)
    assert not body.get("stream")
    found: dict[str, Any] = body
    return found


def test_a_line_has_the_documented_shape() -> None:
    """The provider would reject every batch."""
    coder = encoder(max_output_tokens=9)
    _, body = coder.encode("hello")
    assert check_line(coder.line(custom_id("abcdefgh", 3), body)) == {
        "model": "gpt-test",
        "instructions": "be brief",
        "max_output_tokens": 9,
        "temperature": 0,
        "top_p": 1,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "verdict",
                "schema": SCHEMA.schema,
                "strict": True,
            }
        },
        "input": "hello",
    }


def test_the_schema_keeps_its_order() -> None:
    """A model would be asked for its verdict before its reasoning, and answer worse."""
    _, body = encoder().encode("x")
    schema = json.loads(body)["text"]["format"]["schema"]
    assert list(schema["properties"]) == ["reasoning", "answer"]


@given(TEXT, TEXT)
def test_any_text_is_sent_as_it_is(prompt: str, system: str) -> None:
    """Somebody's text would be altered on its way to the model, or break the line."""
    coder = encoder(system=None)
    _, body = coder.encode(PromptParts(prompt=prompt, system_prompt=system or None))
    sent = check_line(coder.line(custom_id("abcdefgh", 0), body))
    assert sent["input"] == prompt
    assert sent.get("instructions", "") == system


@pytest.mark.parametrize("prompt", ["a\ud800", PromptParts(prompt="x", system_prompt="\udfff")])
def test_a_lone_surrogate_is_refused(prompt: Any) -> None:
    """A text that cannot be sent would be found out only at the provider, or be altered."""
    with pytest.raises(ValueError, match="surrogates"):
        encoder().encode(prompt)


def test_the_parts_of_a_prompt() -> None:
    """The same request would get two keys, or an item's own system prompt be ignored."""
    coder = encoder()
    assert coder.encode("a") == coder.encode(PromptParts(prompt="a"))
    key, body = coder.encode(PromptParts(prompt="a", system_prompt="own"))
    assert json.loads(body)["instructions"] == "own"
    assert key != coder.encode("a")[0]


def test_keys_tell_requests_apart() -> None:
    """An answer to one question would be taken for the answer to another, at no cost."""
    flat = replace(SCHEMA, name="other")
    properties = {"answer": {"type": "boolean"}, "reasoning": {"type": "string"}}
    swapped = replace(SCHEMA, schema={**SCHEMA.schema, "properties": properties})
    coders = [
        encoder(),
        encoder(model="gpt-other"),
        encoder(host="other.host"),
        encoder(system=None),
        encoder(system="be verbose"),
        encoder(schema=None),
        encoder(schema=flat),
        encoder(schema=swapped),
        encoder(params={"temperature": 1, "top_p": 1}),
        encoder(params={}),
        encoder(max_output_tokens=5),
    ]
    keys = [coder.encode("hello")[0] for coder in coders] + [encoder().encode("hello ")[0]]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 for key in keys)


def test_keys_ignore_what_changes_no_answer() -> None:
    """Everything would be paid again after a key was rotated or a mapping written differently."""
    same = [
        encoder(),
        encoder(params={"top_p": 1, "temperature": 0}),
        encoder(api_key=SecretStr("sk-x"), timeout_s=5, quota_scope="team"),
    ]
    assert len({coder.encode("hello")[0] for coder in same}) == 1


def test_relabelling_moves_only_the_custom_id() -> None:
    """A retried row would be sent with another prompt, or under an id that nobody knows."""
    coder = encoder()
    _, body = coder.encode('"abcdefgh" ünï\u2028')
    line = coder.line(custom_id("abcdefgh", 12), body)
    moved = coder.relabel(line, "zzzzzzzz")
    assert moved == coder.line(custom_id("zzzzzzzz", 12), body)


def test_keys_are_the_same_in_every_process() -> None:
    """Another process would pay again for what this one knows the answer to."""
    program = (
        "from tests.providers.test_openai_requests import encoder\n"
        "params = {'metadata': {k: k for k in {'x', 'y', 'z'}}, 'seed': 1}\n"
        "print(encoder(params=params).encode('hello')[0].hex())"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(keys) == 1
    params = {"seed": 1, "metadata": {"z": "z", "y": "y", "x": "x"}}
    assert keys == {encoder(params=params).encode("hello")[0].hex() + "\n"}


@pytest.mark.parametrize("name", sorted(OWNED_PARAMS))
def test_params_that_the_job_owns(name: str) -> None:
    """A job's prompt or model would silently be replaced by another."""
    with pytest.raises(ConfigurationError, match=f"params: {name}: set by the job itself"):
        OpenAIProviderConfig(model="m", params={name: 1})


@pytest.mark.parametrize(
    "params",
    [{"a": float("nan")}, {"a": {1, 2}}, {"a": object()}, {"a": "\ud800"}, {"a": [float("inf")]}],
)
def test_params_that_are_no_json(params: dict[str, Any]) -> None:
    """A parameter would be sent as null, or every row fail while it is encoded."""
    with pytest.raises(ConfigurationError, match="params: not JSON"):
        OpenAIProviderConfig(model="m", params=params)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "OpenAIProviderConfig: model: Field required"),
        ({"model": ""}, "model: String should have at least 1 character"),
        ({"model": "m", "apikey": SECRET}, "apikey: Extra inputs are not permitted"),
        ({"model": SECRET, "endpoint": SECRET}, "endpoint: Input should be 'responses'"),
        ({"model": "m", "timeout_s": -1, "max_output_tokens": 0}, "; max_output_tokens: Input"),
        ({"model": "m", "base_url": "localhost:8000"}, "base_url: give an absolute URL"),
        ({"model": "m", "base_url": f"http://me:{SECRET}@h/v1"}, "base_url: the URL is stored"),
        ({"model": "m", "base_url": f"http://h/v1?key={SECRET}"}, "base_url: the URL is stored"),
        ({"model": "m", "enqueue_limit": {"max_tokens": -1}}, "max_tokens: Input should be"),
    ],
)
def test_mistakes_are_explained_in_one_line(fields: dict[str, Any], message: str) -> None:
    """A typing error would be explained by a page of text, with the key in the middle of it."""
    with pytest.raises(ConfigurationError) as caught:
        OpenAIProviderConfig(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), ConfigurationError)


def test_a_configuration_keeps_its_secret() -> None:
    """A key would be written to the store, a log or a Dagster page."""
    config = OpenAIProviderConfig(
        model="m",
        api_key=SecretStr(SECRET),
        base_url="https://host/v1",
        enqueue_limit=OpenAIEnqueueLimitConfig(max_tokens=5),
    )
    shown = f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
    assert SECRET not in shown
    again = OpenAIProviderConfig.model_validate_json(config.model_dump_json())
    assert again.model_dump() == config.model_dump()
    assert again.api_key is None
