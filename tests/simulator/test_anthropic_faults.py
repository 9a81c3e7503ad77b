"""Scripted faults of the simulated Message Batches."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest

from tests.simulator.test_anthropic import BATCH_SECONDS, AnthropicWorld, refused


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnthropicWorld]:
    """A world with default options."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = AnthropicWorld()
    yield made
    made.close()


def only(world: AnthropicWorld, *prompts: str, **params: Any) -> dict[str, Any]:
    """Return the only result."""
    (result,) = world.results(*(prompts or ("a",)), **params).values()
    return result


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_anthropics_shape(world: AnthropicWorld, status: int, kind: str) -> None:
    """Handling an error would be tried with a shape that Anthropic never sends."""
    route = {"route": "anthropic.batches.list"}
    world.sim.faults(kind="http_error", status=status, code="why", match=route)
    with refused(status) as caught:
        world.client.messages.batches.list()
    assert (caught.value.type, caught.value.error_code) == (kind, "why")
    world.sim.faults(kind="line_error", status=status, message="told")
    error = only(world)["error"]
    assert error["error"] == {"type": kind, "message": "told"}
    assert error["request_id"]


def test_a_rule_may_name_the_type_of_an_error(world: AnthropicWorld) -> None:
    """Errors whose status does not tell their type could not be tried."""
    world.sim.faults(kind="line_error", status=429, type="overloaded_error")
    assert only(world)["error"]["error"]["type"] == "overloaded_error"


def test_rules_for_openais_routes_pass_by(world: AnthropicWorld) -> None:
    """A rule for one protocol would disturb the calls of another."""
    world.sim.faults(kind="http_error", status=500, match={"route": "batches.create"})
    world.submit("a")
    world.sim.faults(kind="http_error", status=500, match={"route": "anthropic.batches.create"})
    with refused(500):
        world.submit("b")


@pytest.mark.parametrize(
    "kind",
    [
        "body_as_text",
        "empty_files",
        "empty_ids",
        "fail_batch",
        "failed_body",
        "line_status_zero",
        "line_without_response",
        "odd_errors",
        "stray_ids",
        "wrong_file",
    ],
)
def test_faults_that_anthropic_cannot_have_pass_by(world: AnthropicWorld, kind: str) -> None:
    """A rule that is about another protocol would crash the simulator."""
    world.sim.faults(kind=kind)
    assert only(world)["type"] == "succeeded"


def test_a_create_that_is_committed_and_not_answered(world: AnthropicWorld) -> None:
    """The one case in which a client pays twice could not be tried."""
    route = {"route": "anthropic.batches.create"}
    world.sim.faults(kind="drop_after_commit", times=1, match=route)
    with pytest.raises(anthropic.APIConnectionError):
        world.submit("a")
    assert len(world.client.messages.batches.list().data) == 1
    world.sim.faults(kind="drop_before_commit", times=1, match=route)
    with pytest.raises(anthropic.APIConnectionError):
        world.submit("b")
    assert len(world.client.messages.batches.list().data) == 1


def test_lists_lag_and_repeat(world: AnthropicWorld) -> None:
    """Looking for a batch could not be tried with lists as they are in bad hours."""
    world.sim.faults(kind="list_lag_seconds", seconds=30.0, times=1)
    late = world.submit("a").id
    shown = world.submit("b", token="bbbbbbbb").id
    listed = world.client.messages.batches.list
    assert [batch.id for batch in listed().data] == [shown]
    world.sim.advance_time(30)
    assert [batch.id for batch in listed().data] == [shown, late]
    world.sim.faults(kind="repeat_cursor")
    page = listed(limit=1, after_id=shown)
    assert (page.has_more, page.last_id) == (True, shown)
    world.sim.clear_faults()
    world.sim.faults(kind="list_oldest_first")
    assert [batch.id for batch in listed().data] == [late, shown]


def test_a_batch_that_is_not_there_yet(world: AnthropicWorld) -> None:
    """The 404 right after a create could not be tried."""
    world.sim.faults(kind="not_found_after_create", gets=2)
    batch = world.submit("a")
    for _ in range(2):
        with refused(404):
            world.client.messages.batches.retrieve(batch.id)
    world.client.messages.batches.retrieve(batch.id)


@pytest.mark.parametrize("kind", ["results_gone", "results_missing"])
def test_results_that_are_not_there(world: AnthropicWorld, kind: str) -> None:
    """Lost results could not be tried."""
    world.sim.faults(kind=kind)
    ended = world.finish(world.submit("a"))
    assert ended.processing_status == "ended"
    assert (ended.archived_at is not None) == (kind == "results_gone")
    assert (ended.results_url is None) == (kind == "results_missing")
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    url = f"{world.sim.base_url}/v1/messages/batches/{ended.id}/results"
    with httpx2.Client(trust_env=False) as http:
        assert http.get(url, headers=headers).status_code == 404
    assert world.sim.ledger().defective() == {kind: 1}


def test_results_that_come_later(world: AnthropicWorld) -> None:
    """A 404 between two good answers could not be tried."""
    world.sim.faults(kind="results_not_ready", gets=1)
    ended = world.finish(world.submit("a"))
    with pytest.raises(httpx2.HTTPStatusError):
        world.raw(ended)
    assert world.raw(ended)


def test_an_expired_batch_has_partial_results(world: AnthropicWorld) -> None:
    """Partial results of expired batches could not be tried."""
    world.sim.faults(kind="expire", fraction=0.5)
    results = world.results("a", "b", "c", "d")
    assert sorted(result["type"] for result in results.values()) == [
        "expired",
        "expired",
        "succeeded",
        "succeeded",
    ]
    assert world.sim.ledger().faulted() == {"batch_expired": 2}


