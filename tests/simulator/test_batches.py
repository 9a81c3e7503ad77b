"""The life of a batch: phases, counts, partial results, limits, validation."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest


def test_phases_follow_the_clock(world: Any) -> None:
    """Broken if a poller met states out of order, or results before the end."""
    batch = world.submit("a", "b", "c", "d")
    seen = [batch.status]
    for seconds in (5, 5, 40, 40, 5, 5):
        world.sim.advance_time(seconds)
        now = world.client.batches.retrieve(batch.id)
        seen.append(now.status)
        assert bool(now.output_file_id) == (now.status == "completed")
    assert seen == [
        "validating", "validating", "in_progress", "in_progress", "finalizing", "finalizing",
        "completed",
    ]  # fmt: skip
    start = now.created_at
    stamps = (now.in_progress_at, now.finalizing_at, now.completed_at, now.expires_at)
    assert [stamp - start for stamp in stamps] == [10, 90, 100, 86_400]
    assert (now.failed_at, now.expired_at, now.cancelled_at) == (None, None, None)


def test_counts_and_usage(world: Any) -> None:
    """Broken if progress or the bill could not be read from the batch."""
    batch = world.submit(*"abcdefgh")
    assert batch.request_counts.total == 0
    world.sim.advance_time(50)
    half = world.client.batches.retrieve(batch.id).request_counts
    assert (half.total, half.completed, half.failed) == (8, 4, 0)
    done = world.finish(batch)
    assert (done.request_counts.completed, done.request_counts.failed) == (8, 0)
    bodies = [line["response"]["body"] for line in world.lines(done.output_file_id)]
    total = sum(body["usage"]["total_tokens"] for body in bodies)
    assert done.usage.total_tokens == total > 0
    assert done.model == "gpt-test"
    assert done.error_file_id is None


def test_lines_keep_ids_and_shape(world: Any) -> None:
    """Broken if an answer could not be joined with its request."""
    lines = world.answers("one", "two")
    assert [line["custom_id"] for line in lines] == ["aaaaaaaa-0", "aaaaaaaa-1"]
    assert all(line["id"].startswith("batch_req_") for line in lines)
    assert all(line["response"]["status_code"] == 200 for line in lines)
    assert all(line["error"] is None for line in lines)


def test_shuffled_output_is_complete_and_reproducible(worlds: Any) -> None:
    """Broken if the option lost lines, left the order alone, or made runs differ."""
    prompts = [str(number) for number in range(50)]
    orders = []
    for _ in range(2):
        lines = worlds(shuffle_output=True).answers(*prompts)
        orders.append([line["custom_id"] for line in lines])
    assert orders[0] == orders[1]
    assert orders[0] != sorted(orders[0], key=lambda key: int(key.split("-")[1]))
    assert len(set(orders[0])) == 50


def test_executed_once_whoever_looks(world: Any) -> None:
    """Broken if repeated polls executed, and billed, a batch again."""
    batch = world.submit("a", "b")
    done = world.finish(batch)
    again = world.client.batches.retrieve(batch.id)
    listed = world.client.batches.list().data[0]
    assert done == again == listed
    assert world.sim.ledger().executed() == 2


def test_executed_once_however_many_look_at_once(world: Any) -> None:
    """Broken if pollers at the same moment executed a batch several times."""
    batch = world.submit(*(str(number) for number in range(500)))
    world.sim.advance_time(100)
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda _: world.client.batches.retrieve(batch.id), range(16)))
    assert {one.output_file_id for one in seen} == {seen[0].output_file_id}
    assert world.sim.ledger().executed() == 500


def test_cancel_keeps_what_was_executed(world: Any) -> None:
    """Broken if a cancelled batch lost paid answers, or executed more than its time allowed."""
    batch = world.submit(*"abcdefgh")
    world.sim.advance_time(50)
    cancelling = world.client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    assert cancelling.output_file_id is None
    done = world.finish(batch)
    assert done.status == "cancelled"
    assert len(world.lines(done.output_file_id)) == 4
    left = world.lines(done.error_file_id)
    assert [line["error"]["code"] for line in left] == ["batch_cancelled"] * 4
    assert all(line["response"] is None for line in left)
    assert world.sim.ledger().executed() == 4
    assert world.sim.ledger().faulted() == {"batch_cancelled": 4}


def test_cancel_before_validation_executes_nothing(world: Any) -> None:
    """Broken if a batch cancelled at once cost anything."""
    batch = world.submit("a")
    world.client.batches.cancel(batch.id)
    done = world.finish(batch)
    assert (done.status, done.output_file_id, done.in_progress_at) == ("cancelled", None, None)
    assert world.sim.ledger().executed() == 0


def test_cancel_twice_and_too_late(world: Any) -> None:
    """Broken if a repeated cancel did harm, or a finished batch could be cancelled."""
    batch = world.submit("a")
    world.client.batches.cancel(batch.id)
    assert world.client.batches.cancel(batch.id).status == "cancelling"
    world.finish(batch)
    with pytest.raises(openai.ConflictError):
        world.client.batches.cancel(batch.id)


def test_batches_longer_than_a_day_expire(worlds: Any) -> None:
    """Broken if the 24 hour window did not apply."""
    world = worlds(batch_seconds=2 * 86_400, validating_seconds=0, finalizing_seconds=0)
    batch = world.submit("a", "b", "c", "d")
    world.sim.advance_time(86_400)
    done = world.client.batches.retrieve(batch.id)
    assert done.status == "expired"
    assert done.expired_at == done.expires_at
    assert len(world.lines(done.output_file_id)) == 2


def test_list_is_newest_first_and_pages(world: Any) -> None:
    """Broken if a search for an orphan could miss it."""
    file_id = world.upload(b"{}\n")
    ids = [world.create(file_id).id for _ in range(23)]
    assert [batch.id for batch in world.client.batches.list(limit=7)] == ids[::-1]
    page = world.client.batches.list()
    assert len(page.data) == 20
    assert page.has_more
    assert page.data[0].metadata == {"batchor_run": "run"}
    with pytest.raises(openai.BadRequestError):
        world.client.batches.list(limit=101)


def test_unknown_batch(world: Any) -> None:
    """Broken if foreign ids were answered with anything but 404."""
    with pytest.raises(openai.NotFoundError, match="No batch found"):
        world.client.batches.retrieve("batch_foreign")
    with pytest.raises(openai.NotFoundError):
        world.client.batches.cancel("batch_foreign")


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": "/v1/nonsense"},
        {"completion_window": "7d"},
        {"input_file_id": ""},
        {"metadata": {"k": "v" * 513}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
        {"metadata": {str(number): "v" for number in range(17)}},
    ],
)
def test_creation_is_checked_at_once(world: Any, changes: dict[str, Any]) -> None:
    """Broken if a create passed here that the real API refuses."""
    request = {
        "input_file_id": "file-x",
        "endpoint": "/v1/responses",
        "completion_window": "24h",
        **changes,
    }
    with pytest.raises(openai.BadRequestError):
        world.client.batches.create(**request)


def _errors(world: Any, content: bytes, endpoint: str = "/v1/responses") -> list[Any]:
    done = world.finish(world.create(world.upload(content), endpoint=endpoint))
    assert done.status == "failed"
    assert done.failed_at == done.created_at + 10
    assert done.output_file_id is None
    assert world.sim.ledger().executed() == 0
    return [(error.code, error.line, error.param) for error in done.errors.data]


def test_missing_file_fails_later(world: Any) -> None:
    """Broken if create refused a missing file at once, which the real API does not."""
    done = world.finish(world.create("file-missing"))
    assert done.status == "failed"
    assert "Cannot find file" in done.errors.data[0].message


def test_invalid_json_names_its_line(world: Any, line: Any) -> None:
    """Broken if the client could not tell healthy lines from broken ones."""
    content = line("a-0", "x") + b"{broken\n" + line("a-2", "x") + b"\n"
    assert _errors(world, content) == [
        ("invalid_json_line", 2, None),
        ("invalid_json_line", 4, None),
    ]


def test_byte_order_mark_is_refused(world: Any, line: Any) -> None:
    """Broken if a file with a BOM passed, which the real API refuses."""
    assert _errors(world, b"\xef\xbb\xbf" + line("a-0", "x"))[0][0] == "invalid_json_line"


def test_duplicate_ids_are_refused(world: Any, line: Any) -> None:
    """Broken if two requests could share an id."""
    content = line("a-0", "x") + line("a-1", "x") + line("a-0", "y")
    assert _errors(world, content) == [("duplicate_custom_id", 3, "custom_id")]


def test_url_must_match_the_endpoint(world: Any, line: Any) -> None:
    """Broken if lines for another endpoint were executed."""
    content = line("a-0", "x") + line("a-1", "x", "/v1/chat/completions")
    assert _errors(world, content) == [("invalid_url", 2, "url")]


def test_models_must_not_be_mixed(world: Any, line: Any) -> None:
    """Broken if a batch could be for two models."""
    content = line("a-0", "x") + line("a-1", "x", model="other")
    assert _errors(world, content) == [("mismatched_model", 2, "body.model")]


@pytest.mark.parametrize(
    ("endpoint", "missing"),
    [
        ("/v1/responses", "input"),
        ("/v1/responses", "model"),
        ("/v1/chat/completions", "messages"),
        ("/v1/embeddings", "input"),
    ],
)
def test_required_parameters(world: Any, line: Any, endpoint: str, missing: str) -> None:
    """Broken if one line without its prompt did not fail the batch, as it really does."""
    broken = json.loads(line("a-1", "x", endpoint))
    del broken["body"][missing]
    content = line("a-0", "x", endpoint) + json.dumps(broken).encode() + b"\n"
    assert _errors(world, content, endpoint) == [
        ("missing_required_parameter", 2, f"body.{missing}")
    ]


def test_empty_file(world: Any) -> None:
    """Broken if an empty file made a batch that never fails."""
    assert _errors(world, b"") == [("empty_file", None, None)]


def test_too_many_requests(worlds: Any, line: Any) -> None:
    """Broken if the limit of requests were not kept."""
    world = worlds(max_requests_per_batch=2)
    content = b"".join(line(f"a-{number}", "x") for number in range(3))
    assert _errors(world, content) == [("too_many_tasks", 3, None)]


def test_token_limit_holds_over_batches_of_a_model(worlds: Any) -> None:
    """Broken if batches together could exceed the queue, or room were not given back."""
    world = worlds(enqueued_token_limit=200)
    first, second, third = (world.submit("x" * 400, run=str(number)) for number in range(3))
    other_model = world.submit("x" * 400, model="another")
    world.sim.advance_time(10)
    statuses = [
        world.client.batches.retrieve(batch.id).status
        for batch in (first, second, third, other_model)
    ]
    assert statuses == ["in_progress", "failed", "failed", "in_progress"]
    (error,) = world.client.batches.retrieve(second.id).errors.data
    assert error.code == "token_limit_exceeded"
    assert "Enqueued token limit reached for gpt-test in organization" in error.message
    assert "Limit: 200 enqueued tokens" in error.message
    world.finish(first)
    later = world.submit("x" * 400)
    world.sim.advance_time(10)
    assert world.client.batches.retrieve(later.id).status == "in_progress"
