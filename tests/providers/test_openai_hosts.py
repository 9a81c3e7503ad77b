"""Azure and the hosts that speak OpenAI's protocol with an accent (facts 1.1 and 3)."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchor_core.errors import ConfigurationError, MissingCredentialsError, ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.records import batch_of, page_of
from batchor_core.providers.protocol import BatchPhase, RawPart
from batchor_core.providers.wire import UnusableAnswerError, object_of
from batchor_core.testing.provider_suite import wanted
from tests.providers.odd_host import SECRET, OddHost, Reply, Seen, odd_provider

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
AZURE = {
    "id": "batch_0f3a",
    "object": "batch",
    "endpoint": None,
    "metadata": None,
    "input_file_id": "file-in",
    "status": "Completed",
    "output_file_id": "file-out",
    "error_file_id": "file-err",
    "created_at": 1_764_500_000,
    "request_counts": {"total": 3, "completed": 3, "failed": 0},
}


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        *((s, BatchPhase.WORKING) for s in ("VALIDATING", "PROGRESS", "queued", "running")),
        *((s, BatchPhase.WORKING) for s in ("finalizing", "cancelling", "news", None, 7)),
        *((s, BatchPhase.ENDED) for s in ("COMPLETED", "Completed", "succeeded", "EXPIRED")),
        *((s, BatchPhase.ENDED) for s in ("cancelled", "Canceled")),
    ],
)
def test_statuses(status: object, phase: BatchPhase) -> None:
    """A batch would be waited for until the end of days, or be collected too early."""
    assert batch_of({**AZURE, "status": status}).phase is phase


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"output_file_id": "", "error_file_id": None}, BatchPhase.ENDED),  # named later
        ({"errors": {"data": [{"code": "c"}]}}, BatchPhase.ENDED),
        (
            {"errors": {"data": [{"code": "c"}]}, "request_counts": {"completed": None}},
            BatchPhase.REJECTED,
        ),
        ({"errors": "a text", "request_counts": None}, BatchPhase.REJECTED),
        ({"errors": None, "request_counts": None}, BatchPhase.ENDED),
        ({"errors": [], "request_counts": None}, BatchPhase.ENDED),
    ],
)
def test_a_failed_batch_with_result_files(fields: dict[str, Any], phase: BatchPhase) -> None:
    """Answers that were paid for would be dropped, or a rejected batch's reason be lost."""
    batch = batch_of({**AZURE, "request_counts": {"completed": 2}, "status": "Failed", **fields})
    assert batch.phase is phase
    assert (batch.fault is not None) == (phase is BatchPhase.REJECTED)


def test_azures_nulls() -> None:
    """Azure's batches could not be read at all."""
    batch = batch_of({**AZURE, "request_counts": {"total": "3", "completed": None}})
    assert (batch.key, batch.upload_ref, batch.counts) == (None, "file-in", {"total": 3})
    assert batch.created_at == datetime.fromtimestamp(1_764_500_000, UTC)


@pytest.mark.parametrize("created_at", [0, -1, 1e300, float("inf"), 1_764_500_000_000, "x", True])
def test_times_that_are_none(created_at: object) -> None:
    """One odd number would make a batch unreadable, for as long as it is polled."""
    assert batch_of({**AZURE, "created_at": created_at}).created_at is None


@given(JSON)
def test_any_record_is_survived(value: Any) -> None:
    """A host's new shape would crash the run that polls it."""
    fields = ("status", "metadata", "output_file_id", "input_file_id", "created_at", "errors")
    for field in (*fields, "request_counts"):
        batch_of({**AZURE, "status": "failed", field: value})
    for record in ({"id": value}, {"data": value}):
        for read in (batch_of, page_of):
            try:
                read(record)
            except UnusableAnswerError:
                continue


@settings(max_examples=50)
@given(st.binary(max_size=50))
def test_any_answer_is_survived(raw: bytes) -> None:
    """A proxy's page would crash a run."""
    try:
        object_of(raw)
    except UnusableAnswerError as error:
        assert "no JSON object" in str(error)  # noqa: PT017 - most bytes are none


