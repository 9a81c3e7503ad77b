"""What Vertex AI and Google's credentials do, without a bucket behind them."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.auth import exceptions
from google.auth.credentials import Credentials

from batchor_core.errors import ProviderError
from batchor_core.model.faults import FaultKind
from batchor_core.providers.gemini import GeminiProviderConfig
from batchor_core.providers.protocol import BatchPhase, RawPart
from batchor_core.testing.provider_suite import create, wanted
from tests.providers.odd_host import OddHost, Reply, Script, Seen

pytest.importorskip("gcsfs")

from batchor_core.providers.gemini.adapter import VertexProvider

TOKEN = "ya29.odd-host-0123456789"
PLACE = "projects/p/locations/europe-west4"
JOB = {"name": f"{PLACE}/batchPredictionJobs/1", "state": "JOB_STATE_PENDING"}


class OddCredentials(Credentials):  # type: ignore[misc]  # google-auth has no types
    """Credentials whose renewal fails, where an error is given."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error
        self.token = None if error else TOKEN
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def refresh(self, request: Any) -> None:
        """Fail."""
        assert self._error is not None
        raise self._error


@contextmanager
def odd_vertex(
    script: Script | Reply, *, error: Exception | None = None, **fields: Any
) -> Iterator[tuple[VertexProvider, OddHost]]:
    """Run a host, with an adapter connected to it."""
    host = OddHost(script if callable(script) else lambda _: script)
    given = {"model": "gemini-test", "project": "p", "location": "europe-west4", **fields}
    config = GeminiProviderConfig(
        backend="vertex", base_url=host.url, gcs_uri="gs://b/x/", timeout_s=10, **given
    )
    try:
        with closing(VertexProvider(config, credentials=OddCredentials(error))) as provider:
            yield provider, host
    finally:
        host.close()


@pytest.mark.parametrize(
    ("model", "resource"),
    [
        ("gemini-test", "publishers/google/models/gemini-test"),
        ("publishers/google/models/gemini-test", "publishers/google/models/gemini-test"),
        ("projects/p/locations/l/models/1", "projects/p/locations/l/models/1"),
    ],
)
def test_what_a_create_call_sends(tmp_path: Path, model: str, resource: str) -> None:
    """The job would be refused, or could not be told apart from others in the console."""
    with odd_vertex(Reply(body=JOB), model=model) as (provider, host):
        provider.create(
            upload_ref="gs://b/x/k/requests.jsonl",
            path=tmp_path,
            key="run/0/sub",
            tags={"batchor_run": "run-1", "odd": "Not A Label"},
            timeout_s=5,
        )
    (seen,) = host.seen
    assert (seen.method, seen.path) == ("POST", f"/v1beta1/{PLACE}/batchPredictionJobs")
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert json.loads(seen.body) == {
        "displayName": "run/0/sub",
        "model": resource,
        "inputConfig": {
            "instancesFormat": "jsonl",
            "gcsSource": {"uris": ["gs://b/x/k/requests.jsonl"]},
        },
        "outputConfig": {
            "predictionsFormat": "jsonl",
            "gcsDestination": {"outputUriPrefix": "gs://b/x/k/output"},
        },
        "labels": {"batchor_run": "run-1"},
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.RefreshError("invalid_grant"), FaultKind.ACCOUNT),
        (exceptions.TransportError("no network"), FaultKind.TRANSIENT),
    ],
)
def test_credentials_that_cannot_be_renewed(
    tmp_path: Path, error: Exception, kind: FaultKind
) -> None:
    """A chunk that was never sent would be looked for, or the run go on without an account."""
    with odd_vertex(Reply(body=JOB), error=error) as (provider, host):
        for call in (
            lambda: provider.get(JOB["name"]),
            lambda: create(provider, tmp_path, "gs://b/x/k/requests.jsonl"),
            lambda: provider.find(wanted(None)),
        ):
            with pytest.raises(ProviderError) as caught:
                call()
            assert caught.value.fault.kind is kind
        assert host.seen == []


