"""The body of a create call: what the API checks at once, and how its requests are kept."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from batchor_core.simulator.anthropic.wire import WireError

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class RequestLine(msgspec.Struct, forbid_unknown_fields=True):
    """One request; its ``params`` are looked at when it is executed, as the API does."""

    custom_id: str
    params: msgspec.Raw


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    requests: list[RequestLine]


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_line = msgspec.json.Decoder(RequestLine).decode
_encode = msgspec.json.Encoder().encode


def keep_requests(body: bytes, path: Path, most: int) -> int:
    """Write a create call's requests to ``path``, one a line, and return how many they are.

    Raises:
        WireError: With status 400, for what is wrong about the envelope.
    """
    try:
        requests = _decode_envelope(body).requests
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(400, f"The request body is not valid: {error}") from error
    if not requests:
        raise WireError(400, "requests: List should have at least 1 item after validation, not 0")
    if len(requests) > most:
        raise WireError(400, f"requests: List should have at most {most} items after validation")
    _check_ids(requests)
    with path.open("wb") as file:
        for request in requests:
            file.write(_one_line(request) + b"\n")
    return len(requests)


def read_requests(path: Path) -> Iterator[tuple[str, Any]]:
    """Return custom id and params of every request kept."""
    with path.open("rb", buffering=1024 * 1024) as file:
        for raw in file:
            line = _decode_line(raw)
            yield line.custom_id, msgspec.json.decode(line.params)


def _check_ids(requests: list[RequestLine]) -> None:
    seen: set[str] = set()
    for number, request in enumerate(requests):
        if not _CUSTOM_ID.fullmatch(request.custom_id):
            raise WireError(
                400,
                f"requests.{number}.custom_id: String should match pattern"
                f" '^[a-zA-Z0-9_-]{{1,64}}$'",
            )
        if request.custom_id in seen:
            raise WireError(
                400, f"requests.{number}.custom_id: {request.custom_id!r} is not unique"
            )
        if not bytes(request.params).lstrip().startswith(b"{"):
            raise WireError(400, f"requests.{number}.params: Input should be an object")
        seen.add(request.custom_id)


def _one_line(request: RequestLine) -> bytes:
    encoded = _encode(request)
    return msgspec.json.format(encoded, indent=-1) if b"\n" in encoded else encoded
