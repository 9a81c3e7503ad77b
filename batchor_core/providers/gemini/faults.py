"""Google's errors in our taxonomy: one table for calls, one for batches, one for result lines.

Sources: the shared facts on providers, section 4, from Google's documentation and from field
reports; none of it was provoked on the live service.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchor_core.model.faults import Fault, FaultKind, FaultOwner, ItemFault
from batchor_core.providers.gemini.wire import field, mapping_of
from batchor_core.providers.wire import (
    DEFINITE_REFUSALS,
    count_of,
    one_line,
    retry_after_s,
    shortened,
)

_CODE_CHARS = 100
_MOST_DETAILS = 50
_RETRY_AFTER_CAP_S = 3_600.0


class _Rpc(NamedTuple):
    """A ``google.rpc.Code``; what it means for one item."""

    name: str
    retryable: bool
    consumes_attempt: bool


_RPC_CODES = {
    1: _Rpc("CANCELLED", retryable=True, consumes_attempt=False),
    2: _Rpc("UNKNOWN", retryable=True, consumes_attempt=True),
    3: _Rpc("INVALID_ARGUMENT", retryable=False, consumes_attempt=False),
    4: _Rpc("DEADLINE_EXCEEDED", retryable=True, consumes_attempt=True),
    5: _Rpc("NOT_FOUND", retryable=False, consumes_attempt=False),
    6: _Rpc("ALREADY_EXISTS", retryable=False, consumes_attempt=False),
    7: _Rpc("PERMISSION_DENIED", retryable=True, consumes_attempt=False),
    8: _Rpc("RESOURCE_EXHAUSTED", retryable=True, consumes_attempt=True),
    9: _Rpc("FAILED_PRECONDITION", retryable=False, consumes_attempt=False),
    10: _Rpc("ABORTED", retryable=True, consumes_attempt=True),
    11: _Rpc("OUT_OF_RANGE", retryable=False, consumes_attempt=False),
    12: _Rpc("UNIMPLEMENTED", retryable=False, consumes_attempt=False),
    13: _Rpc("INTERNAL", retryable=True, consumes_attempt=True),
    14: _Rpc("UNAVAILABLE", retryable=True, consumes_attempt=True),
    15: _Rpc("DATA_LOSS", retryable=True, consumes_attempt=True),
    16: _Rpc("UNAUTHENTICATED", retryable=True, consumes_attempt=False),
}
_NUMBERS = {rpc.name: number for number, rpc in _RPC_CODES.items()}
_UNKNOWN = 2
_NOT_FOUND = 5
_PERMISSION_DENIED = 7
_BAD_REQUEST = frozenset({3, 9})
"""What may come of an HTTP 400: only the text or the reason tells whose fault it is."""
_OF_HTTP = {400: 3, 401: 16, 402: 7, 403: 7, 404: 5, 408: 4, 409: 10, 413: 3, 416: 11, 422: 3}
_OF_HTTP |= {429: 8, 499: 1, 500: 13, 501: 12, 502: 14, 503: 14, 504: 4}

_BATCH_KINDS = {
    3: (FaultKind.REJECTED, FaultOwner.USER),
    7: (FaultKind.ACCOUNT, FaultOwner.ACCOUNT),
    8: (FaultKind.CAPACITY, FaultOwner.ACCOUNT),
    16: (FaultKind.ACCOUNT, FaultOwner.ACCOUNT),
}
_CALL_KINDS = {
    401: (FaultKind.ACCOUNT, FaultOwner.ACCOUNT),
    402: (FaultKind.ACCOUNT, FaultOwner.ACCOUNT),
    403: (FaultKind.ACCOUNT, FaultOwner.ACCOUNT),
    404: (FaultKind.MISSING, FaultOwner.PROVIDER),
    410: (FaultKind.MISSING, FaultOwner.PROVIDER),
    413: (FaultKind.SIZE, FaultOwner.USER),
    429: (FaultKind.CAPACITY, FaultOwner.ACCOUNT),
    **dict.fromkeys((400, 405, 415, 422, 501), (FaultKind.REJECTED, FaultOwner.USER)),
}
# A bad key is a 400 with INVALID_ARGUMENT; only the reason in the details tells.
_ACCOUNT_REASONS = re.compile(r"API_KEY|BILLING|SERVICE_DISABLED|ACCOUNT|CONSUMER_")
_ACCOUNT_TEXT = re.compile(
    r"api key (?:not valid|expired|not found)|enable billing|location is not supported",
    re.IGNORECASE,
)
_SIZE_TEXT = re.compile(
    r"payload size exceeds|(?:file|request|payload)[^.]{0,40} too large|maximum file size",
    re.IGNORECASE,
)
# The Files API answers 403 for a file that is not there (any more).
_MISSING_TEXT = re.compile(r"or it may not exist", re.IGNORECASE)
_HTTP_IN_TEXT = re.compile(r"(?<!\d)([45]\d\d)(?!\d)")


def call_fault(
    status: int, body: object, headers: Mapping[str, str], *, creating: bool = False
) -> Fault:
    """Classify an HTTP error answer.

    Args:
        status: The HTTP status.
        body: The decoded body, of whatever shape.
        headers: The answer's headers, lower case.
        creating: Whether the call creates a batch: what is not a definite refusal may then have
            taken effect.
    """
    error = _error_object(body)
    text = _message(error) or f"HTTP {status} without a message"
    kind, owner = _call_kind(status, error, text)
    if creating and status not in DEFINITE_REFUSALS:
        kind, owner = FaultKind.UNKNOWN_OUTCOME, FaultOwner.PROVIDER
    limit = _enqueued_limit(error) if kind is FaultKind.CAPACITY else None
    return Fault(
        kind=kind,
        owner=owner,
        code=_status_name(error) or f"http_{status}",
        message=text,
        retry_after_s=retry_after_s(headers) or _retry_delay_s(error),
        limit=limit,
        limit_unit="tokens" if limit else None,
    )


def batch_fault(error: object) -> Fault:
    """Classify the ``error`` of a failed batch; nothing of it ran."""
    entry = _error_object(error)
    number = _rpc_number(entry) if entry else None
    kind, owner = _batch_kind(number, entry)
    limit = _enqueued_limit(entry) if kind is FaultKind.CAPACITY else None
    return Fault(
        kind=kind,
        owner=owner,
        code=_RPC_CODES[number].name if number else "batch_failed",
        message=_message(entry) or "the provider named no reason",
        retry_after_s=_retry_delay_s(entry),
        limit=limit,
        limit_unit="tokens" if limit else None,
    )


def line_fault(error: object) -> ItemFault:
    """Classify the error of one result line: a ``google.rpc.Status``, or a text that has one."""
    entry = _error_object(error)
    number = _rpc_number(entry)
    rpc = _RPC_CODES[number]
    return ItemFault(
        code=rpc.name,
        message=_message(entry) or "the provider gave no reason",
        retryable=rpc.retryable or (number in _BAD_REQUEST and _is_about_account(entry)),
        consumes_attempt=rpc.consumes_attempt,
    )


def _call_kind(status: int, error: Mapping[str, Any], text: str) -> tuple[FaultKind, FaultOwner]:
    if status == 400 and _is_about_account(error):
        return FaultKind.ACCOUNT, FaultOwner.ACCOUNT
    if status == 400 and _SIZE_TEXT.search(text):
        return FaultKind.SIZE, FaultOwner.USER
    if status == 403 and _MISSING_TEXT.search(text):
        return FaultKind.MISSING, FaultOwner.PROVIDER
    return _CALL_KINDS.get(status, (FaultKind.TRANSIENT, FaultOwner.PROVIDER))


def _batch_kind(number: int | None, error: Mapping[str, Any]) -> tuple[FaultKind, FaultOwner]:
    if number in _BAD_REQUEST and _is_about_account(error):
        return FaultKind.ACCOUNT, FaultOwner.ACCOUNT
    if number in _BAD_REQUEST and _SIZE_TEXT.search(_message(error)):
        return FaultKind.SIZE, FaultOwner.USER
    return _BATCH_KINDS.get(number or _UNKNOWN, (FaultKind.TRANSIENT, FaultOwner.PROVIDER))


def _rpc_number(error: Mapping[str, Any]) -> int:
    """Return the RPC code that an error means: a file that is not there is no lack of rights."""
    number = _said_number(error)
    is_missing = number == _PERMISSION_DENIED and _MISSING_TEXT.search(_message(error))
    return _NOT_FOUND if is_missing else number


def _said_number(error: Mapping[str, Any]) -> int:
    """Return the RPC code of an error that says it by number, by name, or as an HTTP status."""
    code = count_of(error.get("code"))
    if code is not None and code in _RPC_CODES:
        return code
    name = str(error.get("status") or error.get("code") or "").upper()
    if name in _NUMBERS:
        return _NUMBERS[name]
    if code is None:
        in_text = _HTTP_IN_TEXT.search(str(error.get("message") or ""))
        code = int(in_text.group(1)) if in_text else None
    return _OF_HTTP.get(code or 0, _UNKNOWN)


def _status_name(error: Mapping[str, Any]) -> str:
    value = error.get("status")
    return one_line(value)[:_CODE_CHARS] if isinstance(value, str) else ""


def _message(error: Mapping[str, Any]) -> str:
    value = error.get("message") or ""
    return shortened(one_line(value if isinstance(value, str) else str(value)))


def _error_object(body: object) -> Mapping[str, Any]:
    """Return the error in a body: alone, under ``error``, in a list, or a text."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, Mapping):
        error = body.get("error") or body
        if isinstance(error, Mapping):
            return error
        body = error
    return {"message": body[:2_000]} if isinstance(body, str) and body else {}