def test_the_token_is_never_shown(tmp_path: Path) -> None:
    """Whoever reads the log could use the project for an hour."""
    error = {"error": {"code": 400, "message": f"bad token {TOKEN}", "status": "INVALID_ARGUMENT"}}
    reply = Reply(status=400, body=error)
    with odd_vertex(reply) as (provider, _), pytest.raises(ProviderError) as caught:
        provider.get(JOB["name"])
    assert TOKEN not in f"{caught.value} {caught.value.fault} {caught.value.__cause__}"
    line = {"status": f"Bad Request: 400 {TOKEN}", "request": {"labels": {"custom_id": "a-1"}}}
    with odd_vertex(Reply(body={})) as (provider, _):
        part = RawPart(kind="output", path=tmp_path)
        answer = provider.decode(part, json.dumps(line).encode())
    assert answer is not None
    assert answer.fault is not None
    assert TOKEN not in answer.fault.message


def test_a_job_that_failed_with_details() -> None:
    """The SDK cannot read a job whose error has details (facts 1.4)."""
    error = {"code": 8, "message": "quota", "details": [{"@type": "x"}]}
    record = {**JOB, "state": "JOB_STATE_FAILED", "error": error, "partialFailures": [error]}
    with odd_vertex(Reply(body=record)) as (provider, _):
        batch = provider.get(JOB["name"])
    assert batch.phase is BatchPhase.REJECTED
    assert batch.fault is not None
    assert batch.fault.kind is FaultKind.CAPACITY


def test_where_requests_go() -> None:
    """Data would leave the region that it has to stay in."""
    config = GeminiProviderConfig(
        model="gemini-test",
        backend="vertex",
        project="p",
        location="europe-west4",
        gcs_uri="gs://b",
    )
    with closing(VertexProvider(config, credentials=OddCredentials())) as provider:
        assert provider.host == "europe-west4-aiplatform.googleapis.com"
        assert provider.account == f"gemini:{provider.host}:p:europe-west4"
        assert provider.scope == f"{provider.account}:gemini-test"
        assert provider.limits.max_requests == 200_000


def test_the_environments_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would be paid by another project than the SDK's."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "from-environment")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
    monkeypatch.setenv("GOOGLE_API_KEY", "key-of-the-other-backend")
    with odd_vertex(Reply(body=JOB), project=None, location=None) as (provider, host):
        provider.get("batchPredictionJobs/1")
    (seen,) = host.seen
    place = "projects/from-environment/locations/us-central1"
    assert seen.path == f"/v1beta1/{place}/batchPredictionJobs/1"
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert "x-goog-api-key" not in seen.headers


@pytest.mark.parametrize(
    ("status", "works"), [(200, True), (400, True), (404, True), (403, False), (500, False)]
)
def test_cancelling(status: int, works: bool) -> None:
    """A job that has ended could not be cancelled, or one that goes on count as cancelled."""
    with odd_vertex(Reply(status=status, body=b"")) as (provider, host):
        if works:
            provider.cancel(JOB["name"])
        else:
            with pytest.raises(ProviderError):
                provider.cancel(JOB["name"])
        assert [seen.path for seen in host.seen] == [f"/v1beta1/{JOB['name']}:cancel"]


def test_a_filter_that_is_refused() -> None:
    """No look would ever succeed, and a chunk wait for ever."""
    ours = {**JOB, "displayName": "run_a/0/sub_a"}

    def script(seen: Seen) -> Reply:
        if "filter=" in seen.path:
            return Reply(status=400, body={"error": {"status": "INVALID_ARGUMENT"}})
        return Reply(body={"batchPredictionJobs": [ours]})

    with odd_vertex(script) as (provider, _):
        assert len(provider.find(wanted(None)).matches) == 1


def test_a_filter_that_is_not_heeded() -> None:
    """Another run's job would be adopted, and ours be created and paid again."""
    other = {**JOB, "displayName": "another"}
    with odd_vertex(Reply(body={"batchPredictionJobs": [other]})) as (provider, host):
        assert not provider.find(wanted("gs://b/x/k/requests.jsonl")).matches
    assert ["filter=" in seen.path for seen in host.seen] == [True, False]
