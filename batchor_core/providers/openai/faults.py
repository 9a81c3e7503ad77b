"""OpenAI's errors in our taxonomy: one table for calls, one for batches, one for result lines.

Sources: the shared facts on providers, section 4, from OpenAI's and Azure's documentation and
from field reports; none of it was provoked on the live service.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchor_core.model.faults import Fault, FaultKind, FaultOwner, ItemErrorCode, ItemFault
from batchor_core.providers.wire import (
    DEFINITE_REFUSALS,
    one_line,
    retry_after_s,
    shortened,
)

_CODE_CHARS = 100
_UNEXECUTED_CODES = frozenset({"batch_expired", "batch_cancelled", "batch_canceled"})

_BILLING_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "credit_balance_exhausted",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
    }
)
# The message is the only reliable sign on some hosts (openai-python#2084; Azure answers 400).
_CAPACITY_TEXT = re.compile(
    r"token_limit_exceeded|enqueued[ _-](?:token|request)s?[ _-]limit", re.IGNORECASE
)
_SIZE_TEXT = re.compile(
    r"(?:file|request|body|payload)[^.]{0,40} too large|maximum file size|too_many_tasks",
    re.IGNORECASE,
)
# "90,000", "90 000" or "90000"; "1.5M" and "2/min" are none.
_NUMBER = r"((?:\d{1,3}(?:[,._ ]\d{3})+|\d+)(?![\d.,_]*[\w/]))"
_UNIT = r"\s*(?:enqueued\s+)?(tokens?|requests?)?"
_NAMED_LIMIT = re.compile(rf"limit(?:\s+of|:)?\s*{_NUMBER}{_UNIT}", re.IGNORECASE)
_ENQUEUED_NUMBER = re.compile(rf"{_NUMBER}\s+enqueued\s+(tokens?|requests?)", re.IGNORECASE)
# Rate limits name numbers as well ("Limit 3, Used 3"), which say nothing about the queue.
_ABOUT_THE_QUEUE = re.compile(r"enqueued|token_limit_exceeded", re.IGNORECASE)
_MAX_LIMIT = 10**15


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A row of the call table: the first whose conditions all hold decides."""

    kind: FaultKind
    owner: FaultOwner
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    text: re.Pattern[str] | None = None


