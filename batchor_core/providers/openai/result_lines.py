"""What the result lines of all endpoints have in common, read without trust in their shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.openai.faults import is_about_money, line_fault, unexecuted_fault
from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import MESSAGE_CHARS, count_of, one_line, tokens_in

_RETRYABLE_CODES = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})


@dataclass(frozen=True, kw_only=True)
class Response:
    """A line's response under HTTP 200, whose body is an object of whatever content."""

    custom_id: str
    request_id: str | None
    body: dict[str, Any]


def read_line(line: bytes, read_body: Callable[[Response], Answer]) -> Answer | None:
    """Return the answer on one line, or None where it cannot be read or names no custom id.

    Args:
        line: The line.
        read_body: Reads the body of the endpoint's answer.
    """
    record = decode_json(line)
    if not isinstance(record, dict):
        return None
    custom_id = record.get("custom_id")
    if not isinstance(custom_id, str):
        return None
    response, error = record.get("response"), record.get("error")
    if not isinstance(response, dict):
        fault = unexecuted_fault(error) if error else _no_response()
        return Answer(custom_id=custom_id, fault=fault)
    body = response.get("body")
    if isinstance(body, str):  # OGX sends the body as a JSON text
        body = decode_json(body.encode(errors="replace"))
    request_id = text_or_none(response.get("request_id"))
    status = count_of(response.get("status_code")) or 0
    if status != 200:
        fault = line_fault(status, body or error)  # vLLM has the error beside the response
        return Answer(custom_id=custom_id, fault=fault, request_id=request_id)
    if not isinstance(body, dict):
        return Answer(custom_id=custom_id, fault=_no_response(), request_id=request_id)
    return read_body(Response(custom_id=custom_id, request_id=request_id, body=body))


def body_failure(error: Mapping[str, Any]) -> ItemFault:
    """Classify an error object under HTTP 200."""
    status = count_of(error.get("code"))
    if status is not None and 400 <= status < 600:  # hosts that pass another provider's error on
        return line_fault(status, error)
    code = one_line(str(error.get("code") or "failed"))
    message = str(error.get("message") or "the provider gave no reason")
    if is_about_money([code]):
        return ItemFault(
            code=code, message=message[:MESSAGE_CHARS], retryable=True, consumes_attempt=False
        )
    return item_fault(code, message, again=code in _RETRYABLE_CODES)


def item_fault(code: str, message: str, *, again: bool) -> ItemFault:
    """Return the fault of a request that was executed and paid."""
    return ItemFault(
        code=code, message=message[:MESSAGE_CHARS], retryable=again, consumes_attempt=True
    )


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def tokens_of(usage: Mapping[str, Any], name: str, detail: str | None = None) -> int:
    """Return a count of a usage object, or one in its details; 0 where there is none."""
    value = usage.get(name) if detail is None else mapping_of(usage.get(name)).get(detail)
    return tokens_in(value)


def text_or_none(value: object) -> str | None:
    """Return a text; None for an empty one, and for anything else."""
    return value if isinstance(value, str) and value else None


def _no_response() -> ItemFault:
    message = "the line has no usable response"
    return item_fault(ItemErrorCode.UNREADABLE_RESULT, message, again=True)
