"""Embeddings over the wire: requests that many inputs share, their vectors, limits and ledger."""

import base64
import json
import math
import struct
from typing import Any

import pytest

EMBEDDINGS = "/v1/embeddings"


def floats(embedding: str) -> tuple[float, ...]:
    """A vector that came as base64."""
    content = base64.b64decode(embedding)
    return struct.unpack(f"<{len(content) // 4}f", content)


def packed(custom_id: str, *inputs: Any, **body: Any) -> bytes:
    """A line whose request several inputs share."""
    request = {"model": "m", "input": list(inputs), "encoding_format": "base64", **body}
    line = {"custom_id": custom_id, "method": "POST", "url": EMBEDDINGS, "body": request}
    return json.dumps(line).encode() + b"\n"


def submit(world: Any, *lines: bytes, run: str = "run") -> Any:
    """Create a batch of lines."""
    return world.create(world.upload(b"".join(lines)), run, EMBEDDINGS)


def vectors(world: Any, *lines: bytes) -> list[list[tuple[float, ...]]]:
    """The vectors of each line, in the order of the inputs."""
    done = world.finish(submit(world, *lines))
    return [
        [floats(part["embedding"]) for part in line["response"]["body"]["data"]]
        for line in world.lines(done.output_file_id)
    ]


def test_a_text_has_one_vector(world: Any) -> None:
    """Broken if a text that is sent again, beside other texts, got another vector."""
    first, again = vectors(
        world,
        packed("a-0", "one", "two", dimensions=8),
        packed("a-1", "three", "two", "one", dimensions=8),
    )
    assert first == [again[2], again[1]]
    assert len({*first, *again}) == 3
    assert all(math.isclose(math.hypot(*vector), 1.0, rel_tol=1e-6) for vector in again)


def test_another_model_has_other_vectors(world: Any) -> None:
    """Broken if a change of the model went unnoticed."""
    ((first,),) = vectors(world, packed("a-0", "one", dimensions=8))
    ((other,),) = vectors(world, packed("b-0", "one", dimensions=8, model="m2"))
    assert first != other


def test_fewer_dimensions_shorten_the_vector(world: Any) -> None:
    """Broken if a vector that one shortens differed from a short one that one asks for."""
    (long,), (short,) = vectors(world, packed("a-0", "one"), packed("a-1", "one", dimensions=4))
    assert len(long) == 1536
    norm = math.hypot(*long[:4])
    assert short == pytest.approx([value / norm for value in long[:4]], rel=1e-5)


def test_numbers_and_base64_say_the_same(world: Any) -> None:
    """Broken if a client that reads numbers saw other vectors."""
    lines = packed("a-0", "x", dimensions=5), packed("a-1", "x", dimensions=5, encoding_format=None)
    done = world.finish(submit(world, lines[0], lines[1].replace(b"null", b'"float"')))
    first, second = (
        line["response"]["body"]["data"][0]["embedding"]
        for line in world.lines(done.output_file_id)
    )
    assert floats(first) == pytest.approx(second, rel=1e-6)


def test_usage_has_no_output_tokens(world: Any) -> None:
    """Broken if vectors cost more than their inputs, or packing changed the bill."""
    done = world.finish(
        submit(world, packed("a-0", "one" * 40, "two" * 40), packed("a-1", "one" * 40))
    )
    first, second = (line["response"]["body"]["usage"] for line in world.lines(done.output_file_id))
    assert first == {"prompt_tokens": 60, "total_tokens": 60}
    assert second == {"prompt_tokens": 30, "total_tokens": 30}
    assert (done.usage.input_tokens, done.usage.output_tokens) == (90, 0)


