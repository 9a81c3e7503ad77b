"""Anthropic's errors in our taxonomy: one table for calls, one for result lines.

Sources: the shared facts on providers, sections 1.2 and 4, and the error types in Anthropic's SDK;
none of it was provoked on the live service.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchor_core.model.faults import Fault, FaultKind, FaultOwner, ItemErrorCode, ItemFault
from batchor_core.providers.anthropic.config import SAMPLING_ADVICE, SAMPLING_PARAMS
from batchor_core.providers.wire import (
    DEFINITE_REFUSALS,
    one_line,
    retry_after_s,
    shortened,
)

_CODE_CHARS = 100
_MAX_LIMIT = 10**15

BILLING_CODES = frozenset(
    {
        "billing_error",
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "linked_organization_spend_limit_reached",
        "organization_on_hold",
        "project_spend_limit_exceeded",
    }
)
"""Types and ``error.details.error_code``s that say that the account may not spend; the SDK would
retry those that come with 429."""
_BILLING_TEXT = re.compile(r"credit balance is too low", re.IGNORECASE)
_SIZE_TEXT = re.compile(
    r"request_too_large|(?:request|body|payload|batch)[^.]{0,40} too large"
    r"|exceeds? the maximum (?:size|number of (?:bytes|requests))"
    r"|requests: (?:list|array) should have at most",
    re.IGNORECASE,
)
_QUEUE_LIMIT = re.compile(r"limit of (\d[\d,]*) [^.]*\brequests?\b[^.]*\bqueue", re.IGNORECASE)
_SAMPLING_TEXT = re.compile(r"\b(?:" + "|".join(sorted(SAMPLING_PARAMS)) + r")\b")


class _Rule(NamedTuple):
    """A row of the call table: the first whose status and text fit decides."""

    kind: FaultKind
    owner: FaultOwner
    statuses: frozenset[int]
    text: re.Pattern[str] | None = None


_CALL_RULES = (
    _Rule(FaultKind.ACCOUNT, FaultOwner.ACCOUNT, frozenset({400}), _BILLING_TEXT),
    _Rule(FaultKind.ACCOUNT, FaultOwner.ACCOUNT, frozenset({401, 402, 403})),
    _Rule(FaultKind.CAPACITY, FaultOwner.ACCOUNT, frozenset({429})),
    _Rule(FaultKind.SIZE, FaultOwner.USER, frozenset({413})),
    _Rule(FaultKind.SIZE, FaultOwner.USER, frozenset({400}), _SIZE_TEXT),
    _Rule(FaultKind.MISSING, FaultOwner.PROVIDER, frozenset({404, 410})),
    _Rule(FaultKind.REJECTED, FaultOwner.USER, frozenset({400, 405, 412, 415, 422, 501})),
)

_AGAIN_WITHOUT_ATTEMPT = frozenset({"authentication_error", "permission_error"}) | BILLING_CODES
_FINAL = frozenset({"invalid_request_error", "not_found_error", "request_too_large"})


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
    error = error_object(body)
    codes = _codes(error)
    message = _message(error) or f"HTTP {status} without a message"
    kind, owner = _call_kind(status, codes, " ".join([*codes, message]))
    if creating and status not in DEFINITE_REFUSALS:
        kind, owner = FaultKind.UNKNOWN_OUTCOME, FaultOwner.PROVIDER
    limit = _named_limit(message) if kind is FaultKind.CAPACITY else None
    return Fault(
        kind=kind,
        owner=owner,
        code=codes[0] if codes else f"http_{status}",
        message=message,
        retry_after_s=retry_after_s(headers),
        limit=limit,
        limit_unit="requests" if limit else None,
    )


def item_fault(error: object) -> ItemFault:
    """Classify the ``error`` of a result of type ``errored``; none of these is billed."""
    entry = error_object(error)
    codes = _codes(entry)
    message = _message(entry) or "the provider gave no reason"
    about_account = not _AGAIN_WITHOUT_ATTEMPT.isdisjoint(codes) or _BILLING_TEXT.search(message)
    is_final = not about_account and not _FINAL.isdisjoint(codes)
    if is_final and _SAMPLING_TEXT.search(message):
        message = shortened(f"{message} ({SAMPLING_ADVICE})")
    return ItemFault(
        code=codes[0] if codes else ItemErrorCode.UNREADABLE_RESULT,
        message=message,
        retryable=not is_final,
        consumes_attempt=not is_final and not about_account,
    )


def error_object(body: object) -> Mapping[str, Any]:
    """Return the innermost error of a body: ``{"type": "error", "error": {...}}``, or a text."""
    for _ in range(3):
        if not isinstance(body, Mapping) or not isinstance(body.get("error"), (Mapping, str)):
            break
        body = body["error"]
    if isinstance(body, Mapping):
        return body
    return {"message": body[:200]} if isinstance(body, str) else {}


def _call_kind(status: int, codes: list[str], text: str) -> tuple[FaultKind, FaultOwner]:
    if status in (400, 429) and not BILLING_CODES.isdisjoint(codes):
        return FaultKind.ACCOUNT, FaultOwner.ACCOUNT
    for rule in _CALL_RULES:
        if status in rule.statuses and (rule.text is None or rule.text.search(text)):
            return rule.kind, rule.owner
    return FaultKind.TRANSIENT, FaultOwner.PROVIDER


def _named_limit(message: str) -> int | None:
    """Return the queue limit that a message names; a limit per minute is none."""
    found = _QUEUE_LIMIT.search(message)
    limit = int(found.group(1).replace(",", "")) if found else 0
    return limit if 0 < limit <= _MAX_LIMIT else None


def _codes(error: Mapping[str, Any]) -> list[str]:
    """Return an error's detailed code and its type, as far as it has them."""
    details = error.get("details")
    detailed = details.get("error_code") if isinstance(details, Mapping) else None
    texts = (one_line(code) for code in (detailed, error.get("type")) if isinstance(code, str))
    return [text[:_CODE_CHARS] for text in texts if text and text != "error"]


def _message(error: Mapping[str, Any]) -> str:
    value = error.get("message") or ""
    return shortened(one_line(value if isinstance(value, str) else str(value)))
