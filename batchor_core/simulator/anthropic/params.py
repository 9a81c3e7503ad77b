"""What the API checks of one request's ``params`` when it executes it, and what is asked there."""

from collections.abc import Iterator, Mapping
from typing import Any

SAMPLING = ("temperature", "top_p", "top_k")
SAMPLING_VERSION = "2023-06-01"
"""The last API version that takes them; the next one refuses them even at their defaults."""

_FIELDS = frozenset(
    {
        "cache_control",
        "container",
        "inference_geo",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "output_config",
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "thinking",
        "tool_choice",
        "tools",
        *SAMPLING,
    }
)
_BLOCK_TYPES = frozenset(
    {"document", "image", "redacted_thinking", "text", "thinking", "tool_result", "tool_use"}
)


def violation(params: Any, api_version: str) -> str | None:
    """Return why the API refuses a request; None if it does not."""
    unknown = sorted(params.keys() - _FIELDS)
    if unknown:
        return f"{unknown[0]}: Extra inputs are not permitted"
    for name in SAMPLING:
        if name in params and api_version > SAMPLING_VERSION:
            return f"{name}: not supported as of API version {api_version}"
    if params.get("stream"):
        return "stream: not supported in a batch"
    if not isinstance(params.get("model"), str) or not params["model"]:
        return "model: Field required"
    if not _is_positive(params.get("max_tokens")):
        return "max_tokens: Input should be greater than or equal to 1"
    return _message_violation(params.get("messages")) or _cache_violation(params)


def prompt_of(params: Mapping[str, Any]) -> str:
    """Return what the user says; the system prompt only where that is nothing."""
    said = (text for turn in _turns(params) for text in _texts(turn.get("content")))
    return "\n".join(said) or "\n".join(_texts(params.get("system")))


def cache_marks(params: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the blocks that end a part of the prompt that is to be cached."""
    contents = [params.get("system"), *(turn.get("content") for turn in _turns(params))]
    for content in contents:
        for block in content if isinstance(content, list) else ():
            if isinstance(block, Mapping) and block.get("cache_control"):
                yield block


def _message_violation(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            return f"{where}.role: Input should be 'user' or 'assistant'"
        content = message.get("content")
        if not content:
            return f"{where}: messages must have non-empty content"
        if isinstance(content, str):
            continue
        if not isinstance(content, list):
            return f"{where}.content: Input should be a string or a list of blocks"
        for block in content:
            if not isinstance(block, Mapping) or block.get("type") not in _BLOCK_TYPES:
                return f"{where}.content: a block is of no known type"
    return None


def _cache_violation(params: Mapping[str, Any]) -> str | None:
    marks = list(cache_marks(params))
    if len(marks) > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    if any(block.get("text") == "" for block in marks):
        return "cache_control cannot be set for empty text blocks"
    return None


def _turns(params: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for turn in params["messages"] if isinstance(params.get("messages"), list) else ():
        if isinstance(turn, Mapping) and turn.get("role") == "user":
            yield turn


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        texts = (block.get("text") for block in content if isinstance(block, Mapping))
        yield from (text for text in texts if isinstance(text, str))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
