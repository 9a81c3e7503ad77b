"""Lines of an input file: reading them, what is asked in them, and how many tokens that is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from batchor_core.simulator.answers import estimate_tokens

REQUIRED_PARAMETER = {
    "/v1/responses": "input",
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
}
IMAGE_TOKENS = 765
"""Of a picture, whatever its size: OpenAI counts as many for one of 1024 by 1024 pixels."""
FILE_TOKENS = 1_000
"""Of a document at least."""

_BYTES_PER_FILE_TOKEN = 20
_MEDIA_TYPES = ("image_url", "input_image", "file", "input_file")
_LINE_BUFFER_BYTES = 1024 * 1024
_encode = msgspec.json.Encoder().encode


class RequestLine(msgspec.Struct):
    """One request as the client wrote it."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = ""


decode_line = msgspec.json.Decoder(RequestLine).decode


def raw_lines(path: Path) -> Iterator[bytes]:
    r"""The lines of a file, split at the byte `\n` alone, in constant memory."""
    with path.open("rb", buffering=_LINE_BUFFER_BYTES) as handle:
        yield from handle


def prompt_of(url: str, body: Mapping[str, Any]) -> str:
    """The text that the request asks about: the input, and instructions only where there is none.

    Instructions are the same for every row, and often name every choice: answers made from them
    would all look alike.
    """
    if url == "/v1/chat/completions":
        return _messages_text(body.get("messages"))
    instructions = body.get("instructions")
    return _messages_text(body.get("input")) or (
        instructions if isinstance(instructions, str) else ""
    )


def inputs_of(body: Mapping[str, Any]) -> list[Any]:
    """What an embeddings request asks vectors of: texts, or lists of tokens."""
    given = body.get("input")
    if not isinstance(given, list) or (given and isinstance(given[0], int)):
        return [given]
    return given


def input_count(line: RequestLine) -> int:
    """How many inputs share a request."""
    return len(inputs_of(line.body)) if line.url == "/v1/embeddings" else 1


def count_tokens(url: str, body: Mapping[str, Any], size_bytes: int) -> int:
    """The simulator's notion of a request's input tokens.

    Args:
        url: The endpoint.
        body: The request's body.
        size_bytes: Its size as JSON.
    """
    if url == "/v1/embeddings":
        return sum(map(input_tokens, inputs_of(body)))
    turns = body.get("messages" if url == "/v1/chat/completions" else "input")
    if not isinstance(turns, list):
        return estimate_tokens(size_bytes)
    tokens = 0
    for part in content_parts(turns):
        if part.get("type") in _MEDIA_TYPES:
            part_bytes = len(_encode(part))
            size_bytes -= part_bytes
            tokens += _media_tokens(part["type"], part_bytes)
    return tokens + estimate_tokens(size_bytes)


def input_tokens(given: Any) -> int:
    """The tokens of one input of an embeddings request."""
    return len(given) if isinstance(given, list) else estimate_tokens(len(_encode(given)))


def content_parts(turns: list[Any]) -> Iterator[Mapping[str, Any]]:
    """The parts that messages consist of, those that are one text left out."""
    for turn in turns:
        content = turn.get("content") if isinstance(turn, Mapping) else None
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, Mapping))


def _media_tokens(kind: str, size_bytes: int) -> int:
    if kind in ("image_url", "input_image"):
        return IMAGE_TOKENS
    return max(FILE_TOKENS, size_bytes * 3 // 4 // _BYTES_PER_FILE_TOKEN)


def _messages_text(messages: Any) -> str:
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list):
        return ""
    return "\n".join(text for message in messages if (text := _message_text(message)))


def _message_text(message: Any) -> str:
    if isinstance(message, str):
        return message
    if not isinstance(message, Mapping):
        return ""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return " ".join(text for text in texts if isinstance(text, str))
