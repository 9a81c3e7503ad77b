"""Result lines of Anthropic's batches, read without trust in their shape."""

import json
from collections.abc import Mapping
from typing import Any

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.anthropic.faults import item_fault
from batchor_core.providers.anthropic.usual_lines import usual_answer
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import MESSAGE_CHARS, one_line, tokens_in

_COMPLETE = frozenset({"end_turn", "stop_sequence"})
_CUT = frozenset({"max_tokens", "model_context_window_exceeded", "pause_turn"})
_UNEXECUTED = {
    "expired": (ItemErrorCode.BATCH_EXPIRED, "the batch expired before the request was executed"),
    "canceled": (
        ItemErrorCode.BATCH_CANCELLED,
        "the batch was cancelled before the request's turn",
    ),
}
_WORD_CHARS = 100


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
    result = _mapping(record.get("result"))
    kind = result.get("type")  # the SDK takes what it does not know for an answer (facts 1.2)
    if kind == "succeeded" and isinstance(result.get("message"), dict):
        return _message_answer(custom_id, result["message"])
    if kind == "errored":
        error = _mapping(result.get("error"))
        request_id = _text_or_none(error.get("request_id"))
        return Answer(custom_id=custom_id, fault=item_fault(error), request_id=request_id)
    return Answer(custom_id=custom_id, fault=_no_message(kind))


def _no_message(kind: object) -> ItemFault:
    if isinstance(kind, str) and kind in _UNEXECUTED:
        code, message = _UNEXECUTED[kind]
        return ItemFault(code=code, message=message, retryable=True, consumes_attempt=False)
    said = f": its result is {one_line(kind)[:_WORD_CHARS]!r}" if isinstance(kind, str) else ""
    return _fault(
        ItemErrorCode.UNREADABLE_RESULT, f"the line has no usable answer{said}", again=True
    )


def _message_answer(custom_id: str, message: dict[str, Any]) -> Answer:
    stop = _text_or_none(message.get("stop_reason"))
    content = message.get("content")
    blocks = (
        [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    )
    text = _text_of(blocks)
    if stop == "tool_use" and text is None:
        text, fault = _tool_call(blocks)
    else:
        fault = _verdict_of(stop, text, message)
    usage = _mapping(message.get("usage"))
    cached = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    details = _mapping(usage.get("output_tokens_details"))
    return Answer(
        custom_id=custom_id,
        text=text,
        fault=fault,
        finish_reason=one_line(stop)[:_WORD_CHARS] if stop else None,
        model=_text_or_none(message.get("model")),
        request_id=_text_or_none(message.get("id")),
        input_tokens=_count(usage.get("input_tokens")) + written + cached,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=_count(usage.get("output_tokens")),
        reasoning_tokens=_count(details.get("thinking_tokens")),
    )


def _verdict_of(stop: str | None, text: str | None, message: Mapping[str, Any]) -> ItemFault | None:
    if stop == "refusal":
        return _fault(ItemErrorCode.REFUSED, _refusal(message), again=False)
    if stop in _CUT:
        reason = f"the answer is incomplete: {stop}"
        return _fault(ItemErrorCode.TRUNCATED, reason, again=stop == "pause_turn")
    if stop == "tool_use":
        return _odd_tool_call()
    if not text:
        return _fault(ItemErrorCode.EMPTY_ANSWER, "the answer has no text", again=True)
    return None if stop in _COMPLETE else _unknown_stop(stop)


def _unknown_stop(stop: str | None) -> ItemFault:
    said = repr(one_line(stop)[:_WORD_CHARS]) if stop else "not told"
    reason = f"why the answer ended is {said}: whether it is complete is not known"
    return _fault(ItemErrorCode.UNREADABLE_RESULT, reason, again=False)


def _refusal(message: Mapping[str, Any]) -> str:
    details = _mapping(message.get("stop_details"))
    said = (_text_or_none(details.get(name)) for name in ("category", "explanation"))
    return ": ".join(["the model refused", *(one_line(each) for each in said if each)])


def _text_of(blocks: list[dict[str, Any]]) -> str | None:
    """Return the text of all text blocks; thinking and tool blocks have none."""
    texts = [
        block["text"]
        for block in blocks
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    ]
    return "".join(texts) or None


def _tool_call(blocks: list[dict[str, Any]]) -> tuple[str | None, ItemFault | None]:
    """Return the input of an only tool call as JSON text: it is what was asked for."""
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if len(calls) != 1 or not isinstance(calls[0].get("input"), dict):
        return None, _odd_tool_call()
    try:
        return json.dumps(calls[0]["input"], ensure_ascii=False), None
    except RecursionError:
        return None, _odd_tool_call()


def _odd_tool_call() -> ItemFault:
    reason = "the answer calls tools; only one call without text beside it can be an answer"
    return _fault("tool_use", reason, again=False)


def _fault(code: str, message: str, *, again: bool) -> ItemFault:
    return ItemFault(
        code=code, message=message[:MESSAGE_CHARS], retryable=again, consumes_attempt=True
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return tokens_in(value)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