def test_a_full_queue_at_create_is_no_rejection(tmp_path: Path) -> None:
    """On Azure every chunk that waits for its turn would be given up."""
    body = {"error": {"code": "token_limit_exceeded", "message": "The enqueued token limit is 5"}}
    with odd_provider(Reply(status=400, body=body)) as (provider, host):
        with pytest.raises(ProviderError) as caught:
            provider.create(upload_ref="f", path=tmp_path, key="k", tags={}, timeout_s=5)
        assert caught.value.fault.kind is FaultKind.CAPACITY
        assert len(host.seen) == 1


def test_a_redirected_create_is_not_repeated(tmp_path: Path) -> None:
    """A create would become two requests, of which each may make a batch."""
    reply = Reply(status=307, headers={"location": "/v1/elsewhere"}, body={})
    with odd_provider(reply) as (provider, host):
        with pytest.raises(ProviderError) as caught:
            provider.create(upload_ref="f", path=tmp_path, key="k", tags={"t": "1"}, timeout_s=5)
        assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME
        (seen,) = host.seen
    assert json.loads(seen.body) == {
        "completion_window": "24h",
        "endpoint": "/v1/responses",
        "input_file_id": "f",
        "metadata": {"batchor_key": "k", "t": "1"},
    }
    assert seen.headers["authorization"].startswith("Bearer sk-")


def test_a_create_names_its_submission_to_hosts_that_honour_it(tmp_path: Path) -> None:
    """On Perplexity a create that is repeated on the way would become two batches."""
    seen = []
    for key in ("läuft/0-abcdefgh/sub_a", "läuft/0-abcdefgh/sub_a", "läuft/0-abcdefgh/sub_b"):
        with odd_provider(Reply(body={"id": "b"})) as (provider, host):
            provider.create(upload_ref="f", path=tmp_path, key=key, tags={}, timeout_s=5)
        seen.append(host.seen[0].headers["idempotency-key"])
        assert "output_expires_after" not in json.loads(host.seen[0].body)  # it answers 400 there
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("body", [{}, {"id": ""}, {"id": None}, {"id": 7}, [], b"{", b"\xff"])
def test_a_create_without_an_id(body: Any, tmp_path: Path) -> None:
    """A batch whose id got lost would be created again and paid twice."""
    with odd_provider(Reply(body=body)) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            provider.create(upload_ref="f", path=tmp_path, key="k", tags={}, timeout_s=5)
        assert caught.value.fault.kind is FaultKind.UNKNOWN_OUTCOME


class ListHost:
    """Lists batches in pages, as odd as a test wants it."""

    def __init__(
        self,
        *pages: list[dict[str, Any]],
        uploaded_at: int | None = 1_000,
        repeat: bool = False,
        endless: bool = False,
    ) -> None:
        self.pages = pages
        self.uploaded_at = uploaded_at
        self.repeat = repeat
        self.endless = endless
        self.served = 0

    def __call__(self, seen: Seen) -> Reply:
        if "/files/" in seen.path:
            if self.uploaded_at is None:
                return Reply(status=404, body={})
            return Reply(body={"id": "f", "created_at": self.uploaded_at})
        number = min(self.served, len(self.pages) - 1)
        self.served += 1
        more = self.repeat or self.endless or number + 1 < len(self.pages)
        last = "same" if self.repeat else f"cursor-{self.served}"
        return Reply(body={"data": self.pages[number], "has_more": more, "last_id": last})


def _batch(batch_id: str, created_at: int | None = 2_000, **fields: Any) -> dict[str, Any]:
    return {"id": batch_id, "status": "in_progress", "created_at": created_at, **fields}


def _found(host: ListHost) -> list[str]:
    with odd_provider(host) as (provider, _):
        matches = provider.find(wanted("f", "k")).matches
    return [batch.batch_id for batch in matches]


def test_find_by_key_where_the_upload_is_not_told() -> None:
    """On a host that forgets the file's id, an unacknowledged batch would be paid twice."""
    mine = _batch("mine", metadata={"batchor_key": "k"})
    foreign = _batch("foreign", metadata={"batchor_key": "other"})
    assert _found(ListHost([foreign, mine, _batch("bare"), {"no": "id"}, {"id": 5}])) == ["mine"]


