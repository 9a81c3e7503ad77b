"""Anthropic's adapter in front of hosts that behave as no host should (facts 1.2)."""

import contextlib
import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from batchor_core.errors import ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.anthropic import AnthropicProviderConfig
from batchor_core.providers.anthropic.adapter import AnthropicProvider
from batchor_core.providers.anthropic.create_body import CreateBody
from batchor_core.providers.anthropic.records import batch_of, instant_of, page_of
from batchor_core.providers.protocol import BatchPhase, RawPart, Wanted
from batchor_core.providers.wire import UnusableAnswerError
from tests.providers.odd_host import OddHost, Reply, Script, Seen

SECRET = "sk-ant-odd-host-0123456789"
NOW = datetime(2026, 11, 30, 10, tzinfo=UTC)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def record(batch_id: str = "msgbatch_a", **fields: Any) -> dict[str, Any]:
    """Make a batch as the API shows it."""
    counts = {"processing": 0, "succeeded": 3, "errored": 0, "canceled": 0, "expired": 0}
    return {
        "id": batch_id,
        "type": "message_batch",
        "processing_status": "ended",
        "request_counts": counts,
        "created_at": "2026-11-30T10:00:00.123456789Z",
        "results_url": None,
        **fields,
    }


@contextlib.contextmanager
def connected(script: Script | Reply, **config: Any) -> Iterator[tuple[AnthropicProvider, OddHost]]:
    """Run a host, with an adapter connected to it."""
    host = OddHost(script if callable(script) else lambda _: script)
    settings = {"model": "claude-test", "max_tokens": 64, "base_url": host.url, "timeout_s": 10}
    provider = AnthropicProvider(
        AnthropicProviderConfig(**{**settings, **config}, api_key=SecretStr(SECRET))
    )
    try:
        yield provider, host
    finally:
        provider.close()
        host.close()


def create(provider: AnthropicProvider, path: Path) -> Any:
    """Create a batch over a request file."""
    return provider.create(upload_ref=None, path=path, key="k", tags={"t": "1"}, timeout_s=8)


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Write a request file of two lines."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(
        b'{"custom_id":"a-0","params":{"x":"1\\n"}}\n{"custom_id":"a-1","params":{}}\n'
    )
    return path


def test_a_create_is_one_request_with_all_lines(requests: Path) -> None:
    """Rows would be missing or changed in what is sent, or the account be another one."""
    options = {"api_version": "2023-06-01", "workspace": "wrkspc_1"}
    with connected(Reply(body=record()), **options) as (provider, host):
        assert create(provider, requests).batch_id == "msgbatch_a"
    (seen,) = host.seen
    assert (seen.method, seen.path) == ("POST", "/v1/messages/batches")
    lines = [json.loads(line) for line in requests.read_bytes().splitlines()]
    assert json.loads(seen.body) == {"requests": lines}
    assert int(seen.headers["content-length"]) == len(seen.body)
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["authorization"] == f"Bearer {SECRET}"
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.headers["anthropic-workspace-id"] == "wrkspc_1"


def test_the_sdks_own_version_is_named_by_default(requests: Path) -> None:
    """Every call would be refused."""
    with connected(Reply(body=record())) as (provider, host):
        create(provider, requests)
        provider.get("msgbatch_a")
    assert all(seen.headers["anthropic-version"] > "2026-" for seen in host.seen)
    assert all("anthropic-workspace-id" not in seen.headers for seen in host.seen)