def _details(error: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    for entry in details[:_MOST_DETAILS] if isinstance(details, list) else ():
        if isinstance(entry, Mapping):
            yield entry


def _is_about_account(error: Mapping[str, Any]) -> bool:
    return bool(_ACCOUNT_TEXT.search(_message(error))) or any(
        isinstance(entry.get("reason"), str) and _ACCOUNT_REASONS.search(entry["reason"])
        for entry in _details(error)
    )


def _retry_delay_s(error: Mapping[str, Any]) -> float | None:
    """Return the seconds that ``RetryInfo`` asks to wait, at most an hour."""
    for entry in _details(error):
        delay = field(entry, "retryDelay")
        if isinstance(delay, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?s", delay):
            return min(float(delay[:-1]), _RETRY_AFTER_CAP_S)
    return None


def _enqueued_limit(error: Mapping[str, Any]) -> int | None:
    """Return the limit of enqueued tokens that ``QuotaFailure`` names."""
    for entry in _details(error):
        violations = entry.get("violations")
        for violation in violations[:_MOST_DETAILS] if isinstance(violations, list) else ():
            quota = mapping_of(violation)
            name = f"{field(quota, 'quotaMetric')} {field(quota, 'quotaId')}".lower()
            limit = count_of(field(quota, "quotaValue"))
            if limit and "enqueued" in name and "token" in name:
                return limit
    return None
