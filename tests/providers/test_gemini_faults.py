"""Google's errors in our taxonomy."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.model.faults import Fault, FaultKind, ItemFault
from batchor_core.providers.gemini.faults import batch_fault, call_fault, line_fault

RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "37.5s"}


def error(status: int, name: str, message: str = "m", *details: dict[str, Any]) -> dict[str, Any]:
    """Return an error as Google's calls answer with it."""
    return {"error": {"code": status, "status": name, "message": message, "details": [*details]}}


def reason(word: str) -> dict[str, Any]:
    """Return the detail that names a reason."""
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": word}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, error(400, "INVALID_ARGUMENT", "bad field"), FaultKind.REJECTED),
        (400, error(400, "INVALID_ARGUMENT", "API key not valid."), FaultKind.ACCOUNT),
        (
            400,
            error(400, "INVALID_ARGUMENT", "x", reason("API_KEY_INVALID")),
            FaultKind.ACCOUNT,
        ),
        (
            400,
            error(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
            FaultKind.ACCOUNT,
        ),
        (
            400,
            error(400, "FAILED_PRECONDITION", "Please enable billing on project 1."),
            FaultKind.ACCOUNT,
        ),
        (
            400,
            error(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520"),
            FaultKind.SIZE,
        ),
        (401, error(401, "UNAUTHENTICATED"), FaultKind.ACCOUNT),
        (403, error(403, "PERMISSION_DENIED"), FaultKind.ACCOUNT),
        (
            403,
            error(
                403,
                "PERMISSION_DENIED",
                "You do not have permission to access the File x or it may not exist.",
            ),
            FaultKind.MISSING,
        ),
        (404, error(404, "NOT_FOUND"), FaultKind.MISSING),
        (409, error(409, "ABORTED"), FaultKind.TRANSIENT),
        (413, "<html>too large</html>", FaultKind.SIZE),
        (429, error(429, "RESOURCE_EXHAUSTED"), FaultKind.CAPACITY),
        (499, error(499, "CANCELLED"), FaultKind.TRANSIENT),
        (500, error(500, "INTERNAL"), FaultKind.TRANSIENT),
        (503, [error(503, "UNAVAILABLE")], FaultKind.TRANSIENT),
        (504, None, FaultKind.TRANSIENT),
        (307, "", FaultKind.TRANSIENT),
    ],
)
def test_errors_of_calls(status: int, body: object, kind: FaultKind) -> None:
    """A run would go on with a bad key, or be paused by a passing failure."""
    fault = call_fault(status, body, {})
    assert fault.kind is kind
    definite = status in (400, 401, 403, 404, 413, 429)
    creating = call_fault(status, body, {}, creating=True)
    assert creating.kind is (kind if definite else FaultKind.UNKNOWN_OUTCOME)


def test_what_a_fault_says() -> None:
    """Nobody could see from the run's reason what Google said."""
    fault = call_fault(404, error(404, "NOT_FOUND", "no such\nmodel"), {})
    assert (fault.code, fault.message) == ("NOT_FOUND", "no such model")
    nothing = call_fault(502, b"", {})
    assert (nothing.code, nothing.message) == ("http_502", "HTTP 502 without a message")


@pytest.mark.parametrize(
    ("details", "headers", "seconds"),
    [
        ([RETRY_INFO], {}, 37.5),
        ([{"retry_delay": "2s"}], {}, 2.0),
        ([RETRY_INFO], {"retry-after": "7"}, 7.0),
        ([{"retryDelay": "999999s"}], {}, 3_600.0),
        ([{"retryDelay": "soon"}, {"retryDelay": 3}, {"retryDelay": "-1s"}, 7, None], {}, None),
        ([], {}, None),
    ],
)
def test_how_long_to_wait(
    details: list[Any], headers: dict[str, str], seconds: float | None
) -> None:
    """A full queue would be knocked at before it has room (python-genai#1901)."""
    body = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": details}}
    assert call_fault(429, body, headers).retry_after_s == seconds


def test_the_limit_that_a_quota_names() -> None:
    """A chunk that is larger than the whole queue would be sent for ever."""
    metric = "generativelanguage.googleapis.com/batch_enqueued_tokens"
    quota = {"violations": [{"quotaMetric": metric, "quotaValue": "3000000"}]}
    fault = call_fault(429, error(429, "RESOURCE_EXHAUSTED", "m", quota), {})
    assert (fault.limit, fault.limit_unit) == (3_000_000, "tokens")
    rate = {"violations": [{"quotaId": "BatchCreatesPerMinute", "quotaValue": "5"}]}
    assert call_fault(429, error(429, "RESOURCE_EXHAUSTED", "m", rate), {}).limit is None


@pytest.mark.parametrize(
    ("told", "kind", "code"),
    [
        ({"code": 8, "message": "m"}, FaultKind.CAPACITY, "RESOURCE_EXHAUSTED"),
        ({"code": 3, "message": "m"}, FaultKind.REJECTED, "INVALID_ARGUMENT"),
        ({"code": 7, "message": "m"}, FaultKind.ACCOUNT, "PERMISSION_DENIED"),
        ({"code": 16, "message": "m"}, FaultKind.ACCOUNT, "UNAUTHENTICATED"),
        ({"code": 13, "message": "m"}, FaultKind.TRANSIENT, "INTERNAL"),
        ({"code": 5, "message": "m"}, FaultKind.TRANSIENT, "NOT_FOUND"),
        ({"code": 3, "details": [{"a": 1}]}, FaultKind.REJECTED, "INVALID_ARGUMENT"),
        (
            {"code": 3, "details": [reason("API_KEY_INVALID")]},
            FaultKind.ACCOUNT,
            "INVALID_ARGUMENT",
        ),
        ({"code": 9, "message": "Enable billing."}, FaultKind.ACCOUNT, "FAILED_PRECONDITION"),
        ({"code": 9, "message": "m"}, FaultKind.TRANSIENT, "FAILED_PRECONDITION"),
        ({"code": 3, "message": "The file is too large."}, FaultKind.SIZE, "INVALID_ARGUMENT"),
        ({"code": 13, "message": "The file is too large."}, FaultKind.TRANSIENT, "INTERNAL"),
        ({"code": 7, "message": "File x, or it may not exist."}, FaultKind.TRANSIENT, "NOT_FOUND"),
        ({"code": "8"}, FaultKind.CAPACITY, "RESOURCE_EXHAUSTED"),
        (None, FaultKind.TRANSIENT, "batch_failed"),
        ("gone wrong", FaultKind.TRANSIENT, "UNKNOWN"),
    ],
)
def test_why_a_batch_failed(told: object, kind: FaultKind, code: str) -> None:
    """A full queue would use up a chunk's rounds, or a bad key each chunk's in turn."""
    fault = batch_fault(told)
    assert (fault.kind, fault.code) == (kind, code)
    assert fault.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "error",
                    "code",
                    "status",
                    "message",
                    "details",
                    "reason",
                    "retryDelay",
                    "violations",
                    "quotaMetric",
                    "quotaValue",
                    "quotaId",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
)


@given(status=st.integers(200, 599), body=JSON)
def test_no_shape_breaks_the_tables(status: int, body: object) -> None:
    """An error of a shape that nobody thought of would stop the run with a traceback."""
    faults: list[Fault | ItemFault] = [
        call_fault(status, body, {}),
        call_fault(status, body, {}, creating=True),
        batch_fault(body),
        line_fault(body),
    ]
    for fault in faults:
        assert fault.code
        assert "\0" not in fault.code + fault.message
        assert "\n" not in fault.code + fault.message
        json.dumps(fault.message).encode()
