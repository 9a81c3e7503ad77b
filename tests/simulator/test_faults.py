"""Scripted faults, each seen through the SDK."""

import json
import time
from typing import Any

import httpx2
import openai
import pytest

from batchor_core.simulator import FaultError


def _ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def test_line_error(world: Any) -> None:
    """Broken if a failing line did not land in the error file, in OpenAI's shape."""
    world.sim.faults(
        kind="line_error", status=429, code="rate_limit_exceeded", match={"prompt": "b"}
    )
    done = world.finish(world.submit("a", "b"))
    (error,) = world.lines(done.error_file_id)
    assert error["custom_id"] == "aaaaaaaa-1"
    assert error["response"]["status_code"] == 429
    assert error["response"]["body"]["error"]["code"] == "rate_limit_exceeded"
    assert error["error"] is None
    assert done.request_counts.failed == 1


def test_rounds_let_a_retry_succeed(world: Any) -> None:
    """Broken if a retry of the same row under a new custom_id met the fault again."""
    world.sim.faults(kind="line_error", status=500, rounds=1)
    assert world.finish(world.submit("a", "b")).request_counts.failed == 2
    assert world.finish(world.submit("a", "b", token="bbbbbbbb")).request_counts.failed == 0


def test_times_bounds_a_rule(world: Any) -> None:
    """Broken if a rule struck more often than it was told to."""
    world.sim.faults(kind="line_error", status=500, times=2)
    assert world.finish(world.submit("a", "b", "c")).request_counts.failed == 2


def test_line_status_zero(world: Any) -> None:
    """Broken if the empty error line of field reports could not be reproduced."""
    world.sim.faults(kind="line_status_zero")
    done = world.finish(world.submit("a"))
    (error,) = world.lines(done.error_file_id)
    assert error["response"] == {"status_code": 0, "request_id": "", "body": {}}
    assert error["error"] is None
    assert world.sim.ledger().executed() == 0


def test_missing_line(world: Any) -> None:
    """Broken if a line that the provider lost were in either file."""
    world.sim.faults(kind="missing_line", match={"custom_id": "-1$"})
    done = world.finish(world.submit("a", "b", "c"))
    assert _ids(world.lines(done.output_file_id)) == ["aaaaaaaa-0", "aaaaaaaa-2"]
    assert done.error_file_id is None
    assert world.sim.ledger().faulted() == {"missing_line": 1}


def test_duplicate_line(world: Any) -> None:
    """Broken if a line could not come twice, or were billed twice for it."""
    world.sim.faults(kind="duplicate_line", match={"prompt": "a"})
    assert _ids(world.answers("a", "b")) == ["aaaaaaaa-0", "aaaaaaaa-0", "aaaaaaaa-1"]
    assert world.sim.ledger().paid_twice() == []


def test_unknown_line(world: Any) -> None:
    """Broken if a foreign line could not be mixed in."""
    world.sim.faults(kind="unknown_line", times=1, custom_id="stranger")
    assert _ids(world.answers("a", "b")) == ["stranger", "aaaaaaaa-0", "aaaaaaaa-1"]


def test_invalid_json_answer(world: Any) -> None:
    """Broken if an answer under a schema could not be made unparsable."""
    world.sim.faults(kind="invalid_json_answer")
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
    (body,) = world.bodies("a", text=form)
    with pytest.raises(json.JSONDecodeError):
        json.loads(body["output"][0]["content"][0]["text"])


def test_refusal(world: Any) -> None:
    """Broken if a refusal did not use the API's own content part."""
    world.sim.faults(kind="refusal", text="No.")
    (body,) = world.bodies("a")
    assert body["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
    (chat,) = world.bodies("a", endpoint="/v1/chat/completions")
    assert chat["choices"][0]["message"]["refusal"] == "No."
    assert chat["choices"][0]["message"]["content"] is None


def test_incomplete(world: Any) -> None:
    """Broken if truncation could not be scripted."""
    world.sim.faults(kind="incomplete")
    (body,) = world.bodies("a")
    assert (body["status"], body["usage"]["output_tokens"]) == ("incomplete", 3)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ({"variant": "invalid_utf8"}, b"\xff\xfe"),
        ({"variant": "blank"}, b"\n\n"),
        ({"variant": "non_object"}, b'["not","an","object"]\n'),
        ({"variant": "u2028"}, b"\xe2\x80\xa8"),
        ({"raw": "\xffanything"}, b"\xffanything\n"),
    ],
)
def test_bad_line(world: Any, rule: dict[str, Any], found: bytes) -> None:
    """Broken if hostile bytes did not reach the client as they are."""
    world.sim.faults(kind="bad_line", match={"prompt": "b"}, **rule)
    done = world.finish(world.submit("a", "b", "c"))
    raw = world.raw(done.output_file_id)
    assert found in raw
    assert raw.count(b'"custom_id":"aaaaaaaa-') == 3


