"""The usual result line, read straight into its type: five times faster than looking at it.

Anything out of the usual (a fault, several parts, a missing count) is not read here but by
``results.decode_line``, which trusts nothing.
"""

from typing import Annotated, Literal

import msgspec

from batchor_core.providers.protocol import Answer

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: _Count


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: _Count


class _Usage(msgspec.Struct, gc=False):
    input_tokens: _Count
    output_tokens: _Count
    input_tokens_details: _InputDetails
    output_tokens_details: _OutputDetails


class _Part(msgspec.Struct, gc=False):
    type: Literal["output_text"]
    text: Annotated[str, msgspec.Meta(min_length=1)]


class _Message(msgspec.Struct, gc=False):
    type: Literal["message"]
    content: Annotated[list[_Part], msgspec.Meta(min_length=1, max_length=1)]


class _Body(msgspec.Struct, gc=False):
    status: Literal["completed"]
    model: Annotated[str, msgspec.Meta(min_length=1)]
    output: Annotated[list[_Message], msgspec.Meta(min_length=1, max_length=1)]
    usage: _Usage
    error: None = None


class _Response(msgspec.Struct, gc=False):
    status_code: Literal[200]
    request_id: Annotated[str, msgspec.Meta(min_length=1)]
    body: _Body


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response


_decode = msgspec.json.Decoder(_Line).decode


def usual_answer(line: bytes) -> Answer | None:
    """Return the answer on a line of the usual shape, or None for any other line."""
    try:
        record = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    response = record.response
    body = response.body
    usage = body.usage
    return Answer(
        custom_id=record.custom_id,
        text=body.output[0].content[0].text,
        finish_reason="stop",
        model=body.model,
        request_id=response.request_id,
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
    )
