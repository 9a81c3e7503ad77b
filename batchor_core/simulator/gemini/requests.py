"""Requests of a batch, from a file or from the create call: reading them, and what they ask."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from batchor_core.simulator.gemini.wire import camel, field

_LINE_BUFFER_BYTES = 1024 * 1024
_GENERATE_FIELDS = frozenset(
    {
        "cachedContent",
        "contents",
        "generationConfig",
        "labels",
        "model",
        "safetySettings",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)
_EMBED_FIELDS = frozenset({"content", "model", "outputDimensionality", "taskType", "title"})


class Line(msgspec.Struct):
    """One request of a batch.

    Attributes:
        key: What its answer is told apart by; empty where the client gave none.
        echo: The request as the client wrote it.
    """

    key: str
    request: Mapping[str, Any]


def developer_lines(path: Path) -> Iterator[Line | None]:
    """The lines of a file for the Developer API; None for one that is no request."""
    for record in _records(path):
        request = field(record, "request")
        key = field(record, "key")
        if not isinstance(request, Mapping) or not isinstance(key, (str, type(None))):
            yield None
        else:
            yield Line(key or "", request)


def vertex_lines(path: Path) -> Iterator[Line | None]:
    """The lines of a file for Vertex AI; a request's key is one of its labels."""
    for record in _records(path):
        request = field(record, "request")
        if not isinstance(request, Mapping):
            yield None
        else:
            yield Line(str(field(request, "labels", "custom_id") or ""), request)


def violation_of(request: Mapping[str, Any], *, is_embedding: bool) -> str | None:
    """Why the API would refuse a request: it takes no field that it does not know."""
    known, needed = (_EMBED_FIELDS, "content") if is_embedding else (_GENERATE_FIELDS, "contents")
    unknown = [name for name in request if camel(name) not in known]
    if unknown:
        return f"Invalid JSON payload received. Unknown name {unknown[0]!r}: Cannot find field."
    if not field(request, needed):
        return f"* {needed} is not specified"
    return None


def prompt_of(request: Mapping[str, Any]) -> str:
    """The text that a request asks about; instructions are the same for every row."""
    contents = request.get("contents") or [request.get("content")]
    turns = contents if isinstance(contents, list) else [contents]
    return "\n".join(text for turn in turns if (text := _text_of(turn)))


def _text_of(turn: Any) -> str:
    parts = field(turn, "parts")
    texts = (field(part, "text") for part in (parts if isinstance(parts, list) else ()))
    return " ".join(text for text in texts if isinstance(text, str))


def _records(path: Path) -> Iterator[Any]:
    with path.open("rb", buffering=_LINE_BUFFER_BYTES) as handle:
        for raw in handle:
            try:
                yield msgspec.json.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield None
