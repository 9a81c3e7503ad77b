"""Result lines of OpenAI's batches, read without trust in their shape."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.openai.faults import is_about_money, line_fault, unexecuted_fault
from batchor_core.providers.openai.usual_lines import usual_answer
from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import count_of, one_line

_RETRYABLE_RESPONSE_CODES = frozenset(
    {"server_error", "rate_limit_exceeded", "vector_store_timeout"}
)
_UNFINISHED = frozenset({"cancelled", "in_progress", "queued"})


def decode_line(line: bytes) -> Answer | None:
    """Return the answer on one line, or None where it cannot be read or names no custom id."""
    return usual_answer(line) or _decode_unusual(line)


def _decode_unusual(line: bytes) -> Answer | None:
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
    request_id = _text_or_none(response.get("request_id"))
    status = count_of(response.get("status_code")) or 0
    if status != 200:
        return Answer(custom_id=custom_id, fault=line_fault(status, body), request_id=request_id)
    if not isinstance(body, dict):
        return Answer(custom_id=custom_id, fault=_no_response(), request_id=request_id)
    return _response_answer(custom_id, request_id, body)


def _response_answer(custom_id: str, request_id: str | None, body: dict[str, Any]) -> Answer:
    text, refusal = _output_text(body)
    fault, finish = _verdict_of(body, text, refusal)
    usage = _mapping(body.get("usage"))
    return Answer(
        custom_id=custom_id,
        text=text or refusal,
        fault=fault,
        finish_reason=finish,
        model=_text_or_none(body.get("model")),
        request_id=request_id,
        input_tokens=_count(usage.get("input_tokens")),
        cached_input_tokens=_count(
            _mapping(usage.get("input_tokens_details")).get("cached_tokens")
        ),
        output_tokens=_count(usage.get("output_tokens")),
        reasoning_tokens=_count(
            _mapping(usage.get("output_tokens_details")).get("reasoning_tokens")
        ),
    )


def _verdict_of(
    body: dict[str, Any], text: str | None, refusal: str | None
) -> tuple[ItemFault | None, str | None]:
    """Return (fault, finish reason) of a body under HTTP 200: that alone says nothing."""
    status = _text_or_none(body.get("status"))
    error = _mapping(body.get("error"))
    if status == "failed" or (error and not text):
        return _failure(error), "failed"
    if status == "incomplete":
        reason = str(_mapping(body.get("incomplete_details")).get("reason") or "incomplete")
        filtered = reason == "content_filter"
        code = ItemErrorCode.CONTENT_FILTERED if filtered else ItemErrorCode.TRUNCATED
        return _fault(code, f"the answer is incomplete: {reason}", again=False), reason
    if status in _UNFINISHED:
        return _fault(ItemErrorCode.TRUNCATED, f"the answer is {status}", again=True), status
    if refusal is not None and not text:
        return _fault(ItemErrorCode.REFUSED, refusal, again=False), "refusal"
    if not text:
        return _fault(ItemErrorCode.EMPTY_ANSWER, "the answer has no text", again=True), None
    return None, "stop"


def _failure(error: Mapping[str, Any]) -> ItemFault:
    code = one_line(str(error.get("code") or "failed"))
    message = str(error.get("message") or "the provider gave no reason")
    if is_about_money([code]):
        return ItemFault(code=code, message=message[:2_000], retryable=True, consumes_attempt=False)
    return _fault(code, message, again=code in _RETRYABLE_RESPONSE_CODES)


def _output_text(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return (text, refusal) over all message parts; reasoning and tool items have neither."""
    texts: list[str] = []
    refusals: list[str] = []
    for part in _message_parts(body.get("output")):
        if part.get("type") == "refusal":
            refusals.append(str(part.get("refusal") or "refused"))
        elif isinstance(part.get("text"), str):
            texts.append(part["text"])
    text = texts[0] if len(texts) == 1 else "".join(texts)
    return text or None, "".join(refusals) or None


def _message_parts(output: object) -> Iterator[dict[str, Any]]:
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict) or item.get("type") != "message":
            continue
        content = item.get("content")
        if isinstance(content, str):
            yield {"text": content}
        elif isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _no_response() -> ItemFault:
    return _fault(ItemErrorCode.UNREADABLE_RESULT, "the line has no usable response", again=True)


def _fault(code: str, message: str, *, again: bool) -> ItemFault:
    return ItemFault(code=code, message=message[:2_000], retryable=again, consumes_attempt=True)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return count_of(value) or 0


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
