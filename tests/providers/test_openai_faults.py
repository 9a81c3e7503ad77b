"""OpenAI's error tables: calls, batches, lines; and what their messages may not show."""

import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from batchor_core.errors import MissingCredentialsError, ProviderError
from batchor_core.model.faults import FaultKind, ItemErrorCode
from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.openai.faults import (
    batch_fault,
    call_fault,
    line_fault,
    named_limit,
    unexecuted_fault,
)
from batchor_core.providers.scrubbing import REDACTED
from batchor_core.providers.wire import retry_after_s
from batchor_core.testing.provider_suite import wanted
from tests.providers.odd_host import SECRET, Reply, Seen, odd_provider

ENQUEUED = (
    "Enqueued token limit reached for gpt-4o-2024-08-06 in organization org-AbC. Limit: 90,000 "
    "enqueued tokens. Please try again once some in_progress batches have been completed."
)
TOO_MANY = "You exceeded your current quota, please check your plan and billing details."
RPM = "Rate limit reached for gpt-4o on requests per min (RPM): Limit 3, Used 3, Requested 1."
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def _error(message: str = "m", code: Any = None, kind: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, _error("bad", "invalid_value", "invalid_request_error"), FaultKind.REJECTED),
        (400, _error(ENQUEUED), FaultKind.CAPACITY),
        (400, _error("later", "token_limit_exceeded"), FaultKind.CAPACITY),
        (400, {"error": {"code": "token_limit_exceeded"}}, FaultKind.CAPACITY),
        (400, _error("File is too large: 1 bytes."), FaultKind.SIZE),
        (400, _error("x", "too_many_tasks"), FaultKind.SIZE),
        (400, _error("x", "billing_hard_limit_reached"), FaultKind.ACCOUNT),
        (401, _error("x", "invalid_api_key"), FaultKind.ACCOUNT),
        (402, None, FaultKind.ACCOUNT),
        (403, _error("region"), FaultKind.ACCOUNT),
        (404, _error("No such batch"), FaultKind.MISSING),
        (410, None, FaultKind.MISSING),
        (408, None, FaultKind.TRANSIENT),
        (409, _error("conflict"), FaultKind.TRANSIENT),
        (413, "<html>Request Entity Too Large</html>", FaultKind.SIZE),
        (415, None, FaultKind.REJECTED),
        (422, {"detail": [{"loc": ["body"]}]}, FaultKind.REJECTED),
        (429, _error(RPM, "rate_limit_exceeded"), FaultKind.CAPACITY),
        (429, _error(TOO_MANY, "insufficient_quota"), FaultKind.ACCOUNT),
        (429, _error(TOO_MANY, None, "insufficient_quota"), FaultKind.ACCOUNT),
        (429, _error(TOO_MANY, "429", "insufficient_quota"), FaultKind.ACCOUNT),
        (429, _error("x", "billing_not_active"), FaultKind.ACCOUNT),
        (429, _error("x", "ramp_limit_exceeded"), FaultKind.CAPACITY),
        (429, None, FaultKind.CAPACITY),
        (500, _error("boom"), FaultKind.TRANSIENT),
        (500, _error(ENQUEUED, "token_limit_exceeded"), FaultKind.TRANSIENT),
        (502, "<html>Bad Gateway</html>", FaultKind.TRANSIENT),
        (529, _error("x", None, "overloaded_error"), FaultKind.TRANSIENT),
        (429, [{"error": {"code": 429, "message": "Google's shape"}}], FaultKind.CAPACITY),
        (307, None, FaultKind.TRANSIENT),
    ],
)
def test_the_table_of_calls(status: int, body: object, kind: FaultKind) -> None:
    """A refusal would pause, split or repeat where it should do another of these."""
    assert call_fault(status, body, {}).kind is kind
    creating = call_fault(status, body, {}, creating=True).kind
    definite = 400 <= status < 500 and status not in (408, 409)
    assert creating is (kind if definite else FaultKind.UNKNOWN_OUTCOME)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (_error("two\nlines\x00 \ud800", "c"), "c", "two lines ?"),
        ({"error": "a text"}, "http_400", "a text"),
        ({"error": None, "message": "beside"}, "http_400", "beside"),
        ({"detail": "fastapi"}, "http_400", "fastapi"),
        ({"code": 7, "message": {"a": 1}}, "7", "{'a': 1}"),
        ("plain", "http_400", "plain"),
        ([], "http_400", "HTTP 400 without a message"),
        ({}, "http_400", "HTTP 400 without a message"),
    ],
)
def test_messages_are_one_line_for_people(body: object, code: str, message: str) -> None:
    """The reason of a pause would be lost, or a database would refuse to store it."""
    fault = call_fault(400, body, {})
    assert (fault.code, fault.message) == (code, message)


