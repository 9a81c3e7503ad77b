"""The simulated Message Batches, through Anthropic's own SDK."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anthropic
import httpx2
import jsonschema
import pytest

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions

BATCH_SECONDS = 100.0
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "score": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["label", "score"],
    "additionalProperties": False,
}
DAY_S = 86_400.0


class AnthropicWorld:
    """A simulator whose time stands still, and a client without retries."""

    def __init__(self, **options: Any) -> None:
        settings = SimulatorOptions(**{"batch_seconds": BATCH_SECONDS, **options})
        self.sim = Simulator(settings, clock=SimulatorClock(monotonic=lambda: 0.0)).__enter__()
        self.client = anthropic.Anthropic(
            base_url=self.sim.anthropic_base_url, api_key="sk-test", max_retries=0, timeout=20
        )

    def close(self) -> None:
        """Stop both."""
        self.client.close()
        self.sim.close()

    def submit(self, *prompts: str, token: str = "aaaaaaaa", **params: Any) -> Any:
        """Create a batch with a request for each prompt."""
        return self.client.messages.batches.create(
            requests=[
                request(f"{token}-{row}", prompt, **params) for row, prompt in enumerate(prompts)
            ]
        )

    def finish(self, batch: Any) -> Any:
        """Jump to the end of the batch."""
        self.sim.advance_time(BATCH_SECONDS)
        return self.client.messages.batches.retrieve(batch.id)

    def raw(self, batch: Any) -> bytes:
        """Return the bytes of a batch's results."""
        headers = {"authorization": "Bearer k", "anthropic-version": "2026-10-21"}
        with httpx2.Client(trust_env=False, headers=headers) as http:
            return http.get(batch.results_url).raise_for_status().content

    def results(self, *prompts: str, **params: Any) -> dict[str, dict[str, Any]]:
        """Return the results for prompts, by the row part of their ids."""
        raw = self.raw(self.finish(self.submit(*prompts, **params)))
        records = [json.loads(line) for line in raw.split(b"\n") if line]
        return {record["custom_id"].partition("-")[2]: record["result"] for record in records}


def request(custom_id: str, prompt: str, **params: Any) -> Any:
    """Make one request of a batch."""
    messages = [{"role": "user", "content": prompt}]
    given = {"model": "claude-test", "max_tokens": 64, "messages": messages, **params}
    return {"custom_id": custom_id, "params": given}


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes worlds with options of the test's choice."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    opened: list[AnthropicWorld] = []

    def make(**options: Any) -> AnthropicWorld:
        opened.append(AnthropicWorld(**options))
        return opened[-1]

    yield make
    for world in opened:
        world.close()


@pytest.fixture
def world(worlds: Any) -> AnthropicWorld:
    """A world with default options."""
    made: AnthropicWorld = worlds()
    return made


def refused(status: int) -> Any:
    """Expect an error of a status."""
    return pytest.raises(anthropic.APIStatusError, check=lambda error: error.status_code == status)


def test_the_life_of_a_batch(world: AnthropicWorld) -> None:
    """A client that works with the simulator would not work with Anthropic."""
    batch = world.submit("one", "two")
    assert batch.processing_status == "in_progress"
    assert batch.request_counts.to_dict() == {
        "processing": 2,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    assert (batch.ended_at, batch.results_url, batch.archived_at) == (None, None, None)
    assert (batch.expires_at - batch.created_at).total_seconds() == DAY_S
    ended = world.finish(batch)
    assert ended.processing_status == "ended"
    assert ended.request_counts.processing == 0
    assert ended.request_counts.succeeded == 2
    assert (ended.ended_at - ended.created_at).total_seconds() == BATCH_SECONDS
    results = {
        each.custom_id: each.result for each in world.client.messages.batches.results(batch.id)
    }
    assert sorted(results) == ["aaaaaaaa-0", "aaaaaaaa-1"]
    message: Any = results["aaaaaaaa-0"]
    assert message.type == "succeeded"
    assert "no model was involved" in message.message.content[0].text
    assert message.message.stop_reason == "end_turn"
    assert message.message.usage.service_tier == "batch"


def test_the_same_request_gets_the_same_answer(worlds: Any) -> None:
    """A demonstration would look different each time, and tests of others be flaky."""
    first, second, other = (worlds(**seed).results("a", "b") for seed in ({}, {}, {"seed": 1}))
    assert first == second
    assert first.keys() == other.keys()


def test_results_come_in_no_order(world: AnthropicWorld) -> None:
    """Code that relies on the order would pass every test, and mix up rows at Anthropic."""
    prompts = [f"p{number}" for number in range(50)]
    results = world.results(*prompts)
    assert sorted(results, key=int) != list(results)
    assert len(results) == 50


def test_structured_answers_conform(world: AnthropicWorld) -> None:
    """Every structured demonstration would fail in validation."""
    format_ = {"type": "json_schema", "schema": SCHEMA}
    results = world.results("a", "b", "c", output_config={"format": format_, "effort": "low"})
    for result in results.values():
        answer = json.loads(result["message"]["content"][0]["text"])
        jsonschema.validate(answer, SCHEMA)


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "f"}, {"type": "any"}])
def test_a_forced_tool_is_called(world: AnthropicWorld, choice: dict[str, str]) -> None:
    """Jobs that ask by way of a tool could not be tried."""
    tools = [{"name": "f", "input_schema": SCHEMA}]
    message = world.results("a", tools=tools, tool_choice=choice)["0"]["message"]
    assert message["stop_reason"] == "tool_use"
    (block,) = message["content"]
    assert (block["type"], block["name"]) == ("tool_use", "f")
    jsonschema.validate(block["input"], SCHEMA)


