"""Result lines of Gemini's batches, read without trust in their shape."""

import struct
from collections.abc import Mapping
from typing import Any

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.gemini.faults import line_fault
from batchor_core.providers.gemini.usual_lines import usual_developer_answer, usual_vertex_answer
from batchor_core.providers.gemini.wire import field, mapping_of
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import tokens_in

_CODES = {
    "MAX_TOKENS": ItemErrorCode.TRUNCATED,
    **dict.fromkeys(("SAFETY", "IMAGE_SAFETY"), ItemErrorCode.REFUSED),
    **dict.fromkeys(
        ("PROHIBITED_CONTENT", "SPII", "BLOCKLIST", "RECITATION"), ItemErrorCode.CONTENT_FILTERED
    ),
    **dict.fromkeys(
        ("IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "LANGUAGE"),
        ItemErrorCode.CONTENT_FILTERED,
    ),
}
"""Finish reasons after which asking again would give the same; all others are tried again."""
_CHARS = 64


def developer_answer(line: bytes) -> Answer | None:
    """Return the answer on a line of the Developer API.

    None where it cannot be read or names no key: what stands where says nothing (facts 0.11).
    """
    answer = usual_developer_answer(line)
    if answer is not None:
        return answer
    record = decode_json(line)
    key = field(record, "key")
    if not isinstance(key, str):
        return None
    return _answer(key, field(record, "response"), error=field(record, "error"))


def vertex_answer(line: bytes) -> Answer | None:
    """Return the answer on a line of Vertex AI; its id is a label of the echoed request."""
    answer = usual_vertex_answer(line)
    if answer is not None:
        return answer
    record = decode_json(line)
    custom_id = field(record, "request", "labels", "custom_id")
    if not isinstance(custom_id, str):
        return None
    error = field(record, "status") or field(record, "error")
    return _answer(custom_id, field(record, "response"), error=error)


def _answer(custom_id: str, response: object, *, error: object) -> Answer:
    error = error or field(response, "error")
    if error:
        return Answer(custom_id=custom_id, fault=line_fault(error))
    if not isinstance(response, Mapping) or not response:
        fault = _fault(
            ItemErrorCode.UNREADABLE_RESULT, "the line has no usable response", again=True
        )
        return Answer(custom_id=custom_id, fault=fault)
    if field(response, "embedding") is not None:
        return _embedding(custom_id, response)
    return _generated(custom_id, response)


def _generated(custom_id: str, response: Mapping[str, Any]) -> Answer:
    candidate = _first(field(response, "candidates"))
    finish = _word(field(candidate, "finishReason"))
    text = _text_of(candidate)
    usage = mapping_of(field(response, "usageMetadata"))
    thoughts = _count(usage, "thoughtsTokenCount")
    return Answer(
        custom_id=custom_id,
        text=text,
        fault=_verdict(response, candidate, finish, text),
        finish_reason=finish.lower() or None,
        model=_text_or_none(field(response, "modelVersion")),
        request_id=_text_or_none(field(response, "responseId")),
        input_tokens=_count(usage, "promptTokenCount") + _count(usage, "toolUsePromptTokenCount"),
        cached_input_tokens=_count(usage, "cachedContentTokenCount"),
        output_tokens=_count(usage, "candidatesTokenCount") + thoughts,
        reasoning_tokens=thoughts,
    )


def _verdict(
    response: Mapping[str, Any], candidate: Mapping[str, Any], finish: str, text: str | None
) -> ItemFault | None:
    """Judge an answer, by its finish reason first: with MAX_TOKENS a text may be a thought."""
    if not candidate:
        return _without_candidates(response)
    if finish in _CODES:
        code = _CODES[finish]
        what = "is incomplete" if code is ItemErrorCode.TRUNCATED else "was withheld"
        return _fault(code, f"the answer {what}: {_explained(candidate, finish)}", again=False)
    if finish not in ("STOP", "", "FINISH_REASON_UNSPECIFIED"):
        return _fault(
            finish.lower(), f"the answer broke off: {_explained(candidate, finish)}", again=True
        )
    if not text:
        return _fault(ItemErrorCode.EMPTY_ANSWER, "the answer has no text", again=True)
    return None


def _without_candidates(response: Mapping[str, Any]) -> ItemFault:
    reason = _word(field(response, "promptFeedback", "blockReason"))
    if reason in ("", "BLOCK_REASON_UNSPECIFIED"):
        return _fault(ItemErrorCode.EMPTY_ANSWER, "the response has no candidates", again=True)
    code = ItemErrorCode.REFUSED if reason == "SAFETY" else ItemErrorCode.CONTENT_FILTERED
    return _fault(code, f"the prompt was blocked: {reason}", again=False)


def _explained(candidate: Mapping[str, Any], finish: str) -> str:
    message = field(candidate, "finishMessage")
    return f"{finish} ({message})" if isinstance(message, str) and message else finish


def _text_of(candidate: Mapping[str, Any]) -> str | None:
    """Return the text of all parts that are no thoughts."""
    parts = field(candidate, "content", "parts")
    texts = [
        part["text"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, Mapping)
        and isinstance(part.get("text"), str)
        and not part.get("thought")
    ]
    return "".join(texts) or None


def _embedding(custom_id: str, response: Mapping[str, Any]) -> Answer:
    values = field(response, "embedding", "values")
    usage = mapping_of(field(response, "usageMetadata"))
    answer = Answer(
        custom_id=custom_id,
        model=_text_or_none(field(response, "modelVersion")),
        input_tokens=_count(response, "tokenCount") or _count(usage, "promptTokenCount"),
    )
    try:
        vector = struct.pack(f"<{len(values)}f", *values)
    except (TypeError, struct.error, OverflowError):
        vector = b""
    if vector:
        answer.vectors = [vector]
    else:
        answer.fault = _fault(
            ItemErrorCode.UNREADABLE_RESULT, "the embedding is no list of numbers", again=True
        )
    return answer


def _first(candidates: object) -> Mapping[str, Any]:
    return mapping_of(candidates[0]) if isinstance(candidates, list) and candidates else {}


def _fault(code: str, message: str, *, again: bool) -> ItemFault:
    return ItemFault(code=code, message=message[:2_000], retryable=again, consumes_attempt=True)


def _word(value: object) -> str:
    return value.strip().upper()[:_CHARS] if isinstance(value, str) else ""


def _count(record: Mapping[str, Any], name: str) -> int:
    return tokens_in(field(record, name))


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