@pytest.mark.parametrize(
    ("text", "limit", "unit"),
    [
        (ENQUEUED, 90_000, "tokens"),
        ("Limit: 90,000 enqueued tokens", 90_000, "tokens"),
        ("Enqueued token limit reached for m in organization o. Limit: 5,000,000.", 5_000_000, "t"),
        ("Enqueued request limit reached for m. Limit: 1,000,000 enqueued requests.", 10**6, "r"),
        ("Enqueued request limit reached: at most 1,000,000 enqueued requests", 10**6, "r"),
        ("Enqueued request limit reached for m. Limit: 500", 500, "r"),
        (
            "token_limit_exceeded The enqueued token limit of 200 000 tokens is used up",
            200_000,
            "t",
        ),
        ("Enqueued token limit reached. Limit: 0 enqueued tokens.", None, None),
        ("Enqueued token limit reached. Limit: 1.5M enqueued tokens.", None, None),
        ("Enqueued token limit reached. Limit: " + "9" * 30, None, None),
        ("Enqueued token limit reached for gpt-4", None, None),
        (RPM, None, None),
        ("Rate limit: 60/min. enqueued", None, None),
        ("", None, None),
    ],
)
def test_named_limits(text: str, limit: int | None, unit: str | None) -> None:
    """A chunk that fits would be given up as too large, or one that never fits be sent for ever."""
    found_limit, found_unit = named_limit(text)
    assert found_limit == limit
    assert (found_unit or "")[:1] == (unit or "")[:1]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "0.2"}, 0.2),
        ({"retry-after": "130"}, 130.0),
        ({"retry-after": "1e9"}, 3600.0),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"retry-after": "Mon, 30 Nov 2026 10:01:30 GMT"}, None),
        (
            {
                "retry-after": "Mon, 30 Nov 2026 10:01:30 GMT",
                "date": "Mon, 30 Nov 2026 10:00:00 -0000",
            },
            90.0,
        ),
        (
            {
                "retry-after": "Mon, 30 Nov 2026 09:00:00 GMT",
                "date": "Mon, 30 Nov 2026 10:00:00 GMT",
            },
            0.0,
        ),
        (
            {
                "retry-after": "Mon, 30 Nov 2099 09:00:00 GMT",
                "date": "Mon, 30 Nov 2026 10:00:00 GMT",
            },
            3600.0,
        ),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """A hostile header would block a run for years, or a polite one be ignored."""
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("errors", "kind", "code", "lines"),
    [
        ({"data": [{"code": "c", "line": 3, "message": "m"}]}, FaultKind.REJECTED, "c", [3]),
        ({"data": [{"code": "c", "line": "3"}, {"line": 0}]}, FaultKind.REJECTED, "c", [3]),
        ({"data": [{"line": True}, {"line": 2.5}]}, FaultKind.REJECTED, "batch_failed", []),
        ({"data": [{"message": ENQUEUED}]}, FaultKind.CAPACITY, "batch_failed", []),
        (
            {"data": [{"code": "token_limit_exceeded", "line": 1}]},
            FaultKind.CAPACITY,
            "token_limit_exceeded",
            [],
        ),
        (
            {"data": [{"code": "billing_hard_limit_reached"}]},
            FaultKind.ACCOUNT,
            "billing_hard_limit_reached",
            [],
        ),
        ({"data": None}, FaultKind.REJECTED, "batch_failed", []),
        ({"data": "text"}, FaultKind.REJECTED, "batch_failed", []),
        ({"code": "alone", "line": 1}, FaultKind.REJECTED, "alone", [1]),
        ([{"code": "in_list", "line": 1}, "text", 7], FaultKind.REJECTED, "in_list", [1]),
        (ENQUEUED, FaultKind.CAPACITY, "batch_failed", []),
        (None, FaultKind.REJECTED, "batch_failed", []),
    ],
)
def test_the_table_of_batches(errors: object, kind: FaultKind, code: str, lines: list[int]) -> None:
    """Healthy rows would fail with the bad ones, or a full queue count as a failure."""
    fault, named = batch_fault(errors)
    assert (fault.kind, fault.code, list(named)) == (kind, code, lines)
    assert fault.message
    assert not any(line.retryable or line.consumes_attempt for line in named.values())