def test_find_trusts_the_upload_more_than_the_key() -> None:
    """A batch over another file would be taken for ours."""
    other = _batch("other", input_file_id="g", metadata={"batchor_key": "k"})
    mine = _batch("mine", input_file_id="f", metadata={"batchor_key": "z"})
    assert _found(ListHost([other, mine])) == ["mine"]


def test_find_stops_at_the_time_of_the_upload() -> None:
    """A look would page through the whole history of an account."""
    host = ListHost([_batch("young"), _batch("old", 900)], endless=True)
    assert _found(host) == []
    assert host.served == 1


def test_find_on_a_host_that_lists_the_oldest_first() -> None:
    """The look would stop at the first page, and a batch be paid twice."""
    first = [_batch("old", 100), _batch("older", 900)]
    assert _found(ListHost(first, [_batch("mine", 2_000, input_file_id="f")])) == ["mine"]


@pytest.mark.parametrize("uploaded_at", [1_000, None])
def test_find_with_a_repeated_cursor(uploaded_at: int | None) -> None:
    """A broken host would hold a run in an endless loop, or be believed."""
    mine = _batch("mine", None, input_file_id="f")
    host = ListHost([_batch("a", None), mine], repeat=True, uploaded_at=uploaded_at)
    assert _found(host) == ["mine"]
    assert host.served == 2
    blind = ListHost([_batch("a", None)], repeat=True, uploaded_at=uploaded_at)
    if uploaded_at is None:  # nothing says how far back to look
        assert _found(blind) == []
        return
    with pytest.raises(ProviderError, match="breaks off"):
        _found(blind)


def test_find_is_bounded_where_nothing_says_when() -> None:
    """A look would never end on a host with an endless list."""
    host = ListHost([_batch("a", None)], endless=True, uploaded_at=None)
    assert _found(host) == []
    assert host.served == 100


@pytest.mark.parametrize("body", [{}, {"object": "list"}, {"data": "x"}, {"data": {}}])
def test_a_list_that_is_none_proves_nothing(body: Any) -> None:
    """An answer of a proxy would be taken for proof that there is no batch."""
    with odd_provider(Reply(body=body)) as (provider, _), pytest.raises(ProviderError):
        provider.find(wanted(None, "k"))


def test_a_list_that_is_null_is_empty() -> None:
    """A host that writes null for an empty list could never settle anything."""
    with odd_provider(Reply(body={"data": None, "has_more": False})) as (provider, _):
        assert not provider.find(wanted(None, "k")).matches


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("Mon, 30 Nov 2026 10:00:00 GMT", datetime(2026, 11, 30, 10, tzinfo=UTC)),
        ("Mon, 30 Nov 2026 10:00:00 -0000", datetime(2026, 11, 30, 10, tzinfo=UTC)),
        ("Mon, 30 Nov 2026 12:00:00 +0200", datetime(2026, 11, 30, 10, tzinfo=UTC)),
        ("yesterday", None),
        ("Mon, 30 Nov 99999 10:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:00:00 -1400", None),
    ],
)
def test_the_providers_clock(date: str, expected: datetime | None) -> None:
    """The settling time would be measured wrongly, and a batch be paid twice."""
    reply = Reply(body={"data": []}, headers={"date": date})
    with odd_provider(reply) as (provider, _):
        assert provider.find(wanted(None, "k")).server_time == expected


@pytest.mark.parametrize("status", [400, 404, 409, 410])
def test_cancelling_what_has_ended(status: int) -> None:
    """A cancelled run would fail at the batches that had ended by themselves."""
    with odd_provider(Reply(status=status, body={})) as (provider, _):
        provider.cancel("batch_a")


@pytest.mark.parametrize("status", [401, 429, 500])
def test_cancelling_may_fail(status: int) -> None:
    """A batch would count as cancelled while it goes on."""
    with odd_provider(Reply(status=status, body={})) as (provider, _), pytest.raises(ProviderError):
        provider.cancel("batch_a")


def test_empty_files_and_compressed_ones(tmp_path: Path) -> None:
    """Azure's empty error file would break every collection, or gzip be stored as answers."""

    def files(seen: Seen) -> Reply:
        if "file-err" in seen.path:
            return Reply(body=b"")
        return Reply(body=gzip.compress(b'{"a":1}\n'), headers={"content-encoding": "gzip"})

    result = {"output_file_id": "file-out", "errors_file_id": "file-err"}
    with odd_provider(files) as (provider, _):
        parts = provider.download_results(result, tmp_path, lambda: None)
    contents = [(part.kind, part.path.read_bytes()) for part in parts]
    assert contents == [("output", b'{"a":1}\n'), ("errors", b"")]