def test_bad_line_instead_of_an_answer(world: Any) -> None:
    """Broken if a line could not be lost to corruption."""
    world.sim.faults(kind="bad_line", instead=True, variant="truncated")
    raw = world.raw(world.finish(world.submit("a")).output_file_id)
    with pytest.raises(json.JSONDecodeError):
        json.loads(raw)
    assert world.sim.ledger().faulted() == {"bad_line": 1}


def test_http_error_before_commit(world: Any) -> None:
    """Broken if a refused call had an effect, or its headers did not arrive."""
    world.sim.faults(
        kind="http_error",
        status=429,
        headers={"retry-after": 7},
        code="rate_limit_exceeded",
        times=1,
        match={"route": "batches.create"},
    )
    with pytest.raises(openai.RateLimitError) as caught:
        world.create("file-x")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "rate_limit_exceeded"
    assert world.client.batches.list().data == []
    assert world.create("file-x").status == "validating"


def test_scripted_sequence(world: Any) -> None:
    """Broken if flapping answers (404, 200, 503, 200) could not be scripted call by call."""
    batch = world.submit("a")
    here = {"match": {"route": "batches.get"}, "times": 1}
    world.sim.faults(
        {"kind": "http_error", "status": 404, **here},
        {"kind": "http_error", "status": 503, "skip": 1, **here},
    )
    seen = []
    for _ in range(4):
        try:
            seen.append(world.client.batches.retrieve(batch.id).status)
        except openai.APIStatusError as error:
            seen.append(error.status_code)
    assert seen == [404, "validating", 503, "validating"]


def test_stop_while_a_call_hangs(worlds: Any) -> None:
    """Broken if a scripted hang could hold up the end of a test."""
    world = worlds()
    world.sim.faults(kind="hang", seconds=60, match={"route": "files.create"})
    with pytest.raises(openai.APITimeoutError):
        world.client.with_options(timeout=0.1).files.create(file=("a.jsonl", b"x"), purpose="batch")
    started = time.monotonic()
    world.sim.close()
    assert time.monotonic() - started < 10


def test_upload_goes_on_after_a_hang(world: Any) -> None:
    """Broken if waiting for the client to hang up swallowed the body of its upload."""
    world.sim.faults(kind="hang", seconds=0.1, match={"route": "files.create"})
    content = b"x" * 1_000_000
    assert world.raw(world.upload(content)) == content


def test_http_error_with_a_proxys_page(world: Any) -> None:
    """Broken if answers of a proxy in between could not be reproduced."""
    world.sim.faults(kind="http_error", status=200, body="<html>", match={"route": "batches.get"})
    batch = world.submit("a")
    assert world.client.batches.retrieve(batch.id) == "<html>"


def test_drop_after_commit(world: Any) -> None:
    """Broken if the provider's batch did not exist after its answer was lost."""
    file_id = world.upload(b"{}\n")
    world.sim.faults(kind="drop_after_commit", times=1, match={"route": "batches.create"})
    with pytest.raises(openai.APIConnectionError):
        world.create(file_id)
    (orphan,) = world.client.batches.list().data
    assert orphan.input_file_id == file_id


def test_the_sdk_itself_creates_a_twin(world: Any) -> None:
    """Broken if the danger of the SDK's own retries could not be shown."""
    world.sim.faults(kind="drop_after_commit", times=1, match={"route": "batches.create"})
    world.client.with_options(max_retries=1).batches.create(
        input_file_id="file-x", endpoint="/v1/responses", completion_window="24h"
    )
    assert len(world.client.batches.list().data) == 2


def test_drop_before_commit(world: Any) -> None:
    """Broken if a call whose connection broke early had an effect."""
    world.sim.faults(kind="drop_before_commit", times=1, match={"run": "x"})
    with pytest.raises(openai.APIConnectionError):
        world.create("file-x", run="x")
    assert world.client.batches.list().data == []


@pytest.mark.parametrize(("after_commit", "batches"), [(False, 0), (True, 1)])
def test_hang(world: Any, after_commit: bool, batches: int) -> None:
    """Broken if a client's timeout could not be provoked on either side of the commit."""
    world.sim.faults(
        kind="hang", seconds=30, after_commit=after_commit, match={"route": "batches.create"}
    )
    started = time.monotonic()
    with pytest.raises(openai.APITimeoutError):
        world.client.with_options(timeout=0.2).batches.create(
            input_file_id="file-x", endpoint="/v1/responses", completion_window="24h"
        )
    world.sim.clear_faults()
    assert time.monotonic() - started < 10
    assert len(world.client.batches.list().data) == batches