@pytest.mark.parametrize(
    ("status", "code", "retryable", "consumes"),
    [
        (400, "invalid_value", False, False),
        (404, "model_not_found", False, False),
        (413, None, False, False),
        (422, None, False, False),
        (401, "invalid_api_key", True, False),
        (402, None, True, False),
        (403, None, True, False),
        (408, None, True, True),
        (409, None, True, True),
        (429, "rate_limit_exceeded", True, True),
        (429, "insufficient_quota", True, False),
        (500, "server_error", True, True),
        (503, None, True, True),
        (0, None, True, True),
        (-1, None, True, True),
    ],
)
def test_the_table_of_lines(status: int, code: str | None, retryable: bool, consumes: bool) -> None:
    """A row would be paid for again in vain, or be given up though it could still succeed."""
    fault = line_fault(status, _error("m", code))
    assert (fault.retryable, fault.consumes_attempt) == (retryable, consumes)
    expected = ItemErrorCode.TRANSPORT if status <= 0 else code or f"http_{status}"
    assert fault.code == expected


@pytest.mark.parametrize(
    ("error", "code", "consumes"),
    [
        ({"code": "batch_expired", "message": "m"}, "batch_expired", False),
        ({"code": "batch_cancelled"}, "batch_cancelled", False),
        ({"code": "batch_canceled"}, "batch_canceled", False),
        ({"code": "other"}, "other", True),
        ("a text", "not_executed", True),
    ],
)
def test_lines_that_were_not_executed(error: object, code: str, consumes: bool) -> None:
    """A row that a provider never ran would use up its attempts."""
    fault = unexecuted_fault(error)
    assert (fault.code, fault.retryable, fault.consumes_attempt) == (code, True, consumes)


@given(status=st.integers(-1, 999), body=JSON, creating=st.booleans())
def test_no_shape_of_an_error_raises(status: int, body: object, creating: bool) -> None:
    """An error of a new shape would crash a run in place of being handled."""
    fault = call_fault(status, body, {"retry-after": str(body)}, creating=creating)
    assert fault.message
    assert fault.code
    assert batch_fault(body)[0].message
    assert line_fault(status, body).message
    assert unexecuted_fault(body).message


def test_a_host_that_echoes_the_key(tmp_path: Path) -> None:
    """Keys would be written to logs, stores and tracebacks."""

    def echo(seen: Seen) -> Reply:
        body = {"error": {"message": f"sent {seen.headers['authorization']}", "code": SECRET}}
        return Reply(status=400, body=body)

    path = tmp_path / "r.jsonl"
    path.write_bytes(b"{}\n")
    with odd_provider(echo) as (provider, _):
        calls = [
            lambda: provider.get("batch_a"),
            lambda: provider.upload(path, key="k"),
            lambda: provider.find(wanted(None, "k")),
            lambda: provider.create(upload_ref="f", path=path, key="k", tags={}, timeout_s=5),
            lambda: provider.download_results({"output_file_id": "f"}, tmp_path, lambda: None),
        ]
        for call in calls:
            with pytest.raises(ProviderError) as caught:
                call()
            error = caught.value
            shown = "".join(traceback.format_exception(error)) + repr(error.fault) + repr(error)
            assert SECRET not in shown
            assert REDACTED in error.fault.message


def test_a_batch_and_a_line_that_echo_the_key(tmp_path: Path) -> None:
    """Keys would be written to the store with a batch's errors, or to a result table."""
    record = {"id": "b", "status": "failed", "errors": f"Bearer {SECRET}"}
    line = b'{"custom_id":"a","response":{"status_code":500,"body":{"error":"%s"}}}'
    with odd_provider(Reply(body=record)) as (provider, _):
        fault = provider.get("b").fault
        answer = provider.decode(None, line % SECRET.encode())  # type: ignore[arg-type]  # unused
    assert fault is not None
    assert fault.message == f"Bearer {REDACTED}"
    assert answer is not None
    assert answer.fault is not None
    assert answer.fault.message == REDACTED


@pytest.mark.parametrize("key", ["", "  ", "sk-with-a-break\n", "sk-ünicode", "sk a b"])
def test_keys_that_cannot_be_sent(key: str) -> None:
    """A key read from a file with its line break would fail later, as if the network were down."""
    config = OpenAIProviderConfig(model="m", api_key=SecretStr(key))
    if key == "sk a b":
        OpenAIProvider(config).close()
        return
    with pytest.raises(MissingCredentialsError) as caught:
        OpenAIProvider(config)
    assert key.strip() == "" or key not in str(caught.value)


def test_an_admin_key_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call would be refused, and the run pause without saying what is missing."""
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-0123456789")
    with pytest.raises(MissingCredentialsError, match="OPENAI_API_KEY"):
        OpenAIProvider(OpenAIProviderConfig(model="m"))


def test_credentials_in_a_url_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy's password would become part of stored scopes and accounts."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:pass@127.0.0.1:9/v1")
    provider = OpenAIProvider(OpenAIProviderConfig(model="m", api_key=SecretStr(SECRET)))
    assert provider.host == "127.0.0.1:9"
    assert "pass" not in provider.account + provider.scope
    provider.close()