def test_a_create_does_not_hold_its_requests_in_memory(tmp_path: Path) -> None:
    """A chunk of 32 MB would take several times as much memory while it is sent."""
    path = tmp_path / "requests.jsonl"
    line = b'{"custom_id":"a-0","params":{"x":"' + b"x" * 1_000 + b'"}}\n'
    path.write_bytes(line * 20_000)
    sizes: list[int] = []

    def script(seen: Seen) -> Reply:
        sizes.append(len(seen.body))
        seen.body = b""
        return Reply(body=record())

    with connected(script) as (provider, _):
        create(provider, path)
        tracemalloc.start()
        try:
            create(provider, path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert sizes == [path.stat().st_size + len(b'{"requests":[') + 1] * 2
    # The host lives in this process and holds the body once.
    assert peak < 1.5 * path.stat().st_size


def test_sending_is_bounded(requests: Path) -> None:
    """A slow line would keep a create under way after its lease has run out."""
    assert b"".join(CreateBody(requests, 60)).startswith(b'{"requests":[{')
    with pytest.raises(TimeoutError):
        b"".join(CreateBody(requests, -1))


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirected_create_is_not_repeated(requests: Path, status: int) -> None:
    """A create would become two requests, of which each may make a batch."""
    reply = Reply(status=status, headers={"location": "/v1/elsewhere"}, body={})
    with connected(reply) as (provider, host), pytest.raises(ProviderError) as caught:
        create(provider, requests)
    assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME
    assert len(host.seen) == 1


@pytest.mark.parametrize("body", [{}, {"id": ""}, {"id": None}, {"id": 7}, [], b"{", b"\xff"])
def test_a_create_without_an_id(body: Any, requests: Path) -> None:
    """A batch whose id got lost would be created again and paid twice."""
    with connected(Reply(body=body)) as (provider, _), pytest.raises(ProviderError) as caught:
        create(provider, requests)
    assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME


def test_a_request_file_that_is_gone(tmp_path: Path) -> None:
    """A create that was never sent would be one whose outcome nobody knows."""
    with connected(Reply(body=record())) as (provider, host), pytest.raises(FileNotFoundError):
        create(provider, tmp_path / "gone")
    assert not host.seen


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        *((s, BatchPhase.WORKING) for s in ("in_progress", "canceling", "news", None, 7, "")),
        *((s, BatchPhase.ENDED) for s in ("ended", "Ended")),
    ],
)
def test_statuses(status: object, phase: BatchPhase) -> None:
    """A batch would be waited for until the end of days, or be collected too early."""
    batch = batch_of(record(processing_status=status))
    assert batch.phase is phase
    assert (batch.result is None) == (phase is BatchPhase.WORKING)


@pytest.mark.parametrize(
    ("counts", "is_partial"),
    [
        ({"succeeded": 3}, False),
        ({"succeeded": 2, "errored": 1}, False),
        ({"succeeded": 2, "expired": 1}, True),
        ({"succeeded": 2, "canceled": "1"}, True),
        ({"expired": None}, False),
        (None, False),
        ("3", False),
    ],
)
def test_partial_batches(counts: object, is_partial: bool) -> None:
    """Rows that were never executed would count as executed and paid, or the other way round."""
    assert batch_of(record(request_counts=counts)).is_partial is is_partial


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-30T10:00:00Z", NOW),
        ("2026-11-30T10:00:00.123456789Z", NOW + timedelta(microseconds=123456)),
        ("2026-11-30T12:00:00+02:00", NOW),
        ("2026-11-30T10:00:00", NOW),
        ("0001-01-01T00:00:00+14:00", None),
        ("2026-13-30T10:00:00Z", None),
        ("2026-11-30", None),
        ("x" * 100, None),
        (1_764_500_000, None),
        (None, None),
    ],
)
def test_times(text: object, instant: datetime | None) -> None:
    """A batch would be looked for at the wrong time, or one odd text make it unreadable."""
    assert instant_of(text) == instant


@given(JSON)
def test_any_record_is_survived(value: Any) -> None:
    """A new shape would crash the run that polls it."""
    names = ("processing_status", "request_counts", "created_at", "results_url", "archived_at")
    for name in names:
        batch_of(record(**{name: value}))
    for odd in ({"id": value}, {"data": value}):
        for read in (batch_of, page_of):
            with contextlib.suppress(UnusableAnswerError):
                read(odd)


class ListHost:
    """Lists batches in pages, and serves the results of each, as odd as a test wants it."""

    def __init__(
        self,
        *pages: list[dict[str, Any]],
        results: Callable[[str], Reply] | None = None,
        repeat: bool = False,
        endless: bool = False,
    ) -> None:
        self.pages = pages
        self.results = results or (lambda _: Reply(status=404, body={}))
        self.repeat = repeat
        self.endless = endless
        self.served = 0

    def __call__(self, seen: Seen) -> Reply:
        if seen.path.endswith("/results"):
            return self.results(seen.path.split("/")[-2])
        number = min(self.served, len(self.pages) - 1)
        self.served += 1
        more = self.repeat or self.endless or number + 1 < len(self.pages)
        last = "same" if self.repeat else f"cursor-{self.served}"
        return Reply(body={"data": self.pages[number], "has_more": more, "last_id": last})


def working(batch_id: str, created_at: str | None = "2026-11-30T10:00:00Z", **fields: Any) -> Any:
    """Make a batch that is at work."""
    counts = {"processing": 3, "succeeded": 0}
    given = {"processing_status": "in_progress", "request_counts": counts, **fields}
    return record(batch_id, created_at=created_at, **given)