def test_max_tokens_cut_the_answer(world: AnthropicWorld) -> None:
    """Code for truncated answers could not be tried."""
    message = world.results("a", max_tokens=2)["0"]["message"]
    assert message["stop_reason"] == "max_tokens"
    assert message["usage"]["output_tokens"] == 2


def test_a_cached_prefix_is_written_once_and_then_read(world: AnthropicWorld) -> None:
    """Costs with a prompt cache could not be tried."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    system = [{"type": "text", "text": "long " * 100, "cache_control": mark}]
    usages = [r["message"]["usage"] for r in world.results("a", "b", "c", system=system).values()]
    written = [usage["cache_creation_input_tokens"] for usage in usages]
    read = [usage["cache_read_input_tokens"] for usage in usages]
    assert sorted(map(bool, written)) == [False, False, True]
    assert all(bool(w) is not bool(r) for w, r in zip(written, read, strict=True))
    assert all(usage["input_tokens"] > 0 for usage in usages)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"temperature": 1}, "temperature: not supported as of API version 2026-10-21"),
        ({"top_p": 1}, "top_p"),
        ({"top_k": 1}, "top_k"),
        ({"stream": True}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": ""}]}, "non-empty content"),
        ({"messages": [{"role": "user", "content": 5}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_text"}]}]}, "content"),
        ({"input": "hello"}, "input: Extra inputs are not permitted"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "Field required"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            "additionalProperties",
        ),
        (
            {"system": [{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}]},
            "empty text",
        ),
        (
            {"system": [{"type": "text", "text": "x", "cache_control": {"type": "e"}}] * 5},
            "maximum of 4",
        ),
    ],
)
def test_bad_params_show_only_in_the_results(
    world: AnthropicWorld, params: dict[str, Any], problem: str
) -> None:
    """Mistakes that Anthropic tells hours later would pass, or be told at once."""
    batch = world.submit("a", **params)
    ended = world.finish(batch)
    assert ended.request_counts.errored == 1
    (line,) = world.raw(ended).splitlines()
    result = json.loads(line)["result"]
    assert result["type"] == "errored"
    assert result["error"]["error"]["type"] == "invalid_request_error"
    assert problem in result["error"]["error"]["message"]
    assert world.sim.ledger().executed() == 0


def test_the_old_version_takes_sampling_parameters(world: AnthropicWorld) -> None:
    """The way to opt out could not be tried."""
    old = world.client.with_options(default_headers={"anthropic-version": "2023-06-01"})
    batch = old.messages.batches.create(requests=[request("a-0", "a", temperature=0)])
    assert world.finish(batch).request_counts.succeeded == 1


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {
                "type": "object",
                "properties": {f"p{n}": {"type": "string"} for n in range(25)},
                "additionalProperties": False,
            },
            "too many optional parameters",
        ),
        (
            {
                "type": "object",
                "properties": {f"p{n}": {"type": ["string", "null"]} for n in range(17)},
                "required": [f"p{n}" for n in range(17)],
                "additionalProperties": False,
            },
            "union types",
        ),
        ({"type": "array", "items": {"type": "object"}}, "additionalProperties"),
        ({"$ref": "#/$defs/nowhere"}, "schema"),
    ],
)
def test_schemas_that_anthropic_refuses(
    world: AnthropicWorld, schema: dict[str, Any], problem: str
) -> None:
    """An output model would work here, and every row fail at Anthropic."""
    config = {"format": {"type": "json_schema", "schema": schema}}
    result = world.results("a", output_config=config)["0"]
    assert problem in result["error"]["error"]["message"]


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ([], "at least 1 item"),
        ([request("a b", "x")], "custom_id"),
        ([request("a" * 65, "x")], "custom_id"),
        ([request("", "x")], "custom_id"),
        ([request("a", "x"), request("a", "y")], "not unique"),
        ([{"custom_id": "a"}], "params"),
        ([{"custom_id": "a", "params": "x"}], "object"),
        ([{"custom_id": "a", "params": {}, "method": "POST"}], "method"),
        ([{"custom_id": 7, "params": {}}], "custom_id"),
        ([request(str(number), "x") for number in range(4)], "at most 3 items"),
    ],
)
def test_a_bad_envelope_is_refused_at_once(worlds: Any, requests: Any, problem: str) -> None:
    """A create that Anthropic refuses would be accepted."""
    world = worlds(max_requests_per_batch=3)
    with refused(400) as caught:
        world.client.messages.batches.create(requests=requests)
    assert problem in caught.value.message
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    assert not world.client.messages.batches.list().data


def test_a_body_that_is_too_large(worlds: Any) -> None:
    """Splitting a chunk for its size could not be tried."""
    with refused(413) as caught:
        worlds(max_file_bytes=200).submit("x" * 500)
    assert caught.value.type == "request_too_large"


def test_keys(worlds: Any) -> None:
    """A wrong key would go unnoticed until it meets Anthropic."""
    world = worlds(api_key="sk-test")
    world.client.messages.batches.list()
    with refused(401) as caught:
        world.client.with_options(api_key="sk-other").messages.batches.list()
    assert caught.value.type == "authentication_error"
    url = f"{world.sim.base_url}/v1/messages/batches"
    version = {"anthropic-version": "2023-06-01"}
    with httpx2.Client(trust_env=False) as http:
        assert http.get(url, headers=version).status_code == 401
        assert http.get(url, headers={"x-api-key": "sk-test"}).status_code == 400
        assert http.get(url, headers={"x-api-key": "sk-test", **version}).status_code == 200


def test_pages(world: AnthropicWorld) -> None:
    """Batches behind the first page would be lost to a client that pages as Anthropic wants."""
    ids = [world.submit(f"p{number}").id for number in range(5)][::-1]
    batches = world.client.messages.batches
    assert [batch.id for batch in batches.list(limit=2)] == ids
    first = batches.list(limit=2)
    assert (first.first_id, first.last_id, first.has_more) == (ids[0], ids[1], True)
    assert [batch.id for batch in batches.list(limit=2, after_id=ids[2]).data] == ids[3:]
    before = batches.list(limit=2, before_id=ids[3])
    assert [batch.id for batch in before.data] == ids[1:3]
    assert before.has_more
    assert not batches.list(limit=3, before_id=ids[3]).has_more
    for query in ({"limit": 0}, {"limit": 1001}, {"after_id": "x"}, {"before_id": "x"}):
        with refused(400):
            batches.list(**query)
    with refused(400):
        batches.list(after_id=ids[0], before_id=ids[1])


def test_an_empty_list(world: AnthropicWorld) -> None:
    """The first look into an account would fail."""
    page = world.client.messages.batches.list()
    assert (page.data, page.first_id, page.last_id, page.has_more) == ([], None, None, False)


def test_cancelling_keeps_what_is_done(world: AnthropicWorld) -> None:
    """Partial results of cancelled batches could not be tried."""
    batch = world.submit(*[f"p{number}" for number in range(10)])
    world.sim.advance_time(45)  # of 90 seconds of work
    cancelled = world.client.messages.batches.cancel(batch.id)
    assert cancelled.processing_status == "canceling"
    assert cancelled.cancel_initiated_at is not None
    assert cancelled.request_counts.processing == 10
    ended = world.finish(batch)
    counts = ended.request_counts
    assert (ended.processing_status, counts.succeeded, counts.canceled) == ("ended", 5, 5)
    kinds = [json.loads(line)["result"]["type"] for line in world.raw(ended).splitlines()]
    assert (kinds.count("succeeded"), kinds.count("canceled")) == (5, 5)
    assert world.sim.ledger().executed() == 5
    with refused(400):
        world.client.messages.batches.cancel(batch.id)


def test_what_takes_longer_than_a_day_expires(worlds: Any) -> None:
    """Partial results of expired batches could not be tried."""
    world = worlds(batch_seconds=4 * DAY_S)
    batch = world.submit(*[f"p{number}" for number in range(8)])
    world.sim.advance_time(DAY_S)
    counts = world.client.messages.batches.retrieve(batch.id).request_counts
    assert (counts.succeeded, counts.expired) == (2, 6)


def test_deleting(world: AnthropicWorld) -> None:
    """Cleaning up after a run could not be tried."""
    batch = world.submit("a")
    with refused(400):
        world.client.messages.batches.delete(batch.id)
    ended = world.finish(batch)
    assert world.client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    for call in (world.client.messages.batches.retrieve, world.client.messages.batches.delete):
        with refused(404):
            call(batch.id)
    with pytest.raises(httpx2.HTTPStatusError):
        world.raw(ended)
    assert not world.client.messages.batches.list().data
    assert world.sim.ledger().executed() == 1


def test_results_are_kept_for_29_days(world: AnthropicWorld) -> None:
    """Results that are archived could not be tried."""
    batch = world.finish(world.submit("a"))
    world.sim.advance_time(29 * DAY_S)
    archived = world.client.messages.batches.retrieve(batch.id)
    assert (archived.archived_at - archived.created_at).total_seconds() == 29 * DAY_S
    with pytest.raises(httpx2.HTTPStatusError):
        world.raw(batch)


def test_no_results_before_the_end(world: AnthropicWorld) -> None:
    """A client that asks too early would get half of the results and take them for all."""
    batch = world.submit("a")
    url = f"{world.sim.base_url}/v1/messages/batches/{batch.id}/results"
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    with httpx2.Client(trust_env=False) as http:
        assert http.get(url, headers=headers).status_code == 404


def test_the_queue_is_limited(worlds: Any) -> None:
    """Waiting for room in the account's queue could not be tried."""
    world = worlds(enqueued_request_limit=3)
    first = world.submit("a", "b")
    with refused(429) as caught:
        world.submit("c", "d", token="bbbbbbbb")
    assert "limit of 3 batch requests in the processing queue" in caught.value.message
    world.finish(first)
    world.submit("c", "d", token="bbbbbbbb")


