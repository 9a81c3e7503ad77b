"""Embeddings: pieces that share a request, and the vectors that come back."""

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.errors import ConfigurationError
from batchor_core.ids import custom_id
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.items import Image, Message, PromptParts
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.embeddings import EmbeddingsEncoder, decode_vectors
from batchor_core.providers.protocol import Answer
from tests.providers.test_openai_requests import SCHEMA, TEXT
from tests.providers.test_openai_results import JSON, line

TEXTS = TEXT.filter(bool)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def encoder(**fields: Any) -> EmbeddingsEncoder:
    """Make an encoder that differs in what a test names."""
    given = {"host": "api.openai.com", "system_prompt": None, "schema": None}
    own = {name: fields.pop(name) for name in given if name in fields}
    settings = {"model": "text-embedding-3-small", "endpoint": "embeddings", **fields}
    return EmbeddingsEncoder(OpenAIProviderConfig(**settings), **{**given, **own})


def test_a_line_has_the_documented_shape() -> None:
    """The provider would reject every batch."""
    coder = encoder(dimensions=256, params={"user": "me"})
    pieces = [coder.encode(text)[1] for text in ("one", "two")]
    raw = coder.line("abcdefgh-3", b",".join(pieces))
    assert raw.endswith(b"}\n")
    assert json.loads(raw) == {
        "custom_id": "abcdefgh-3",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {
            "model": "text-embedding-3-small",
            "dimensions": 256,
            "encoding_format": "base64",
            "user": "me",
            "input": ["one", "two"],
        },
    }
    unsaid = json.loads(encoder().line("abcdefgh-3", pieces[0]))["body"]
    assert "dimensions" not in unsaid  # some models refuse it


@given(st.lists(TEXTS, min_size=1, max_size=20), st.integers(0, 10**12))
def test_pieces_are_found_again(texts: list[str], row: int) -> None:
    """A row that is sent again would get another row's text, or break its line."""
    coder = encoder()
    pieces = [coder.encode(text)[1] for text in texts]
    name = custom_id("abcdefgh", row)
    raw = coder.line(name, b",".join(pieces))
    assert raw.count(b"\n") == 1
    assert json.loads(raw)["body"]["input"] == texts
    begin = coder.body_offset(name)
    for piece in pieces:
        assert raw[begin : begin + len(piece)] == piece
        begin += len(piece) + 1
    assert coder.relabel(raw, "zzzzzzzz") == coder.line(
        custom_id("zzzzzzzz", row), b",".join(pieces)
    )


def test_keys_tell_inputs_apart() -> None:
    """A text would get the vector of another, or of another model, at no cost."""
    coders = [
        encoder(),
        encoder(model="text-embedding-3-large"),
        encoder(host="other.host"),
        encoder(dimensions=1536),
        encoder(dimensions=8),
        encoder(params={"user": "me"}),
    ]
    keys = [coder.encode("hello")[0] for coder in coders] + [encoder().encode("hello ")[0]]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 for key in keys)
    assert encoder().encode("hello") == encoder().encode(PromptParts(prompt="hello"))


@pytest.mark.parametrize(
    ("dimensions", "most"), [(1, 2_048), (256, 2_048), (1536, 964), (3072, 482), (10**7, 1)]
)
def test_an_answer_stays_small(dimensions: int, most: int) -> None:
    """One line of an answer would fill the memory, or a request exceed what the API takes."""
    assert encoder(dimensions=dimensions).inputs_per_request == most


@pytest.mark.parametrize("fields", [{"system_prompt": "be brief"}, {"schema": SCHEMA}])
def test_instructions_are_refused(fields: dict[str, Any]) -> None:
    """A user would believe that instructions or an output model had an effect on vectors."""
    with pytest.raises(ConfigurationError, match="embeddings are vectors"):
        encoder(**fields)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "an empty text"),
        (PromptParts(prompt=""), "an empty text"),
        (PromptParts(prompt="a", system_prompt="s"), "a text alone"),
        (PromptParts(prompt="a", messages=[Message(role="user", content="b")]), "a text alone"),
        (PromptParts(prompt="a", params={"user": "x"}), "params of the configuration"),
        (PromptParts(prompt=["a"]), "one text a row"),
        (PromptParts(prompt=[Image(url="https://h/a.png")]), "no media"),
        (PromptParts(body={"input": "a"}), "its text as prompt"),
        ("a\ud800", "surrogates"),
    ],
)
def test_rows_that_cannot_be_sent(prompt: Any, message: str) -> None:
    """One row would make the provider refuse all that share its request."""
    with pytest.raises(ValueError, match=message):
        encoder().encode(prompt)