def wanted(since: datetime | None = NOW) -> Wanted:
    """Return a submission of three requests."""
    return Wanted(key="k", upload_ref=None, chunk_token="abcdefgh", request_count=3, since=since)


def seen_by(host: ListHost, since: datetime | None = NOW) -> tuple[list[str], list[str]]:
    """Look, and return the ids of matches and candidates."""
    with connected(host) as (provider, _):
        sighting = provider.find(wanted(since))
    matches = [batch.batch_id for batch in sighting.matches]
    return matches, [batch.batch_id for batch in sighting.candidates]


def results_of(owner: str) -> Callable[[str], Reply]:
    """Return results in which one batch is ours, and every other somebody else's."""
    return lambda batch_id: Reply(
        body=b'{"custom_id":"%s-0","result":{}}\n' % (b"abcdefgh" if batch_id == owner else b"zz")
    )


def test_candidates_are_told_by_time_and_size() -> None:
    """A batch that cannot be ours would be adopted, or ours be overlooked and paid again."""
    page = [
        working("younger", "2026-11-30T10:00:09Z"),
        working("slack", "2026-11-30T09:59:56Z"),
        working("smaller", request_counts={"processing": 2}),
        working("uncounted", request_counts=None),
        working("timeless", None),
        working("older", "2026-11-30T09:59:54Z"),
    ]
    assert seen_by(ListHost(page)) == ([], ["slack", "uncounted", "younger", "timeless"])


def test_results_prove_whose_batch_it_is() -> None:
    """Somebody else's batch would be adopted, or ours be created again."""
    page = [record(each) for each in ("a", "b", "c")]
    assert seen_by(ListHost(page, results=results_of("b"))) == (["b"], [])


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=404, body={}),
        Reply(status=529, body={}),
        Reply(body=b""),
        Reply(body=b"\n\xff\n{}\n"),
        Reply(body=b"<html></html>", headers={"content-type": "text/html"}),
        Reply(body=b"{}", headers={"content-length": "900"}),
    ],
    ids=["404", "529", "empty", "garbage", "page", "cut"],
)
def test_results_that_cannot_be_read_prove_nothing(reply: Reply) -> None:
    """An outage would be proof that a batch is not ours, and it be created again."""
    with pytest.raises(ProviderError) as caught:
        seen_by(ListHost([record("a")], results=lambda _: reply))
    assert caught.value.fault.kind is FaultKind.TRANSIENT


def test_archived_results_are_nobodys() -> None:
    """A run would wait for ever for the results of a batch of last month."""
    host = ListHost([record("a", archived_at="2026-12-29T10:00:00Z")])
    assert seen_by(host) == ([], [])


def test_only_the_beginning_of_results_is_read() -> None:
    """A look would download gigabytes of answers of other programs."""
    mine, other = b'{"custom_id":"abcdefgh-0"}\n', b'{"custom_id":"zz-0"}\n'
    for strangers, matches in ((99, ["a"]), (100, [])):
        reply = Reply(body=other * strangers + mine)
        assert seen_by(ListHost([record("a")], results=lambda _, r=reply: r)) == (matches, [])
    garbage = Reply(body=b"x" * 17_000_000 + b"\n" + mine)
    with pytest.raises(ProviderError, match="results_unreadable"):
        seen_by(ListHost([record("a")], results=lambda _: garbage))


def test_find_stops_at_the_time_of_the_upload() -> None:
    """A look would page through the whole history of an account."""
    host = ListHost([working("a"), working("old", "2026-11-30T09:00:00Z")], endless=True)
    assert seen_by(host) == ([], ["a"])
    assert host.served == 1


def test_find_on_a_host_that_lists_the_oldest_first() -> None:
    """The look would stop at the first page, and a batch be paid twice."""
    first = [working("o", "2026-11-30T08:00:00Z"), working("p", "2026-11-30T09:00:00Z")]
    assert seen_by(ListHost(first, [working("a")])) == ([], ["a"])


def test_find_with_a_repeated_cursor() -> None:
    """A broken host would hold a run in an endless loop, or be believed."""
    results = results_of("mine")
    host = ListHost([record("mine")], repeat=True, results=results)
    assert seen_by(host) == (["mine"], [])
    assert host.served == 2
    for blind in ([record("other")], [working("a")]):
        with pytest.raises(ProviderError, match="list_incomplete"):
            seen_by(ListHost(blind, repeat=True, results=results))


