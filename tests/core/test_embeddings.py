"""Embeddings: inputs that share requests, their vectors, and what goes wrong with one of them."""

import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import polars as pl
import pytest

from batchor_core import BatchItem, Run
from batchor_core.errors import ConfigurationError, SourceError
from batchor_core.model.policies import ChunkPolicy, RetryPolicy
from batchor_core.planning.result_schema import EMBEDDING_COLUMN
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.protocol import Answer, RawPart
from tests.core.world import World, check_conserved, check_paid_once, items, statuses

DIMENSIONS = 8
CONFIG = {"endpoint": "embeddings", "model": "text-embedding-3-small", "dimensions": DIMENSIONS}

Change = Callable[[list[bytes]], list[bytes] | None]


def embed(world: World, rows: Any = 6, **options: Any) -> Run:
    """Drive a run of embeddings to its end."""
    return world.run(rows, config=CONFIG, **options)


def requests_sent(world: World, run: Run) -> list[list[str]]:
    """The inputs of each request of each sealed chunk, in order."""
    found = []
    for chunk in world.runner.store.list_chunks(run.run_id):
        with world.runner.artifacts.local(chunk.requests) as path:
            lines = path.read_bytes().splitlines()
        found += [msgspec.json.decode(line)["body"]["input"] for line in lines]
    return found


def changing(change: Change, *, times: int = 10**6) -> Callable[[Any], OpenAIProvider]:
    """Connect to a provider whose vectors are changed, in the first few answers."""
    left = [times]

    class Changed(OpenAIProvider):
        def decode(self, part: RawPart, line: bytes) -> Answer | None:
            answer = super().decode(part, line)
            if answer is not None and answer.vectors is not None and left[0] > 0:
                left[0] -= 1
                answer.vectors = change(answer.vectors)
            return answer

    return Changed


def test_inputs_share_a_request_and_get_their_own_vectors(world: World) -> None:
    """A row would get its neighbour's vector, or each row be a request of its own."""
    run = embed(world, 6)
    assert run.status == "succeeded"
    assert requests_sent(world, run) == [[f"Prompt number {n};" for n in range(6)]]
    frame = run.results_frame().collect()
    assert frame.schema[EMBEDDING_COLUMN] == pl.Array(pl.Float32, DIMENSIONS)
    alone = embed(world, [BatchItem(item_id="x", payload="Prompt number 4;")], run_id="alone")
    same, other = (frame[EMBEDDING_COLUMN][n].to_list() for n in (4, 3))
    assert alone.results_frame().collect()[EMBEDDING_COLUMN][0].to_list() == same != other
    assert math.isclose(sum(x * x for x in same), 1.0, rel_tol=1e-5)
    assert run.results()[4].output == pytest.approx(same)
    check_conserved(run, 6)
    check_paid_once(world)


def test_shares_of_the_usage_add_up(world: World) -> None:
    """The table's tokens would not be those that the provider counted for the request."""
    run = embed(world, 7)
    frame = run.results_frame().collect()
    assert frame["batch_input_tokens"].sum() == run.summary().usage.input_tokens > 0
    assert frame["batch_input_tokens"].min() > 0
    assert frame["batch_output_tokens"].sum() == 0


def test_one_refused_input_does_not_take_its_neighbours_with_it(world: World) -> None:
    """A request fails as a whole: five good rows would be lost with a bad one."""
    world.sim.faults(
        {"kind": "line_error", "status": 400, "code": "bad_input", "message": "No.", "rounds": 1}
    )
    run = embed(world, 6)
    assert statuses(run) == {f"item-{n}": "ok" for n in range(6)}
    assert requests_sent(world, run)[1:] == [[f"Prompt number {n};"] for n in range(6)]
    assert [r.attempt_count for r in run.results()] == [1] * 6
    check_conserved(run, 6)


def test_an_input_that_is_refused_alone_fails(world: World) -> None:
    """A row that can never succeed would be sent until the rounds are used up."""
    world.sim.faults(
        {"kind": "line_error", "status": 400, "code": "bad_input", "message": "No.", "times": 7}
    )
    run = embed(world, 6)
    assert statuses(run) == {f"item-{n}": "bad_input" for n in range(6)}
    assert len(requests_sent(world, run)) == 7
    check_conserved(run, 6)


def test_a_transient_fault_is_an_attempt_of_each(world: World) -> None:
    """Retries would go on without bound."""
    world.sim.faults({"kind": "line_error", "status": 500})
    run = embed(world, 3, retry_policy=RetryPolicy(max_attempts=2, delay_s=1))
    assert [r.attempt_count for r in run.results()] == [2, 2, 2]
    assert run.status == "completed_with_failures"
    check_conserved(run, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda vectors: vectors[:-1], "2 vectors for 3 inputs"),
        (lambda vectors: [*vectors, vectors[0]], "4 vectors for 3 inputs"),
        (lambda vectors: [vector[:-4] for vector in vectors], "a vector of 7 dimensions, not 8"),
        (lambda vectors: [struct.pack("<8f", *[math.nan] * 8)] * len(vectors), "no numbers"),
        (lambda vectors: None, "0 vectors for 3 inputs"),
    ],
)
def test_vectors_that_cannot_be_right_are_never_stored(
    world: World, change: Change, message: str
) -> None:
    """A column of vectors would hold other rows' vectors, or none that a search can use."""
    runner = world.new_runner(connect=changing(change))
    run = runner.run_and_wait(
        world.job(3, config=CONFIG, retry_policy=RetryPolicy(max_attempts=1)), run_id="r"
    )
    assert statuses(run) == {f"item-{n}": "invalid_output" for n in range(3)}
    assert message in str(run.results()[0].error)
    assert run.results_frame().collect()[EMBEDDING_COLUMN].null_count() == 3
    check_conserved(run, 3)


def test_a_wrong_answer_is_asked_for_again(world: World) -> None:
    """One odd answer would fail all rows that share its request."""
    runner = world.new_runner(connect=changing(lambda vectors: vectors[1:], times=1))
    run = runner.run_and_wait(world.job(4, config=CONFIG), run_id="r")
    assert run.status == "succeeded"
    check_conserved(run, 4)


def test_chunks_split_between_inputs(world: World) -> None:
    """A chunk that is too large would be cut in the middle of a request's inputs."""
    world.sim.faults(
        {"kind": "http_error", "status": 413, "match": {"route": "files.create"}, "times": 1}
    )
    run = embed(world, 5)
    assert [len(inputs) for inputs in requests_sent(world, run)] == [5, 2, 3]
    check_conserved(run, 5)
    check_paid_once(world)


def test_chunk_policy_counts_inputs(world: World) -> None:
    """The provider's bound on inputs in a batch would be exceeded."""
    run = embed(world, 7, chunk_policy=ChunkPolicy(max_requests=3))
    assert [len(inputs) for inputs in requests_sent(world, run)] == [3, 3, 1]
    check_conserved(run, 7)


@pytest.mark.parametrize("option", [{"system_prompt": "Be brief."}])
def test_what_embeddings_cannot_have_is_refused(world: World, option: dict[str, Any]) -> None:
    """Instructions would be dropped without a word."""
    with pytest.raises(ConfigurationError, match="embeddings"):
        embed(world, 3, **option)
    assert world.batches() == 0


def test_an_empty_text_is_refused_before_anything_is_sent(world: World) -> None:
    """The provider would refuse the whole request, neighbours included."""
    rows = [*items(2), BatchItem(item_id="item-2", payload="")]
    with pytest.raises(SourceError, match=r"row 2.*'item-2'.*empty"):
        embed(world, rows)
    assert world.batches() == 0
