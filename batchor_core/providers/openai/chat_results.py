"""Result lines of the chat endpoint, read without trust in their shape."""

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
from batchor_core.providers.openai.usual_lines import usual_chat_answer
from batchor_core.providers.protocol import Answer

_CUT_SHORT = (ItemErrorCode.TRUNCATED, "the answer was cut off at its bound of tokens", False)
_ENDINGS = {
    "length": _CUT_SHORT,
    "max_tokens": _CUT_SHORT,
    "model_length": _CUT_SHORT,
    "content_filter": (ItemErrorCode.CONTENT_FILTERED, "a content filter withheld it", False),
    "error": (ItemErrorCode.TRUNCATED, "the answer ended in an error", True),
}
"""Finish reasons of answers that are not complete, some of them in other hosts' words: our code,
a message, and whether to ask again."""

_CALLS = frozenset({"tool_calls", "function_call"})
_TEXT_PARTS = (None, "text", "output_text")


def decode_chat_line(line: bytes) -> Answer | None:
    """Return the answer on one line, or None where it cannot be read or names no custom id."""
    return usual_chat_answer(line) or read_line(line, _chat_answer)


def _chat_answer(response: Response) -> Answer:
    body = response.body
    choices = body.get("choices")
    choice = mapping_of(choices[0]) if isinstance(choices, list) and choices else {}
    message = mapping_of(choice.get("message"))
    text, refusal = _text_of(message)
    finish = text_or_none(choice.get("finish_reason"))
    usage = mapping_of(body.get("usage"))
    return Answer(
        custom_id=response.custom_id,
        text=text or refusal,
        fault=_fault_of(mapping_of(body.get("error")), finish, text, refusal),
        finish_reason=finish,
        model=text_or_none(body.get("model")),
        request_id=response.request_id,
        input_tokens=tokens_of(usage, "prompt_tokens"),
        cached_input_tokens=tokens_of(usage, "prompt_tokens_details", "cached_tokens"),
        output_tokens=tokens_of(usage, "completion_tokens"),
        reasoning_tokens=tokens_of(usage, "completion_tokens_details", "reasoning_tokens"),
        cache_write_tokens=tokens_of(usage, "prompt_tokens_details", "cache_write_tokens"),
    )


def _fault_of(
    error: Mapping[str, Any], finish: str | None, text: str | None, refusal: str | None
) -> ItemFault | None:
    """Return why a body under HTTP 200 is no complete answer, which that alone does not say."""
    reason = (finish or "").lower()
    if error and not text:
        return body_failure(error)
    if reason in _ENDINGS:
        code, message, again = _ENDINGS[reason]
        return item_fault(code, message, again=again)
    if text:
        return None
    if refusal is not None:
        return item_fault(ItemErrorCode.REFUSED, refusal, again=False)
    is_call = reason in _CALLS
    message = "the answer is the call of a tool" if is_call else "the answer has no text"
    return item_fault(ItemErrorCode.EMPTY_ANSWER, message, again=not is_call)


def _text_of(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return (text, refusal) of a message; what it thought on the way is neither."""
    refusals = [message["refusal"]] if text_or_none(message.get("refusal")) else []
    texts: list[str] = []
    for part in _parts(message.get("content")):
        if part.get("type") == "refusal":
            refusals.append(str(part.get("refusal") or "refused"))
        elif part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts) or None, "".join(refusals) or None


def _parts(content: object) -> Iterator[Mapping[str, Any]]:
    """Yield what a message consists of: one text, or a list of texts and objects."""
    for part in content if isinstance(content, list) else [content]:
        yield {"text": part} if isinstance(part, str) else mapping_of(part)
