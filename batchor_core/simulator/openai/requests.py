"""Lines of an input file: reading them, and what is asked in them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

REQUIRED_PARAMETER = {
    "/v1/responses": "input",
    "/v1/chat/completions": "messages",
    "/v1/embeddings": "input",
}
_LINE_BUFFER_BYTES = 1024 * 1024


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