def test_expire(world: Any) -> None:
    """Broken if an expired batch lost its paid part, or blamed the rest on the requests."""
    world.sim.faults(kind="expire", fraction=0.5, match={"batch": 0})
    done = world.finish(world.submit(*"abcd"))
    assert done.status == "expired"
    assert done.expired_at == done.expires_at == done.created_at + 100
    assert (done.completed_at, done.finalizing_at) == (None, None)
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (4, 2, 0)
    assert len(world.lines(done.output_file_id)) == 2
    left = world.lines(done.error_file_id)
    assert [line["error"]["code"] for line in left] == ["batch_expired"] * 2
    assert world.sim.ledger().executed() == 2
    assert world.finish(world.submit("a", token="bbbbbbbb")).status == "completed"


def test_expire_with_nothing_done(world: Any) -> None:
    """Broken if an expired batch without any answer had an output file."""
    world.sim.faults(kind="expire", fraction=0)
    done = world.finish(world.submit("a"))
    assert (done.status, done.output_file_id) == ("expired", None)


def test_fail_batch(world: Any) -> None:
    """Broken if the provider's own failures of a batch could not be scripted."""
    errors = [{"code": "weird", "line": 1, "message": "m", "param": None}]
    world.sim.faults(kind="fail_batch", errors=errors, match={"run": "x"})
    done = world.finish(world.submit("a", run="x"))
    assert done.status == "failed"
    assert done.errors.data[0].code == "weird"
    assert world.finish(world.submit("a", run="y")).status == "completed"
    assert world.sim.ledger().times_paid("x") == {}


def test_list_lag(world: Any) -> None:
    """Broken if a new batch could not stay out of the list for a while."""
    world.sim.faults(kind="list_lag_seconds", seconds=40)
    batch = world.submit("a")
    assert world.client.batches.list().data == []
    assert world.client.batches.retrieve(batch.id).id == batch.id
    world.sim.advance_time(40)
    assert len(world.client.batches.list().data) == 1


def test_not_found_after_create(world: Any) -> None:
    """Broken if a new batch could not be unknown for the first polls."""
    world.sim.faults(kind="not_found_after_create", gets=2)
    batch = world.submit("a")
    for _ in range(2):
        with pytest.raises(openai.NotFoundError):
            world.client.batches.retrieve(batch.id)
    assert world.client.batches.retrieve(batch.id).id == batch.id


def test_truncated_download_with_length(world: Any) -> None:
    """Broken if a download that ends early looked complete to the client."""
    file_id = world.upload(b"x" * 300_000)
    world.sim.faults(kind="truncate_download", times=1)
    with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
        world.client.files.content(file_id).read()
    assert len(world.raw(file_id)) == 300_000


def test_truncated_download_without_length(world: Any) -> None:
    """Broken if the silent kind of truncation could not be reproduced."""
    file_id = world.upload(b"x" * 300_000)
    world.sim.faults(kind="truncate_download", times=1, bytes=100_001, with_length=False)
    assert len(world.raw(file_id)) == 100_001


def test_clock_offset(world: Any) -> None:
    """Broken if the provider's clock could not differ from the client's."""
    before = world.client.batches.with_raw_response.list().headers["date"]
    world.sim.faults(kind="clock_offset_seconds", seconds=7200)
    answer = world.client.batches.with_raw_response.list()
    assert answer.headers["date"] != before
    skewed = world.submit("a")
    world.sim.clear_faults()
    assert skewed.created_at - world.submit("a").created_at == 7200


def test_rules_over_http(world: Any) -> None:
    """Broken if another process could not script, see and clear faults."""
    url = f"{world.sim.base_url}/_sim/faults"
    http = world.client._client
    rule = {"kind": "line_error", "status": 503, "match": {"prompt": "a"}, "times": 1}
    assert http.post(url, json=[rule]).status_code == 200
    world.finish(world.submit("a"))
    (told,) = http.get(url).json()["rules"]
    assert (told["kind"], told["struck"], told["status"]) == ("line_error", 1, 503)
    assert http.delete(url).json() == {"rules": []}


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"kind": "nonsense"}, "unknown fault"),
        ({"kind": "refusal", "sorry": True}, "takes no parameter 'sorry'"),
        ({"kind": "hang", "match": {"prompt": "x"}}, "cannot be matched by 'prompt'"),
        ({"kind": "refusal", "match": {"custom_id": "("}}, "custom_id"),
        ({"kind": "refusal", "times": "twice"}, "times must be of type int"),
        ({"kind": "expire", "fraction": "half"}, "fraction must be of type float"),
        ({"kind": "bad_line", "variant": "odd"}, "variant 'odd' is none of"),
    ],
)
def test_senseless_rules_are_refused(world: Any, rule: dict[str, Any], reason: str) -> None:
    """Broken if a misspelt rule silently did nothing."""
    with pytest.raises(FaultError, match=reason):
        world.sim.faults(rule)
    answer = world.client._client.post(f"{world.sim.base_url}/_sim/faults", json=rule)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]