_CALL_RULES = (
    _Rule(
        kind=FaultKind.ACCOUNT,
        owner=FaultOwner.ACCOUNT,
        statuses=frozenset({400, 429}),
        codes=_BILLING_CODES,
    ),
    _Rule(kind=FaultKind.ACCOUNT, owner=FaultOwner.ACCOUNT, statuses=frozenset({401, 402, 403})),
    _Rule(
        kind=FaultKind.CAPACITY,
        owner=FaultOwner.ACCOUNT,
        statuses=frozenset({400, 413, 422, 429}),
        text=_CAPACITY_TEXT,
    ),
    _Rule(kind=FaultKind.CAPACITY, owner=FaultOwner.ACCOUNT, statuses=frozenset({429})),
    _Rule(kind=FaultKind.SIZE, owner=FaultOwner.USER, statuses=frozenset({413})),
    _Rule(kind=FaultKind.SIZE, owner=FaultOwner.USER, statuses=frozenset({400}), text=_SIZE_TEXT),
    _Rule(kind=FaultKind.MISSING, owner=FaultOwner.PROVIDER, statuses=frozenset({404, 410})),
    _Rule(
        kind=FaultKind.REJECTED,
        owner=FaultOwner.USER,
        statuses=frozenset({400, 405, 415, 422, 501}),
    ),
    _Rule(kind=FaultKind.TRANSIENT, owner=FaultOwner.PROVIDER),
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
    codes = _codes(error)
    code = codes[0] if codes else f"http_{status}"
    message = _message(error) or f"HTTP {status} without a message"
    text = " ".join([*codes, message])
    rule = next(rule for rule in _CALL_RULES if _applies(rule, status, codes, text))
    kind, owner = rule.kind, rule.owner
    if creating and status not in DEFINITE_REFUSALS:
        kind, owner = FaultKind.UNKNOWN_OUTCOME, FaultOwner.PROVIDER
    limit, unit = named_limit(text) if kind is FaultKind.CAPACITY else (None, None)
    return Fault(
        kind=kind,
        owner=owner,
        code=code,
        message=message,
        retry_after_s=retry_after_s(headers),
        limit=limit,
        limit_unit=unit,
    )


def batch_fault(errors: object) -> tuple[Fault, dict[int, ItemFault]]:
    """Classify the ``errors`` of a batch with status ``failed``: (fault, faults by line).

    Nothing of such a batch ran. Hosts send ``{"data": [...]}``, a bare list, a text or nothing.
    """
    entries = _error_entries(errors)
    codes = [code for entry in entries for code in _codes(entry)[:1]]
    messages = [message for entry in entries if (message := _message(entry))]
    text = " ".join([*codes, *messages])
    lines = _named_lines(entries)
    kind, owner = _batch_kind(codes, text, names_lines=bool(lines))
    limit, unit = named_limit(text) if kind is FaultKind.CAPACITY else (None, None)
    fault = Fault(
        kind=kind,
        owner=owner,
        code=codes[0] if codes else "batch_failed",
        message=messages[0] if messages else "the provider named no reason",
        limit=limit,
        limit_unit=unit,
    )
    return fault, lines if kind is FaultKind.REJECTED else {}


def _batch_kind(codes: list[str], text: str, *, names_lines: bool) -> tuple[FaultKind, FaultOwner]:
    if _CAPACITY_TEXT.search(text):
        return FaultKind.CAPACITY, FaultOwner.ACCOUNT
    if is_about_money(codes):
        return FaultKind.ACCOUNT, FaultOwner.ACCOUNT
    # "too_many_tasks" names the first line too many, which is no worse than the others.
    if "too_many_tasks" in codes or (not names_lines and _SIZE_TEXT.search(text)):
        return FaultKind.SIZE, FaultOwner.USER
    return FaultKind.REJECTED, FaultOwner.USER


def _named_lines(entries: list[Mapping[str, Any]]) -> dict[int, ItemFault]:
    lines: dict[int, ItemFault] = {}
    for entry in entries:
        line = _line_number(entry.get("line"))
        if line is not None:
            code = next(iter(_codes(entry)), ItemErrorCode.REJECTED_BATCH)
            fault = ItemFault(
                code=code, message=_message(entry), retryable=False, consumes_attempt=False
            )
            lines.setdefault(line, fault)
    return lines


def line_fault(status: int, body: object) -> ItemFault:
    """Classify a result line whose HTTP status is not 200."""
    error = _error_object(body)
    codes = _codes(error)
    code = codes[0] if codes else f"http_{status}"
    if status <= 0:  # (c) in facts 1.1: the provider lost the connection to its own model
        code = ItemErrorCode.TRANSPORT
    quota = is_about_money(codes) or status in (401, 402, 403)
    retryable = quota or status in (408, 409, 429) or not 400 <= status < 500
    return ItemFault(
        code=code,
        message=_message(error) or f"HTTP {status} without a message",
        retryable=retryable,
        consumes_attempt=retryable and not quota,
    )


def unexecuted_fault(error: object) -> ItemFault:
    """Classify a result line without a response: it was not executed and costs nothing."""
    entry = _error_object(error)
    codes = _codes(entry)
    code = codes[0] if codes else "not_executed"
    return ItemFault(
        code=code,
        message=_message(entry) or "the provider gave no reason",
        retryable=True,
        consumes_attempt=code not in _UNEXECUTED_CODES and not is_about_money(codes),
    )


def is_about_money(codes: Iterable[str]) -> bool:
    """Whether error codes say that the account may not spend: nothing was executed then."""
    return not _BILLING_CODES.isdisjoint(codes)


def named_limit(text: str) -> tuple[int | None, str | None]:
    """Return the queue limit that a text names, and its unit (``tokens`` or ``requests``)."""
    found = _NAMED_LIMIT.search(text) or _ENQUEUED_NUMBER.search(text)
    if found is None or not _ABOUT_THE_QUEUE.search(text):
        return None, None
    limit = int(re.sub(r"\D", "", found.group(1)))
    if not 0 < limit <= _MAX_LIMIT:  # of nothing, no chunk is small enough: waiting is all we can
        return None, None
    unit = (found.group(2) or _unit_in(text)).lower().rstrip("s") + "s"
    return limit, unit


def _unit_in(text: str) -> str:
    return "requests" if re.search(r"enqueued[ _-]request", text, re.IGNORECASE) else "tokens"


def _applies(rule: _Rule, status: int, codes: list[str], text: str) -> bool:
    if rule.statuses and status not in rule.statuses:
        return False
    if rule.codes and rule.codes.isdisjoint(codes):
        return False
    return rule.text is None or bool(rule.text.search(text))


def _codes(error: Mapping[str, Any]) -> list[str]:
    """Return an error's code and type, as far as it has them."""
    values = (error.get("code"), error.get("type"))
    texts = (one_line(str(v)) for v in values if isinstance(v, (str, int)) and v)
    return [text[:_CODE_CHARS] for text in texts if text]


def _message(error: Mapping[str, Any]) -> str:
    value = error.get("message") or error.get("detail") or ""
    return shortened(one_line(value if isinstance(value, str) else str(value)))


def _error_object(body: object) -> Mapping[str, Any]:
    """Return the error in a body: alone, under ``error``, in a list (Google's hosts), or a text."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, Mapping):
        error = body.get("error") or body
        if isinstance(error, Mapping):
            return error
        body = error
    return {"message": body[:200]} if isinstance(body, str) else {}


def _error_entries(errors: object) -> list[Mapping[str, Any]]:
    if isinstance(errors, Mapping):
        errors = errors.get("data", [errors])
    if not isinstance(errors, list):
        errors = [errors]
    return [
        entry if isinstance(entry, Mapping) else {"message": entry}
        for entry in errors
        if isinstance(entry, (Mapping, str))
    ]


def _line_number(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:10])
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    return value