def test_find_is_bounded_where_nothing_says_when() -> None:
    """A look would never end on a host with an endless list."""
    host = ListHost([working("a", "2020-11-30T10:00:00Z")], endless=True)
    assert seen_by(host, None) == ([], ["a"])
    assert host.served == 10


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": "x"}, {"data": {}}, b"null"])
def test_a_list_that_is_none_proves_nothing(body: Any) -> None:
    """An answer of a proxy would be taken for proof that there is no batch."""
    with connected(Reply(body=body)) as (provider, _), pytest.raises(ProviderError):
        provider.find(wanted())


def test_listing_ends_where_it_was_asked_to() -> None:
    """Reconciling would read an account's whole history, or take half a list for all of it."""
    page = [working("a"), working("old", "2026-11-30T09:00:00Z")]
    with connected(ListHost(page, endless=True)) as (provider, _):
        assert [batch.batch_id for batch in provider.list_batches(since=NOW)] == ["a"]
    host = ListHost([working("a")], repeat=True)
    with connected(host) as (provider, _), pytest.raises(ProviderError, match="list_incomplete"):
        list(provider.list_batches(since=NOW))


def test_an_upload_only_asks_for_the_time(requests: Path) -> None:
    """Requests would be sent twice, or the provider's time stay unknown."""
    reply = Reply(body={"data": []}, headers={"date": "Mon, 30 Nov 2026 10:00:00 GMT"})
    with connected(reply) as (provider, host):
        upload = provider.upload(requests, key="k")
    assert (upload.ref, upload.server_time) == (None, NOW)
    assert [(seen.method, seen.path) for seen in host.seen] == [
        ("GET", "/v1/messages/batches?limit=1")
    ]


def download(provider: AnthropicProvider, result: dict[str, Any], folder: Path) -> bytes:
    """Download results."""
    (part,) = provider.download_results(result, folder, lambda: None)
    return part.path.read_bytes()


def test_the_key_goes_to_no_other_host(tmp_path: Path) -> None:
    """Whoever can write a results_url would learn the key."""
    stranger = OddHost(lambda _: Reply(body=b"{}\n"))
    try:
        for url in (f"{stranger.url}/x", f"//{stranger.url.partition('//')[2]}/x", "ftp://e/x"):
            with connected(Reply(body=b'{"own":1}\n')) as (provider, host):
                result = {"batch_id": "msgbatch_a/../b", "results_url": url}
                assert download(provider, result, tmp_path) == b'{"own":1}\n'
            (seen,) = host.seen
            assert seen.path == "/v1/messages/batches/msgbatch_a%2F..%2Fb/results"
    finally:
        stranger.close()
    assert not stranger.seen


def test_an_own_address_is_used(tmp_path: Path) -> None:
    """Results that lie elsewhere at the provider could not be had."""
    with connected(Reply(body=b"{}\n")) as (provider, host):
        for url in (f"{host.url}/elsewhere?x=1", "http://[::1", None):
            download(provider, {"batch_id": "b", "results_url": url}, tmp_path)
    paths = [seen.path for seen in host.seen]
    assert paths == ["/elsewhere?x=1", *["/v1/messages/batches/b/results"] * 2]
    assert {seen.headers["accept"] for seen in host.seen} == {"application/binary"}


def test_results_behind_a_redirect(tmp_path: Path) -> None:
    """Results in a blob store could not be had, or the key be sent to a stranger."""
    blob = OddHost(lambda _: Reply(body=b"{}\n"))
    moved = Reply(status=302, headers={"location": f"{blob.url}/blob"}, body={})
    try:
        with connected(moved) as (provider, _):
            assert download(provider, {"batch_id": "b"}, tmp_path) == b"{}\n"
    finally:
        blob.close()
    assert "authorization" not in blob.seen[0].headers


@pytest.mark.parametrize("status", [404, 410])
def test_results_that_are_gone(status: int, tmp_path: Path) -> None:
    """A run would ask for ever for results that were deleted."""
    with connected(Reply(status=status, body={})) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            download(provider, {"batch_id": "b"}, tmp_path)
        assert caught.value.fault.kind is FaultKind.MISSING
        found = provider.download_results(
            {"batch_id": "b"}, tmp_path, lambda: None, leave_out_missing=True
        )
        assert found == []


