"""The usual result lines, read straight into their types: several times faster than looking at it.

Anything out of the usual (a fault, several parts, a thought, a missing count) is not read here but
in ``results``, which trusts nothing.
"""

import struct
from typing import Annotated, Literal

import msgspec

from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import TokenCount, tokens_in

_Filled = Annotated[str, msgspec.Meta(min_length=1)]


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    prompt_token_count: TokenCount
    candidates_token_count: TokenCount
    cached_content_token_count: TokenCount = 0
    thoughts_token_count: TokenCount = 0
    tool_use_prompt_token_count: TokenCount = 0


class _Part(msgspec.Struct, gc=False):
    text: _Filled
    thought: bool = False


class _Content(msgspec.Struct, gc=False):
    parts: Annotated[list[_Part], msgspec.Meta(min_length=1, max_length=1)]


class _Candidate(msgspec.Struct, gc=False, rename="camel"):
    content: _Content
    finish_reason: Literal["STOP"]


class _Generated(msgspec.Struct, gc=False, rename="camel"):
    candidates: Annotated[list[_Candidate], msgspec.Meta(min_length=1, max_length=1)]
    usage_metadata: _Usage
    model_version: _Filled
    response_id: str | None = None
    embedding: None = None


class _Vector(msgspec.Struct, gc=False):
    values: Annotated[list[float], msgspec.Meta(min_length=1)]


class _Embedded(msgspec.Struct, gc=False, rename="camel"):
    embedding: _Vector
    token_count: TokenCount | str


class _GeneratedLine(msgspec.Struct, gc=False):
    key: str
    response: _Generated
    error: None = None


class _EmbeddedLine(msgspec.Struct, gc=False):
    key: str
    response: _Embedded
    error: None = None


class _Labels(msgspec.Struct, gc=False):
    custom_id: str


class _Echo(msgspec.Struct, gc=False):
    labels: _Labels


class _VertexLine(msgspec.Struct, gc=False):
    request: _Echo
    response: _Generated
    status: Literal[""] = ""
    error: None = None


_generated_line = msgspec.json.Decoder(_GeneratedLine).decode
_embedded_line = msgspec.json.Decoder(_EmbeddedLine).decode
_vertex_line = msgspec.json.Decoder(_VertexLine).decode
_UNUSUAL = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def usual_developer_answer(line: bytes) -> Answer | None:
    """Return the answer on a line of the usual shape, or None for any other line."""
    try:
        record = _generated_line(line)
    except _UNUSUAL:
        return _usual_vector(line) if b'"embedding"' in line else None
    return _answer(record.key, record.response)


def usual_vertex_answer(line: bytes) -> Answer | None:
    """Return the answer on a line of the usual shape, or None for any other line."""
    try:
        record = _vertex_line(line)
    except _UNUSUAL:
        return None
    return _answer(record.request.labels.custom_id, record.response)


def _usual_vector(line: bytes) -> Answer | None:
    try:
        record = _embedded_line(line)
        values = record.response.embedding.values
        vector = struct.pack(f"<{len(values)}f", *values)
    except (*_UNUSUAL, OverflowError):
        return None
    tokens = tokens_in(record.response.token_count)
    return Answer(custom_id=record.key, vectors=[vector], input_tokens=tokens)


def _answer(custom_id: str, response: _Generated) -> Answer | None:
    part = response.candidates[0].content.parts[0]
    if part.thought:
        return None
    usage = response.usage_metadata
    return Answer(
        custom_id=custom_id,
        text=part.text,
        finish_reason="stop",
        model=response.model_version,
        request_id=response.response_id or None,
        input_tokens=usage.prompt_token_count + usage.tool_use_prompt_token_count,
        cached_input_tokens=usage.cached_content_token_count,
        output_tokens=usage.candidates_token_count + usage.thoughts_token_count,
        reasoning_tokens=usage.thoughts_token_count,
    )