@pytest.mark.parametrize("given", [[1, 2, 3], [[1, 2], [3]], ["a", [4]]])
def test_tokens_are_inputs_too(world: Any, given: Any) -> None:
    """Broken if a request that is made of tokens was taken for many requests, or refused."""
    done = world.finish(submit(world, packed("a-0", *given, dimensions=2)))
    (line,) = world.lines(done.output_file_id)
    expected = 1 if isinstance(given[0], int) else 2
    assert len(line["response"]["body"]["data"]) == expected


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (packed("a-0", "", "x"), None),
        (packed("a-0", {"no": "text"}), None),
        (packed("a-0", *["x"] * 2_049, dimensions=1), "invalid_value"),
        (packed("a-0", "x" * 1_300_000), "max_tokens_per_request"),
        (packed("a-0", "x", encoding_format="hex"), "invalid_value"),
        (packed("a-0", "x", dimensions=5_000), "invalid_value"),
    ],
    ids=["empty", "object", "many", "long", "encoding", "dimensions"],
)
def test_what_the_api_refuses_is_refused(world: Any, line: bytes, code: str | None) -> None:
    """Broken if a client packed more than the API takes, and only found out there."""
    done = world.finish(submit(world, line, packed("a-1", "fine", dimensions=1)))
    (error,) = world.lines(done.error_file_id)
    assert error["response"]["status_code"] == 400
    assert error["response"]["body"]["error"]["code"] == code
    assert len(world.lines(done.output_file_id)) == 1


def test_a_batch_has_a_limit_of_inputs(worlds: Any) -> None:
    """Broken if a batch of few lines could hold more inputs than the API takes."""
    world = worlds(max_requests_per_batch=3)
    assert world.finish(submit(world, packed("a-0", "a", "b", "c"))).status == "completed"
    done = world.finish(submit(world, packed("a-0", "a", "b"), packed("a-1", "c", "d")))
    assert done.status == "failed"
    assert (done.errors.data[0].code, done.errors.data[0].line) == ("too_many_tasks", 2)


def test_each_input_is_an_execution(world: Any) -> None:
    """Broken if an input that was paid twice hid behind its request."""
    world.finish(submit(world, packed("a-0", "one", "two", "two", dimensions=2)))
    ledger = world.sim.ledger()
    assert (ledger.executed(), ledger.distinct(), ledger.paid_twice()) == (3, 3, [])
    assert set(ledger.times_paid("run").values()) == {1}


def test_an_input_that_is_packed_otherwise_is_the_same(world: Any) -> None:
    """Broken if a double payment went unnoticed because the input had other company."""
    first = submit(world, packed("a-0", "one", "two", dimensions=2))
    second = submit(world, packed("b-7", "three", "two", dimensions=2))
    world.finish(first)
    (entry,) = world.sim.ledger().paid_twice()
    assert (entry.run, entry.times) == ("run", 2)
    assert sorted(entry.batches) == sorted([first.id, second.id])
    assert sorted(world.sim.ledger().times_paid("run").values()) == [1, 1, 2]


def test_a_failed_request_fails_all_its_inputs_once(world: Any) -> None:
    """Broken if a justified retry of inputs, each alone, was spoilt again or looked like waste."""
    world.sim.faults(kind="line_error", status=503, rounds=1)
    world.finish(submit(world, packed("a-0", "one", "two", dimensions=2)))
    alone = [packed(f"b-{row}", text, dimensions=2) for row, text in enumerate(("one", "two"))]
    done = world.finish(submit(world, *alone))
    assert len(world.lines(done.output_file_id)) == 2
    ledger = world.sim.ledger()
    assert (ledger.executed(), ledger.faulted()) == (2, {"line_error": 2})
    assert ledger.paid_twice() == []


def test_left_over_inputs_are_counted(world: Any) -> None:
    """Broken if what an expired batch did not come to was missing in the ledger."""
    world.sim.faults(kind="expire", fraction=0.5)
    submit(world, packed("a-0", "one", "two", dimensions=2), packed("a-2", "three", "four", "five"))
    world.sim.advance_time(2 * 86_400)
    ledger = world.sim.ledger()
    assert (ledger.executed(), ledger.faulted()) == (2, {"batch_expired": 3})