@pytest.mark.parametrize("result", [{"batch_id": "b", "archived_at": "2026"}, {}])
def test_results_that_cannot_be_there(result: dict[str, Any], tmp_path: Path) -> None:
    """A run would ask for ever for results that were archived."""
    with connected(Reply(body=b"")) as (provider, host), pytest.raises(ProviderError) as caught:
        download(provider, result, tmp_path)
    assert caught.value.fault.kind is FaultKind.MISSING
    assert not host.seen


def test_compressed_results(tmp_path: Path) -> None:
    """Compressed bytes would be stored as answers."""
    reply = Reply(body=gzip.compress(b"{}\n"), headers={"content-encoding": "gzip"})
    with connected(reply) as (provider, _):
        assert download(provider, {"batch_id": "b"}, tmp_path) == b"{}\n"


def test_a_huge_retry_after_blocks_nobody() -> None:
    """A hostile header would put a thread to sleep for days, as it does with the SDK's retries."""
    reply = Reply(status=429, body={}, headers={"retry-after": "4294967"})
    with connected(reply) as (provider, host), pytest.raises(ProviderError) as caught:
        provider.get("b")
    assert (caught.value.fault.kind, caught.value.fault.retry_after_s) == (
        FaultKind.CAPACITY,
        3_600.0,
    )
    assert len(host.seen) == 1


@pytest.mark.parametrize("status", [400, 404, 409, 410])
def test_what_has_ended_or_is_gone(status: int) -> None:
    """A cancelled run would fail at batches that had ended, a finished one at those it deleted."""
    with connected(Reply(status=status, body={})) as (provider, host):
        provider.cancel("b")
        provider.delete_remote(upload_ref=None, result={"batch_id": "b"})
        provider.delete_remote(upload_ref=None, result=None)
        provider.delete_remote(upload_ref="file-x", result={})
    assert [(seen.method, seen.path) for seen in host.seen] == [
        ("POST", "/v1/messages/batches/b/cancel"),
        ("DELETE", "/v1/messages/batches/b"),
    ]


@pytest.mark.parametrize("status", [401, 429, 500])
def test_cancelling_may_fail(status: int) -> None:
    """A batch would count as cancelled while it goes on."""
    with connected(Reply(status=status, body={})) as (provider, _), pytest.raises(ProviderError):
        provider.cancel("b")


def test_messages_do_not_show_the_key(requests: Path) -> None:
    """The key would be stored and logged with an error of a host that repeats the headers."""

    def echo(seen: Seen) -> Reply:
        message = f"bad {seen.headers['authorization']}"
        return Reply(status=400, body={"error": {"type": "x", "message": message}})

    with connected(echo) as (provider, _):
        calls: list[Callable[[], Any]] = [
            lambda: provider.get("b"),
            lambda: create(provider, requests),
            lambda: provider.upload(requests, key="k"),
        ]
        for call in calls:
            with pytest.raises(ProviderError) as caught:
                call()
            assert "bad Bearer [redacted]" in caught.value.fault.message
            assert SECRET not in f"{caught.value}{caught.value.__cause__}"


def test_rows_do_not_show_the_key(tmp_path: Path) -> None:
    """The key would be written into the results that analysts read."""
    error = {"type": "error", "error": {"type": "api_error", "message": f"key {SECRET}"}}
    line = json.dumps({"custom_id": "a-0", "result": {"type": "errored", "error": error}})
    with connected(Reply()) as (provider, _):
        answer = provider.decode(RawPart(kind="output", path=tmp_path), line.encode())
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.message == "key [redacted]"


def test_an_unreachable_host_says_so() -> None:
    """The reason of an outage would be hidden behind "Connection error."."""
    with connected(Reply()) as (provider, host):
        host.close()
        with pytest.raises(ProviderError) as caught:
            provider.get("b")
    assert caught.value.fault.kind is FaultKind.TRANSIENT
    assert "refused" in caught.value.fault.message


@pytest.mark.parametrize("batch_id", ["", "..", "a/../../b?x=1"])
def test_odd_ids_reach_no_other_address(batch_id: str) -> None:
    """An id that a host made up would make us call, or delete, something else."""
    with connected(Reply(body=record())) as (provider, host):
        for call in (provider.get, provider.cancel):
            with contextlib.suppress(ProviderError):
                call(batch_id)
        provider.delete_remote(upload_ref=None, result={"batch_id": "a/b"})
    own = "/v1/messages/batches/"
    assert all(seen.path.startswith(own) and ".." not in seen.path.split("/") for seen in host.seen)
    assert host.seen[-1].path == f"{own}a%2Fb"