def test_results_behind_a_redirect(tmp_path: Path) -> None:
    """Results in a blob store could not be had, or the key be sent to a stranger."""
    blob = OddHost(lambda _: Reply(body=b"{}\n"))
    moved = Reply(status=302, headers={"location": f"{blob.url}/blob"}, body={})
    try:
        with odd_provider(moved) as (provider, _):
            (part,) = provider.download_results({"output_file_id": "f"}, tmp_path, lambda: None)
    finally:
        blob.close()
    assert part.path.read_bytes() == b"{}\n"
    assert "authorization" not in blob.seen[0].headers


def test_an_upload_is_named_after_its_key(tmp_path: Path) -> None:
    """Hosts that look at the extension would refuse every file."""
    path = tmp_path / "local-name"
    path.write_bytes(b"{}\n")
    with odd_provider(Reply(body={"id": "f"})) as (provider, host):
        assert provider.upload(path, key="run a/0/sub_b").ref == "f"
    assert b'filename="run%20a_0_sub_b.jsonl"' in host.seen[0].body


def test_an_unreachable_host_says_so() -> None:
    """The reason of an outage would be hidden behind "Connection error."."""
    with odd_provider(Reply()) as (provider, host):
        host.close()
        with pytest.raises(ProviderError, match="refused"):
            provider.get("batch_a")


NOVITA = {"id": "batch_n", "status": "FAILED", "errors": "file is malformed", "metadata": None}
OGX = {
    "id": "batch_o",
    "status": "failed",
    "errors": {"data": [{"code": "invalid_json_line", "message": "m", "line": 2}]},
    "output_file_id": "file-o",
    "error_file_id": "file-e",
    "request_counts": None,
}


@pytest.mark.parametrize(
    ("record", "message", "lines"),
    [(NOVITA, "file is malformed", []), (OGX, "m", [2])],
    ids=["Novita", "OGX"],
)
def test_rejections_in_other_words(record: dict[str, Any], message: str, lines: list[int]) -> None:
    """A rejected batch would be waited for, or its reason be lost."""
    batch = batch_of(record)
    assert batch.phase is BatchPhase.REJECTED
    assert batch.fault is not None
    assert batch.fault.message == message
    assert list(batch.line_faults or {}) == lines


MARITACA = {"id": "batch_m", "status": "succeeded", "output_file_id": "f", "error_file_id": ""}


def test_an_end_in_other_words() -> None:
    """On Maritaca a batch would be polled for ever, and then for a file without a name."""
    batch = batch_of(MARITACA)
    assert batch.phase is BatchPhase.ENDED
    assert batch.result == {"output_file_id": "f", "errors_file_id": None}


@pytest.mark.parametrize("endpoint", ["responses", "chat", "embeddings"])
def test_an_error_beside_its_response(endpoint: str, tmp_path: Path) -> None:
    """On vLLM a failed row would not say why it failed."""
    response = {"status_code": 400, "request_id": "r", "body": None}
    error = {"error": {"message": "too long", "type": "BadRequestError"}}
    line = json.dumps({"custom_id": "a-0", "response": response, "error": error}).encode()
    fields = {"endpoint": endpoint, "dimensions": 2 if endpoint == "embeddings" else None}
    with odd_provider(Reply(), **fields) as (provider, _):
        answer = provider.decode(RawPart(kind="output", path=tmp_path), line)
    assert answer is not None
    assert answer.fault is not None
    assert (answer.fault.code, answer.fault.message) == ("BadRequestError", "too long")
    assert not answer.fault.retryable


