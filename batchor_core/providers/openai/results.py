"""Result lines of the Responses endpoint, read without trust in their shape."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchor_core.model.faults import ItemErrorCode, ItemFault
from batchor_core.providers.openai.result_lines import (
    Response,
    body_failure,
    item_fault,
    mapping_of,
    read_line,
    text_or_none,
    tokens_of,
)
from batchor_core.providers.openai.usual_lines import usual_answer
from batchor_core.providers.protocol import Answer

_UNFINISHED = frozenset({"cancelled", "in_progress", "queued"})


def decode_line(line: bytes) -> Answer | None:
    """Return the answer on one line, or None where it cannot be read or names no custom id."""
    return usual_answer(line) or read_line(line, _response_answer)


def _response_answer(response: Response) -> Answer:
    body = response.body
    text, refusal = _output_text(body)
    fault, finish = _verdict_of(body, text, refusal)
    usage = mapping_of(body.get("usage"))
    return Answer(
        custom_id=response.custom_id,
        text=text or refusal,
        fault=fault,
        finish_reason=finish,
        model=text_or_none(body.get("model")),
        request_id=response.request_id,
        input_tokens=tokens_of(usage, "input_tokens"),
        cached_input_tokens=tokens_of(usage, "input_tokens_details", "cached_tokens"),
        output_tokens=tokens_of(usage, "output_tokens"),
        reasoning_tokens=tokens_of(usage, "output_tokens_details", "reasoning_tokens"),
        cache_write_tokens=tokens_of(usage, "input_tokens_details", "cache_write_tokens"),
    )


def _verdict_of(
    body: Mapping[str, Any], text: str | None, refusal: str | None
) -> tuple[ItemFault | None, str | None]:
    """Return (fault, finish reason) of a body under HTTP 200: that alone says nothing."""
    status = text_or_none(body.get("status"))
    error = mapping_of(body.get("error"))
    if status == "failed" or (error and not text):
        return body_failure(error), "failed"
    if status == "incomplete":
        reason = str(mapping_of(body.get("incomplete_details")).get("reason") or "incomplete")
        filtered = reason == "content_filter"
        code = ItemErrorCode.CONTENT_FILTERED if filtered else ItemErrorCode.TRUNCATED
        return item_fault(code, f"the answer is incomplete: {reason}", again=False), reason
    if status in _UNFINISHED:
        return item_fault(ItemErrorCode.TRUNCATED, f"the answer is {status}", again=True), status
    if refusal is not None and not text:
        return item_fault(ItemErrorCode.REFUSED, refusal, again=False), "refusal"
    if not text:
        message = "the answer has no text"
        return item_fault(ItemErrorCode.EMPTY_ANSWER, message, again=True), None
    return None, "stop"


def _output_text(body: Mapping[str, Any]) -> tuple[str | None, str | None]:
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
