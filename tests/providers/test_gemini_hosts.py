"""What Google's API was seen to do and the simulator does not; and what exactly it is sent."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from batchor_core.errors import ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.gemini.adapter import GeminiProvider
from batchor_core.providers.protocol import BatchPhase, Wanted
from batchor_core.testing.provider_suite import create, download, read_answers, wanted
from tests.providers.odd_host import SECRET, OddHost, Reply, Script, Seen

BATCH = {"name": "batches/1", "metadata": {"state": "BATCH_STATE_PENDING"}}
LINE = b'{"key":"abcdefgh-%d","request":{"contents":[],"generationConfig":{"a_b":1.0}}}\n'


@contextmanager
def odd_gemini(script: Script | Reply, **fields: Any) -> Iterator[tuple[GeminiProvider, OddHost]]:
    """Run a host, with an adapter connected to it."""
    host = OddHost(script if callable(script) else lambda _: script)
    given = {"model": "gemini-test", "timeout_s": 10, **fields}
    config = GeminiProviderConfig(base_url=host.url, api_key=SecretStr(SECRET), **given)
    try:
        with closing(GeminiProvider(config)) as provider:
            yield provider, host
    finally:
        host.close()


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Write a request file of two lines."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(LINE % 0 + LINE % 1)
    return path


@pytest.mark.parametrize(
    ("fields", "ref", "path", "source"),
    [
        ({}, "files/a", "models/gemini-test:batchGenerateContent", {"fileName": "files/a"}),
        (
            {"endpoint": "embeddings", "dimensions": 3},
            "files/a",
            "models/gemini-test:asyncBatchEmbedContent",
            {"file_name": "files/a"},
        ),
        (
            {},
            None,
            "models/gemini-test:batchGenerateContent",
            {
                "requests": {
                    "requests": [
                        {
                            "request": {"contents": [], "generationConfig": {"a_b": 1.0}},
                            "metadata": {"key": f"abcdefgh-{row}"},
                        }
                        for row in range(2)
                    ]
                }
            },
        ),
        ({"model": "tunedModels/x"}, "files/a", "tunedModels/x:batchGenerateContent", None),
    ],
)
def test_what_a_create_call_sends(
    requests: Path, fields: dict[str, Any], ref: str | None, path: str, source: Any
) -> None:
    """The SDK would rewrite the requests on their way (facts 5: #53, #55), or lose their keys."""
    with odd_gemini(Reply(body=BATCH), **fields) as (provider, host):
        create(provider, requests, ref, key="run/0/sub")
    (seen,) = host.seen
    assert (seen.method, seen.path) == ("POST", f"/v1/{path}")
    assert seen.headers["x-goog-api-key"] == SECRET
    body = json.loads(seen.body)
    assert body["batch"]["displayName"] == "run/0/sub"
    if source is not None:
        assert body == {"batch": {"displayName": "run/0/sub", "inputConfig": source}}


def test_a_long_key_is_shortened(requests: Path) -> None:
    """A run with a long id could not be sent, or its batch not be found again."""
    key = f"{'r' * 600}/0/sub"

    def script(seen: Seen) -> Reply:
        if seen.method == "POST":
            names.append(json.loads(seen.body)["batch"]["displayName"])
            return Reply(body=BATCH)
        metadata = {"state": "BATCH_STATE_PENDING", "displayName": names[0]}
        return Reply(body={"operations": [{"name": "batches/1", "metadata": metadata}]})

    names: list[str] = []
    with odd_gemini(script) as (provider, _):
        create(provider, requests, "files/a", key=key)
        create(provider, requests, "files/a", key=f"{key}2")
        found = provider.find(Wanted(key=key, upload_ref=None, chunk_token="x", request_count=1))
    assert len(names[0]) == 512
    assert names[0] != names[1]
    assert len(found.matches) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_nothing_is_tried_again_by_the_sdk(status: int) -> None:
    """Our own waiting would come on top of the SDK's, and a lease run out."""
    error = {"error": {"code": status, "message": "m", "status": "S"}}
    with odd_gemini(Reply(status=status, body=error)) as (provider, host):
        with pytest.raises(ProviderError):
            provider.get("batches/1")
        assert len(host.seen) == 1


def test_one_bad_answer_does_not_hide_the_others(tmp_path: Path) -> None:
    """The SDK cannot read a batch of which one answer has an error with details (facts 0.3)."""
    responses = [
        {
            "error": {"code": 3, "message": "no", "details": [{"@type": "x", "reason": "y"}]},
            "metadata": {"key": "abcdefgh-0"},
        },
        {"response": {"candidates": [{"finishReason": 7}]}, "metadata": {"key": 5}},
        {
            "response": {
                "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]
            },
            "metadata": {"key": "abcdefgh-2", "n": 7},
        },
        {"metadata": {"key": "abcdefgh-3"}},
        None,
        "x",
    ]
    metadata = {
        "state": "BATCH_STATE_SUCCEEDED",
        "createTime": "whenever",
        "output": {"inlinedResponses": {"inlinedResponses": responses}},
    }
    record = {"name": "batches/1", "metadata": metadata, "done": True}
    with odd_gemini(Reply(body=record)) as (provider, _):
        batch = provider.get("batches/1")
        answers = read_answers(provider, batch, tmp_path)
    assert batch.phase is BatchPhase.ENDED
    assert sorted(answers) == ["abcdefgh-0", "abcdefgh-2", "abcdefgh-3"]
    assert answers["abcdefgh-2"].text == "hi"
    bad, empty = answers["abcdefgh-0"].fault, answers["abcdefgh-3"].fault
    assert bad is not None
    assert empty is not None
    assert (bad.retryable, empty.retryable) == (False, True)


def test_answers_that_cannot_be_had_for_now() -> None:
    """A batch whose answers are too large for one call (python-genai#2519) would be given up."""
    with odd_gemini(Reply(status=503, body=b"")) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            provider.get("batches/1")
        assert caught.value.fault.kind is FaultKind.TRANSIENT


def test_results_that_are_gone(tmp_path: Path) -> None:
    """A file that expired after two days would stop the run as if the key were bad."""
    message = "You do not have permission to access the File x or it may not exist."
    error = {"error": {"code": 403, "message": message, "status": "PERMISSION_DENIED"}}
    result = {"responses_file": "files/batch-1"}
    with odd_gemini(Reply(status=403, body=error)) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            provider.download_results(result, tmp_path, lambda: None)
        assert caught.value.fault.kind is FaultKind.MISSING
        left = provider.download_results(result, tmp_path, lambda: None, leave_out_missing=True)
        assert left == []
        provider.delete_remote(upload_ref="files/a", result=result)


def test_a_file_whose_id_is_too_long_is_left_alone() -> None:
    """Each collection would end in a warning: Google does not let us delete that file (1.3)."""
    result = {"responses_file": "files/batch-" + "a" * 36}
    with odd_gemini(Reply(body={})) as (provider, host):
        provider.delete_remote(upload_ref="files/batchor-1", result=result)
        assert [seen.path for seen in host.seen] == ["/v1/files/batchor-1"]


@pytest.mark.parametrize(
    ("reply", "works"),
    [
        (Reply(body=b""), True),
        (Reply(body={}), True),
        (Reply(status=400, body={"error": {"status": "FAILED_PRECONDITION"}}), True),
        (Reply(status=404, body=b""), True),
        (Reply(status=403, body=b""), False),
        (Reply(status=503, body=b""), False),
    ],
)
def test_cancelling(reply: Reply, works: bool) -> None:
    """A batch that has ended could not be cancelled, or one that goes on count as cancelled."""
    with odd_gemini(reply) as (provider, host):
        if works:
            provider.cancel("batches/1")
        else:
            with pytest.raises(ProviderError):
                provider.cancel("batches/1")
        assert [(seen.method, seen.path) for seen in host.seen] == [
            ("POST", "/v1/batches/1:cancel")
        ]


def test_a_key_that_is_echoed_is_never_shown(tmp_path: Path) -> None:
    """The key would be written to the store and the log."""
    error = {"error": {"code": 400, "message": f"bad key {SECRET}", "status": "INVALID_ARGUMENT"}}
    reply = Reply(status=400, body=error)
    with odd_gemini(reply) as (provider, _), pytest.raises(ProviderError) as caught:
        provider.get("batches/1")
    assert SECRET not in f"{caught.value} {caught.value.fault} {caught.value.__cause__}"
    record = {
        "name": "batches/1",
        "error": {"code": 3, "message": SECRET},
        "metadata": {"state": "BATCH_STATE_FAILED"},
    }
    with odd_gemini(Reply(body=record)) as (provider, _):
        assert SECRET not in str(provider.get("batches/1"))
    line = json.dumps({"key": "a-1", "error": {"code": 3, "message": SECRET}}).encode()
    with odd_gemini(Reply(body=line, headers={"content-type": "text/plain"})) as (provider, _):
        (part,) = provider.download_results({"responses_file": "files/x"}, tmp_path, lambda: None)
        answer = provider.decode(part, part.path.read_bytes())
        assert answer is not None
        assert answer.fault is not None
        assert SECRET not in str(answer.fault)


def test_a_look_stops_where_all_that_follows_is_older() -> None:
    """Each look would read the list to its end."""
    pages = [
        {"operations": [_operation(3, "10:00"), _operation(2, "09:00")], "nextPageToken": "a"},
        {"operations": [_operation(1, "08:00")], "nextPageToken": "b"},
    ]

    def script(seen: Seen) -> Reply:
        return Reply(body=pages["pageToken=a" in seen.path], headers={"date": DATE})

    since = datetime(2026, 1, 2, 9, 30, tzinfo=UTC)
    with odd_gemini(script) as (provider, host):
        sighting = provider.find(
            Wanted(key="none", upload_ref=None, chunk_token="x", request_count=1, since=since)
        )
        assert (sighting.matches, len(host.seen)) == ([], 1)
        assert sighting.server_time == datetime(2026, 1, 2, 10, tzinfo=UTC)


@pytest.mark.parametrize("since", [None, datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_list_without_an_end(since: datetime | None) -> None:
    """A look would never end, or one that broke off count as proof."""
    page = {"operations": [_operation(3, "10:00")], "nextPageToken": "a"}
    looked_for = Wanted(key="none", upload_ref=None, chunk_token="x", request_count=1, since=since)
    with odd_gemini(Reply(body=page)) as (provider, host):
        if since is None:
            assert not provider.find(looked_for).matches
        else:
            with pytest.raises(ProviderError, match="list_incomplete"):
                provider.find(looked_for)
        assert len(host.seen) == 2


def test_the_upload_tells_how_far_to_look() -> None:
    """Without a time of its own, a look would read everything that an account ever had."""

    def script(seen: Seen) -> Reply:
        if seen.path.startswith("/v1/files/"):
            return Reply(body={"name": "files/a", "createTime": "2026-01-02T09:30:00Z"})
        page = [_operation(3, "10:00"), _operation(2, "09:00")]
        return Reply(body={"operations": page, "nextPageToken": "a"})

    with odd_gemini(script) as (provider, host):
        assert not provider.find(wanted("files/a")).matches
        assert [seen.path.partition("?")[0] for seen in host.seen] == [
            "/v1/files/a",
            "/v1/batches",
        ]


def test_ids_cannot_leave_their_place() -> None:
    """An odd id would call something else at the provider."""
    with odd_gemini(Reply(body=BATCH)) as (provider, host):
        provider.get("batches/1?alt=media#x y")
        assert [seen.path for seen in host.seen] == ["/v1/batches/1%3Falt%3Dmedia%23x%20y"]


def test_an_empty_file_of_answers(tmp_path: Path) -> None:
    """A batch without any answer would break its run."""
    with odd_gemini(Reply(body=b"")) as (provider, _):
        (part,) = provider.download_results({"responses_file": "files/x"}, tmp_path, lambda: None)
        assert part.path.read_bytes() == b""


def test_a_page_after_a_bom_is_no_result(tmp_path: Path) -> None:
    """A proxy's page would be stored as results, and every row be paid again."""
    page = Reply(body=b"\xef\xbb\xbf \n<!doctype html>", headers={"content-type": "text/plain"})
    with odd_gemini(page) as (provider, _), pytest.raises(ProviderError):
        provider.download_results({"responses_file": "files/x"}, tmp_path, lambda: None)


def test_a_batch_is_asked_for_with_its_answers(tmp_path: Path) -> None:
    """Answers that a list left out would never be read."""
    metadata = {"state": "BATCH_STATE_SUCCEEDED", "output": {"inlinedResponses": {}}}
    with odd_gemini(Reply(body={"name": "batches/1", "metadata": metadata})) as (provider, _):
        batch = provider.get("batches/1")
        assert (batch.phase, batch.result) == (BatchPhase.ENDED, {})
        assert download(provider, batch, tmp_path / "none") == []


DATE = "Fri, 02 Jan 2026 10:00:00 GMT"


def _operation(number: int, time: str) -> dict[str, Any]:
    metadata = {"state": "BATCH_STATE_RUNNING", "createTime": f"2026-01-02T{time}:00Z"}
    return {"name": f"batches/{number}", "metadata": metadata}