def test_times_are_rfc_3339(world: AnthropicWorld) -> None:
    """Times with nanoseconds, as Anthropic may send them, could not be tried."""
    batch = world.client.messages.batches.with_raw_response.create(requests=[request("a-0", "a")])
    told = json.loads(batch.http_response.content)["created_at"]
    assert told.endswith(".000000000Z")
    now = world.sim.state.clock.unix(world.sim.state.clock.now())
    assert datetime.fromisoformat(told) == datetime.fromtimestamp(now, UTC)


def test_the_ledger_sees_what_is_paid_twice(world: AnthropicWorld) -> None:
    """A double payment would go unnoticed."""
    world.finish(world.submit("a", "b"))
    world.finish(world.submit("a", token="bbbbbbbb"))
    world.finish(world.submit("other", token="cccccccc"))
    ledger = world.sim.ledger()
    assert (ledger.executed(), ledger.distinct()) == (4, 3)
    (twice,) = ledger.paid_twice()
    assert (twice.row, twice.times) == ("0", 2)
    batches = world.sim.state.ledger_report()["batches"]
    assert [batch["executed"] for batch in batches.values()] == [2, 1, 1]
    assert {batch["endpoint"] for batch in batches.values()} == {"/v1/messages"}


def test_reset_forgets_batches_and_files(world: AnthropicWorld) -> None:
    """A test would see the batches of the one before it."""
    world.finish(world.submit("a"))
    world.submit("b")
    world.sim.reset()
    assert not world.client.messages.batches.list().data
    left = [path.name for path in world.sim.state.spool.folder.iterdir()]
    assert left == ["ledger.sqlite3"]


def test_pretty_json_is_taken(world: AnthropicWorld) -> None:
    """A request that was written over several lines would be cut to pieces."""
    body = json.dumps({"requests": [request("a-0", "line\nbreak")]}, indent=2)
    headers = {"x-api-key": "k", "anthropic-version": "2026-10-21"}
    url = f"{world.sim.base_url}/v1/messages/batches"
    with httpx2.Client(trust_env=False) as http:
        made = http.post(url, content=body, headers=headers).raise_for_status().json()
        for broken in (
            "{",
            "[]",
            '{"requests":{}}',
            '{"requests":[],"x":1}',
            "\ud800".encode("utf-8", "replace"),
        ):
            assert http.post(url, content=broken, headers=headers).status_code == 400
    world.sim.advance_time(BATCH_SECONDS)
    ended = world.client.messages.batches.retrieve(made["id"])
    assert ended.request_counts.succeeded == 1
