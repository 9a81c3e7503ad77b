"""Reading JSON that others wrote: strictly first, then as loosely as an answer is worth."""

import json
from typing import Any

import msgspec

_decode_strictly = msgspec.json.Decoder().decode


def decode_json(data: bytes) -> Any:
    """Return the value, or None where ``data`` is no JSON in UTF-8 at all.

    A leading BOM is skipped, NaN and infinities become None, and lone surrogates become ``?``: an
    answer that was paid for is worth a second look, and what is returned can be stored anywhere.
    Never raises, however the bytes look.
    """
    try:
        return _decode_strictly(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        loose = json.loads(data.decode("utf-8-sig"), parse_constant=_nothing)
        text = json.dumps(loose, ensure_ascii=False).encode("utf-8", "replace")
        return json.loads(text, parse_constant=_nothing)  # 1e999 was read as an infinity
    except (ValueError, RecursionError):
        return None


def _nothing(_: str) -> None:
    return None