def test_refusals_and_cut_answers(world: AnthropicWorld) -> None:
    """What models do of their own accord could not be tried."""
    world.sim.faults(kind="refusal", text="No.", match={"prompt": "bomb"})
    world.sim.faults(kind="incomplete", tokens=2, match={"prompt": "novel"})
    world.sim.faults(kind="invalid_json_answer", match={"prompt": "json"})
    tools = [{"name": "f", "input_schema": {"type": "object", "additionalProperties": False}}]
    results = world.results(
        "bomb", "novel", "json", tools=tools, tool_choice={"type": "tool", "name": "f"}
    )
    refusal, cut, broken = (results[row]["message"] for row in "012")
    assert refusal["stop_reason"] == "refusal"
    assert refusal["stop_details"]["explanation"] == "No."
    assert cut["stop_reason"] == "max_tokens"
    assert broken["content"][0]["type"] == "text"


def test_lines_that_are_lost_twice_there_or_strange(world: AnthropicWorld) -> None:
    """Downloads that do not fit the requests could not be tried."""
    world.sim.faults(kind="missing_line", match={"custom_id": "-0$"})
    world.sim.faults(kind="duplicate_line", copies=3, match={"custom_id": "-1$"})
    world.sim.faults(kind="unknown_line", match={"custom_id": "-2$"})
    world.sim.faults(kind="foreign_line", match={"custom_id": "-2$"})
    raw = world.raw(world.finish(world.submit("a", "b", "c")))
    ids = sorted(json.loads(line)["custom_id"] for line in raw.splitlines())
    assert ids == [*["aaaaaaaa-1"] * 3, "aaaaaaaa-2", "foreign-0", "zzzzzzzz-2"]


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ({"kind": "bad_line", "variant": "blank"}, b"\n\n"),
        ({"kind": "bad_line", "variant": "invalid_utf8"}, b"\xff\xfe"),
        ({"kind": "bad_line", "variant": "u2028"}, "\u2028".encode()),
        ({"kind": "odd_text", "variant": "nan"}, b'"citations":NaN'),
        ({"kind": "odd_text", "variant": "too_deep"}, b'"citations":[[[['),
        ({"kind": "odd_text", "variant": "invalid_utf8"}, b"Simu\xfflated"),
        ({"kind": "odd_usage", "shape": "null"}, b'"usage":null'),
        ({"kind": "other_model", "model": "claude-other"}, b'"claude-other"'),
        ({"kind": "wrong_custom_id", "custom_id": "x"}, b'"custom_id":"x"'),
        ({"kind": "rewrite_download", "variant": "bom"}, b"\xef\xbb\xbf{"),
        ({"kind": "rewrite_download", "variant": "crlf"}, b"}\r\n"),
        ({"kind": "rewrite_download", "variant": "blank_lines"}, b"\n \r\n\n"),
    ],
)
def test_odd_bytes(world: AnthropicWorld, rule: dict[str, Any], part: bytes) -> None:
    """A decoder could not be tried with what breaks the SDK's own."""
    world.sim.faults(rule)
    raw = world.raw(world.finish(world.submit("a", "b")))
    assert part in b"\n" + raw


def test_truncated_downloads(world: AnthropicWorld) -> None:
    """Results whose transfer breaks off could not be tried."""
    ended = world.finish(world.submit("a", "b"))
    whole = world.raw(ended)
    world.sim.faults(kind="truncate_download", fraction=0.5, times=1)
    with pytest.raises(httpx2.RemoteProtocolError):
        world.raw(ended)
    world.sim.faults(kind="truncate_download", fraction=0.5, with_length=False, times=1)
    assert world.raw(ended) == whole[: len(whole) // 2]


def test_odd_records(world: AnthropicWorld) -> None:
    """Batches of odd looks could not be tried."""
    world.sim.faults(kind="odd_status", words={"in_progress": "thinking"}, times=1)
    assert world.submit("a").processing_status == "thinking"
    world.sim.faults(kind="lying_counts", counts={"processing": 7}, times=1)
    assert world.submit("a").request_counts.processing == 7
    world.sim.faults(kind="null_fields", fields=["created_at"], times=1)
    assert world.submit("a").created_at is None


def test_a_clock_that_is_wrong(world: AnthropicWorld) -> None:
    """A provider's clock that differs from ours could not be tried."""
    before = world.submit("a").created_at
    world.sim.faults(kind="clock_offset_seconds", seconds=-7200.0)
    assert (before - world.submit("b").created_at).total_seconds() == 7200


def test_packed_answers(world: AnthropicWorld) -> None:
    """Compressed answers could not be tried."""
    world.sim.faults(kind="gzip")
    url = f"{world.sim.base_url}/v1/messages/batches"
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    with httpx2.Client(trust_env=False) as http, http.stream("GET", url, headers=headers) as seen:
        packed = b"".join(seen.iter_raw())
    assert json.loads(gzip.decompress(packed))["data"] == []


def test_a_fault_strikes_an_item_for_some_rounds(world: AnthropicWorld) -> None:
    """Retries that succeed could not be tried."""
    world.sim.faults(kind="line_error", status=529, rounds=1)
    assert only(world)["type"] == "errored"
    assert only(world, token="bbbbbbbb")["type"] == "succeeded"
    assert not world.sim.ledger().paid_twice()


def test_held_ends(world: AnthropicWorld) -> None:
    """A batch that hangs near its end could not be tried."""
    world.sim.faults(kind="finalizing_hold", seconds=60.0)
    batch = world.submit("a")
    assert world.finish(batch).processing_status == "in_progress"
    world.sim.advance_time(60)
    assert world.client.messages.batches.retrieve(batch.id).processing_status == "ended"
    assert BATCH_SECONDS > 60
