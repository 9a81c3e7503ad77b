"""OpenAI's errors in our taxonomy: one table for calls, one for batches, one for result lines.

Sources: the shared facts on providers, section 4, from OpenAI's and Azure's documentation and
from field reports; none of it was provoked on the live service.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchor_core.model.faults import Fault, FaultKind, FaultOwner, ItemErrorCode, ItemFault

MESSAGE_CHARS = 2_000
_RETRY_AFTER_CAP_S = 3_600.0

_BILLING_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "project_spend_limit_exceeded",
    }
)
# The message is the only reliable sign on some hosts (openai-python#2084; Azure answers 400).
_CAPACITY_TEXT = re.compile(
    r"token_limit_exceeded|enqueued (?:token|request)s? limit reached", re.IGNORECASE
)
_SIZE_TEXT = re.compile(
    r"(?:file|request|body|payload)[^.]{0,40} too large|maximum file size", re.IGNORECASE
)
_NAMED_LIMIT = re.compile(
    r"limit:?\s*([\d,._]*\d)\s*(?:enqueued\s+)?(tokens?|requests?)?", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A row of the call table: the first whose conditions all hold decides."""

    kind: FaultKind
    owner: FaultOwner
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None


_CALL_RULES = (
    _Rule(kind=FaultKind.ACCOUNT, owner=FaultOwner.ACCOUNT, codes=_BILLING_CODES),
    _Rule(kind=FaultKind.ACCOUNT, owner=FaultOwner.ACCOUNT, statuses=frozenset({401, 402, 403})),
    _Rule(kind=FaultKind.CAPACITY, owner=FaultOwner.ACCOUNT, text=_CAPACITY_TEXT),
    _Rule(kind=FaultKind.CAPACITY, owner=FaultOwner.ACCOUNT, statuses=frozenset({429})),
    _Rule(kind=FaultKind.SIZE, owner=FaultOwner.USER, statuses=frozenset({413})),
    _Rule(kind=FaultKind.SIZE, owner=FaultOwner.USER, statuses=frozenset({400}), text=_SIZE_TEXT),
    _Rule(kind=FaultKind.MISSING, owner=FaultOwner.PROVIDER, statuses=frozenset({404, 410})),
    _Rule(
        kind=FaultKind.REJECTED,
        owner=FaultOwner.USER,
        statuses=frozenset({400, 405, 415, 422, 501}),
    ),
)


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
    code = str(error.get("code") or error.get("type") or f"http_{status}")
    message = str(error.get("message") or "").strip() or f"HTTP {status} without a message"
    rule = next((rule for rule in _CALL_RULES if _applies(rule, status, code, message)), None)
    if rule is None:
        kind = FaultKind.UNKNOWN_OUTCOME if creating else FaultKind.TRANSIENT
        owner = FaultOwner.PROVIDER
    else:
        kind, owner = rule.kind, rule.owner
    limit, unit = named_limit(message) if kind is FaultKind.CAPACITY else (None, None)
    return Fault(
        kind=kind,
        owner=owner,
        code=code,
        message=_shorten(message),
        retry_after_s=retry_after_s(headers),
        limit=limit,
        limit_unit=unit,
    )


def batch_fault(errors: object) -> tuple[Fault, dict[int, ItemFault]]:
    """Classify the ``errors`` of a batch with status ``failed``: (fault, faults by line).

    Nothing of such a batch ran. Hosts send ``{"data": [...]}``, a bare list, a text or nothing.
    """
    entries = _error_entries(errors)
    codes = [str(entry.get("code") or "") for entry in entries]
    messages = [str(entry.get("message") or "") for entry in entries]
    text = " ".join(part for part in [*codes, *messages] if part)
    code = next((code for code in codes if code), "batch_failed")
    message = _shorten(next((m for m in messages if m), "") or "the provider named no reason")
    if _CAPACITY_TEXT.search(text):
        limit, unit = named_limit(text)
        fault = Fault(
            kind=FaultKind.CAPACITY,
            owner=FaultOwner.ACCOUNT,
            code=code,
            message=message,
            limit=limit,
            limit_unit=unit,
        )
        return fault, {}
    fault = Fault(kind=FaultKind.REJECTED, owner=FaultOwner.USER, code=code, message=message)
    lines = {
        int(entry["line"]): ItemFault(
            code=str(entry.get("code") or ItemErrorCode.REJECTED_BATCH),
            message=_shorten(str(entry.get("message") or "")),
            retryable=False,
            consumes_attempt=False,
        )
        for entry in entries
        if _is_line_number(entry.get("line"))
    }
    return fault, lines


def line_fault(status: int, body: object) -> ItemFault:
    """Classify a result line whose HTTP status is not 200."""
    error = _error_object(body)
    code = str(error.get("code") or error.get("type") or f"http_{status}")
    message = _shorten(str(error.get("message") or f"HTTP {status} without a message"))
    if status <= 0:  # (c) in facts 1.1: the provider lost the connection to its own model
        code = ItemErrorCode.TRANSPORT
    quota = code in _BILLING_CODES or status in (401, 402, 403)
    retryable = quota or status in (0, 408, 409, 429) or status >= 500
    return ItemFault(
        code=code, message=message, retryable=retryable, consumes_attempt=retryable and not quota
    )


def unexecuted_fault(error: Mapping[str, Any]) -> ItemFault:
    """Classify a result line without a response: it was not executed and costs nothing."""
    code = str(error.get("code") or "not_executed")
    return ItemFault(
        code=code,
        message=_shorten(str(error.get("message") or "the provider gave no reason")),
        retryable=True,
        consumes_attempt=code not in ("batch_expired", "batch_cancelled"),
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, at most an hour; None if it does not."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return min(seconds, _RETRY_AFTER_CAP_S)
    return None


def named_limit(message: str) -> tuple[int | None, str | None]:
    """Return the queue limit that a message names, and its unit (``tokens`` or ``requests``)."""
    found = _NAMED_LIMIT.search(message)
    if found is None:
        return None, None
    digits = re.sub(r"\D", "", found.group(1))
    unit = (found.group(2) or "tokens").lower().rstrip("s") + "s"
    return int(digits), unit


def _applies(rule: _Rule, status: int, code: str, message: str) -> bool:
    if rule.statuses and status not in rule.statuses:
        return False
    if rule.codes and code not in rule.codes:
        return False
    return rule.text is None or bool(rule.text.search(f"{code} {message}"))


def _error_object(body: object) -> Mapping[str, Any]:
    if isinstance(body, Mapping):
        error = body.get("error", body)
        if isinstance(error, Mapping):
            return error
        if isinstance(error, str):
            return {"message": error}
    return {"message": str(body)[:200]} if isinstance(body, str) else {}


def _error_entries(errors: object) -> list[Mapping[str, Any]]:
    if isinstance(errors, Mapping):
        errors = errors.get("data")
    if isinstance(errors, str):
        return [{"message": errors}]
    if not isinstance(errors, list):
        return []
    return [entry for entry in errors if isinstance(entry, Mapping)]


def _is_line_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _shorten(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"