@pytest.mark.parametrize(
    ("endpoint", "fields", "path"),
    [
        ("responses", {}, "/responses"),
        ("chat", {}, "/chat/completions"),
        ("embeddings", {"dimensions": 2}, "/embeddings"),
    ],
)
def test_azure_with_an_api_version(
    endpoint: str, fields: dict[str, Any], path: str, tmp_path: Path
) -> None:
    """On Azure every call would be refused, or every batch fail for a wrong address."""
    (tmp_path / "requests").write_bytes(b"{}\n")
    azure = {"endpoint": endpoint, "api_version": "2025-04-01-preview", **fields}
    with odd_provider(Reply(body={**AZURE, "data": []}), path="", **azure) as (provider, host):
        provider.upload(tmp_path / "requests", key="k")
        provider.create(upload_ref="f", path=tmp_path, key="k", tags={}, timeout_s=5)
        provider.get("batch_a")
        provider.find(wanted(None, "k"))
        provider.cancel("batch_a")
        provider.download_results({"output_file_id": "f"}, tmp_path, lambda: None)
        provider.delete_remote(upload_ref="f", result=None)
        coder = provider.encoder(system_prompt=None, schema=None)
        line = json.loads(coder.line("a-0", coder.encode("hello")[1]))
        assert provider.host == host.url.removeprefix("http://")
        assert provider.account.startswith(f"openai:{provider.host}:")
        assert provider.scope == f"openai:{provider.host}:::gpt-test"
    assert [(seen.method, seen.path.partition("?")[0]) for seen in host.seen] == [
        ("POST", "/openai/files"),
        ("POST", "/openai/batches"),
        ("GET", "/openai/batches/batch_a"),
        ("GET", "/openai/batches"),
        ("POST", "/openai/batches/batch_a/cancel"),
        ("GET", "/openai/files/f/content"),
        ("DELETE", "/openai/files/f"),
    ]
    for seen in host.seen:
        assert "api-version=2025-04-01-preview" in seen.path
        assert seen.headers["api-key"] == SECRET
        assert "authorization" not in seen.headers
    assert json.loads(host.seen[1].body)["endpoint"] == line["url"] == path


def test_azure_with_a_version_in_its_path() -> None:
    """Azure's newer address would be asked for a path that it does not have."""
    with odd_provider(Reply(body=AZURE), path="/openai/v1/") as (provider, host):
        provider.get("batch_a")
        coder = provider.encoder(system_prompt=None, schema=None)
    assert host.seen[0].path == "/openai/v1/batches/batch_a"
    assert host.seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert b'"url":"/v1/responses"' in coder.line("a-0", coder.encode("x")[1])


def test_azures_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key for OpenAI would be sent to Azure, or Azure's own not be found."""
    azure = {"api_version": "v", "api_key": None}
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "token-of-somebody")
    monkeypatch.delenv("AZURE_OPENAI_API_KEY", raising=False)
    with (
        pytest.raises(MissingCredentialsError, match="set AZURE_OPENAI_API_KEY"),
        odd_provider(Reply(), path="", **azure),
    ):
        pytest.fail("there is no key")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "key-of-azure")
    with odd_provider(Reply(body=AZURE), path="", **azure) as (provider, host):
        provider.get("batch_a")
    assert host.seen[0].headers["api-key"] == "key-of-azure"
    assert "authorization" not in host.seen[0].headers


def test_azures_results_behind_a_redirect(tmp_path: Path) -> None:
    """Azure's key would be sent to a stranger."""
    blob = OddHost(lambda _: Reply(body=b"{}\n"))
    moved = Reply(status=302, headers={"location": f"{blob.url}/blob"}, body={})
    try:
        with odd_provider(moved, path="", api_version="v") as (provider, _):
            provider.download_results({"output_file_id": "f"}, tmp_path, lambda: None)
    finally:
        blob.close()
    assert "api-key" not in blob.seen[0].headers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "base_url: needed beside api_version"),
        ({"base_url": "https://r.openai.azure.com/openai/v1/"}, "base_url: give the resource"),
        ({"base_url": "https://r.openai.azure.com/openai"}, "base_url: give the resource alone"),
        ({"base_url": "https://r.openai.azure.com", "project": "p"}, "Azure has none"),
    ],
)
def test_azures_configuration(fields: dict[str, Any], message: str) -> None:
    """A user would find out at the first call, by a page that says "Resource not found"."""
    with pytest.raises(ConfigurationError, match=message):
        OpenAIProviderConfig(model="deployment", api_version="2025-04-01-preview", **fields)