def vector(*values: float) -> bytes:
    """Return a vector as it is handed on."""
    return struct.pack(f"<{len(values)}f", *values)


def coded(*values: float) -> str:
    """Return a vector as it comes."""
    return base64.b64encode(vector(*values)).decode()


def entry(index: Any, embedding: Any) -> dict[str, Any]:
    """Return one vector of an answer."""
    return {"object": "embedding", "index": index, "embedding": embedding}


def body(*data: Any, **fields: Any) -> dict[str, Any]:
    """Return an answer's body."""
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return {"object": "list", "data": list(data), "model": "m-1", "usage": usage, **fields}


def read(raw: bytes) -> Answer:
    """Decode a line that names its item."""
    answer = decode_vectors(raw)
    assert answer is not None
    assert answer.custom_id == "a-0"
    return answer


@given(st.lists(st.lists(FLOAT32, min_size=1, max_size=5), min_size=1, max_size=6), st.randoms())
def test_vectors_come_in_the_order_of_their_inputs(values: list[list[float]], random: Any) -> None:
    """A row would get the vector of its neighbour."""
    expected = [vector(*each) for each in values]
    for shape in (list, lambda each: coded(*each)):
        data = [entry(index, shape(each)) for index, each in enumerate(values)]
        ordered = read(line(body(*data)))
        random.shuffle(data)
        assert read(line(body(*data))) == ordered
        assert ordered == Answer(
            custom_id="a-0", vectors=expected, model="m-1", request_id="req_1", input_tokens=7
        )


@pytest.mark.parametrize(
    "raw",
    [
        line(body({"embedding": [1.0, 2]})),
        line(body(entry(0, [1, 2.0]), usage=None)),
        line(body(entry("0", coded(1, 2)), model=None)),
        line(json.dumps(body(entry(0, [1, 2])))),
        line(body(entry(0, coded(1, 2)), error=None), error=None),
    ],
)
def test_vectors_in_odd_clothes(raw: bytes) -> None:
    """A vector that was paid for would be thrown away and paid again."""
    answer = read(raw)
    assert (answer.vectors, answer.fault) == ([vector(1, 2)], None)


ONE = coded(1.0)


@pytest.mark.parametrize(
    "data",
    [
        [],
        None,
        "x",
        [entry(0, ONE), entry(0, ONE)],
        [entry(0, ONE), entry(2, ONE)],
        [entry(1, ONE)],
        [entry(-1, ONE)],
        [entry(True, ONE), entry(0, ONE)],
        [entry(0, ONE), entry(None, ONE)],
        [{"embedding": ONE}, {"embedding": ONE}],
        [entry(0, ONE), None],
        [entry(0, "")],
        [entry(0, "AAA")],
        [entry(0, "AAAA")],
        [entry(0, "ÄÖÜß")],
        [entry(0, [])],
        [entry(0, [1.0, None])],
        [entry(0, [1.0, "2"])],
        [entry(0, [1e300])],
        [entry(0, [10**400])],
        [entry(0, [float("nan")])],
        [entry(0, {"a": 1})],
    ],
)
def test_vectors_that_cannot_be_told(data: Any) -> None:
    """A vector would be given to a row that it does not belong to, or break the run."""
    answer = read(line(body(data=data)))
    assert answer.vectors is None
    assert answer.fault is not None
    assert answer.fault.code == ItemErrorCode.UNREADABLE_RESULT
    assert (answer.fault.retryable, answer.fault.consumes_attempt) == (True, True)


def test_a_failure_is_named() -> None:
    """The reason of a failure would be hidden behind a missing vector."""
    error = {"error": {"message": "m", "code": "c"}}
    for raw in (line(error, 400), line({"error": {"message": "m", "code": "c"}})):
        answer = read(raw)
        assert answer.fault is not None
        assert (answer.fault.code, answer.fault.retryable) == ("c", False)


@given(JSON)
def test_any_json_is_survived(value: Any) -> None:
    """A host's new shape would crash the run that reads it."""
    decode_vectors(json.dumps(value).encode())
    for raw in (
        line(value),
        line(body(value)),
        line(body(entry(value, ONE))),
        line(body(entry(0, value))),
        line(body(entry(0, ONE), usage=value, model=value, error=value)),
        line(body(), response=value, error=value),
    ):
        answer = read(raw)
        assert (answer.vectors is None) != (answer.fault is None)
        assert msgspec.json.encode(answer)


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(raw: bytes) -> None:
    """A damaged download would crash the run that reads it."""
    decode_vectors(raw)
    decode_vectors(b'{"custom_id":"a","response":{"status_code":200,"body":' + raw)
