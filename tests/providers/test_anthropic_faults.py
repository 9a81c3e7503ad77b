"""Anthropic's errors in our taxonomy (facts 1.2 and 4), row by row."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import FaultKind, FaultOwner
from batchor_core.providers.anthropic.faults import (
    BILLING_CODES,
    DEFINITE_REFUSALS,
    call_fault,
    item_fault,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def body(kind: str, message: str = "m", **details: Any) -> dict[str, Any]:
    """Make the body of an error."""
    error = {"type": kind, "message": message} | ({"details": details} if details else {})
    return {"type": "error", "error": error, "request_id": "req_1"}


CALLS = [
    (400, body("invalid_request_error"), FaultKind.REJECTED, "invalid_request_error"),
    (
        400,
        body("invalid_request_error", "Your credit balance is too low to access the API."),
        FaultKind.ACCOUNT,
        "invalid_request_error",
    ),
    (
        400,
        body("invalid_request_error", "requests: List should have at most 100000 items"),
        FaultKind.SIZE,
        "invalid_request_error",
    ),
    (400, body("request_too_large"), FaultKind.SIZE, "request_too_large"),
    (401, body("authentication_error"), FaultKind.ACCOUNT, "authentication_error"),
    (402, body("billing_error"), FaultKind.ACCOUNT, "billing_error"),
    (403, body("permission_error"), FaultKind.ACCOUNT, "permission_error"),
    (404, body("not_found_error"), FaultKind.MISSING, "not_found_error"),
    (410, None, FaultKind.MISSING, "http_410"),
    (405, None, FaultKind.REJECTED, "http_405"),
    (413, body("request_too_large"), FaultKind.SIZE, "request_too_large"),
    (413, "<html>nginx</html>", FaultKind.SIZE, "http_413"),
    (422, body("invalid_request_error"), FaultKind.REJECTED, "invalid_request_error"),
    (429, body("rate_limit_error"), FaultKind.CAPACITY, "rate_limit_error"),
    (
        429,
        body("rate_limit_error", error_code="ramp_limit_exceeded"),
        FaultKind.CAPACITY,
        "ramp_limit_exceeded",
    ),
    (
        429,
        body("rate_limit_error", error_code="enforced_spend_limit_reached"),
        FaultKind.ACCOUNT,
        "enforced_spend_limit_reached",
    ),
    (408, body("timeout_error"), FaultKind.TRANSIENT, "timeout_error"),
    (409, None, FaultKind.TRANSIENT, "http_409"),
    (500, body("api_error"), FaultKind.TRANSIENT, "api_error"),
    (502, "<html>", FaultKind.TRANSIENT, "http_502"),
    (504, body("timeout_error"), FaultKind.TRANSIENT, "timeout_error"),
    (529, body("overloaded_error"), FaultKind.TRANSIENT, "overloaded_error"),
    (307, None, FaultKind.TRANSIENT, "http_307"),
]


@pytest.mark.parametrize(("status", "error", "kind", "code"), CALLS)
def test_calls(status: int, error: object, kind: FaultKind, code: str) -> None:
    """A run would pause, split, wait or give up at the wrong errors."""
    fault = call_fault(status, error, {})
    assert (fault.kind, fault.code) == (kind, code)
    creating = call_fault(status, error, {}, creating=True)
    known = status in DEFINITE_REFUSALS
    assert creating.kind is (kind if known else FaultKind.UNKNOWN_OUTCOME)


@pytest.mark.parametrize("code", sorted(BILLING_CODES))
@pytest.mark.parametrize("status", [400, 429])
def test_money(status: int, code: str) -> None:
    """An account that may not spend would be asked again and again."""
    fault = call_fault(status, body("rate_limit_error", error_code=code), {})
    assert (fault.kind, fault.owner) == (FaultKind.ACCOUNT, FaultOwner.ACCOUNT)
    row = item_fault(body("rate_limit_error", error_code=code))
    assert (row.retryable, row.consumes_attempt) == (True, False)


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("would exceed your organization's limit of 200,000 batch requests in the queue.", 200_000),
        ("the limit of 5 requests that wait in the processing queue", 5),
        ("would exceed your organization's rate limit of 50 requests per minute", None),
        ("the limit of 0 requests in the queue", None),
        ("no number at all in the queue of requests", None),
    ],
)
def test_queue_limits(message: str, limit: int | None) -> None:
    """Chunks above the queue's limit would be sent for ever, or a rate be taken for a queue."""
    fault = call_fault(429, body("rate_limit_error", message), {})
    assert (fault.limit, fault.limit_unit) == (limit, "requests" if limit else None)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "4294967"}, 3_600.0),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_waiting_is_bounded(headers: dict[str, str], expected: float | None) -> None:
    """A hostile header would stop a run for weeks, as it would stop the SDK."""
    assert call_fault(429, body("rate_limit_error"), headers).retry_after_s == expected


def test_messages_fit_everywhere() -> None:
    """A message with line breaks, NULs or a megabyte would break what stores or shows it."""
    fault = call_fault(400, body("invalid\nrequest", "a\0b\nc" + "x" * 1_000_000), {})
    assert fault.code == "invalid request"
    assert fault.message.startswith("a b c")
    assert len(fault.message) <= 2_000


@given(JSON, st.sampled_from([200, 307, 400, 402, 404, 413, 429, 500, 529]))
def test_any_body_is_survived(value: Any, status: int) -> None:
    """An outage with a new error page would crash the run that reads it."""
    for error in (value, {"error": value}, {"type": "error", "error": {"details": value}}):
        fault = call_fault(status, error, {}, creating=True)
        assert fault.code
        assert fault.message
        assert item_fault(error).code
