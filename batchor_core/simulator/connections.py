"""Breaking connections on purpose, below HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

_EXTENSION = "batchor.transport"
_PIECE_BYTES = 64 * 1024
_MAX_BUFFERED_BYTES = 1024 * 1024


class Transport(Protocol):
    """What is used of `asyncio.Transport`."""

    def abort(self) -> None:
        """Close at once and drop what was not sent."""

    def close(self) -> None:
        """Close after what was written is sent."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""

    def get_write_buffer_size(self) -> int:
        """Bytes queued."""

    def is_closing(self) -> bool:
        """Whether either side has ended the connection."""


def remember_transport(scope: Scope, send: Send) -> None:
    """Make the socket reachable for the responses below.

    ASGI has no message for a connection that breaks: the only way to end one without any answer
    is the transport, which uvicorn's request cycle holds publicly and whose method `send` is.
    Must be called with the server's own `send`.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        scope.setdefault("extensions", {})[_EXTENSION] = transport


def _transport(scope: Scope) -> Transport:
    transport: Any = scope.get("extensions", {}).get(_EXTENSION)
    if transport is None:
        raise RuntimeError("connections can only be broken when uvicorn runs the simulator")
    found: Transport = transport
    return found


def client_is_gone(scope: Scope) -> bool:
    """Whether the client has hung up; unlike ASGI's way to ask, it consumes no message."""
    transport = scope.get("extensions", {}).get(_EXTENSION)
    return transport is not None and transport.is_closing()


async def _until_closed(receive: Receive) -> None:
    message: Message = {"type": "http.request"}
    while message["type"] != "http.disconnect":
        message = await receive()


class DroppedConnection(Response):
    """No answer at all: the socket is closed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI
        """Close the connection of this request."""
        _transport(scope).abort()
        await _until_closed(receive)


class TruncatedFile(Response):
    """A file whose transfer ends early.

    Args:
        path: The file.
        sent_bytes: How much of it is sent.
        with_length: Announce the whole length, so that clients can notice; without it the end
            of the connection looks like the end of the file.
        reset: Reset the connection in place of closing it.
    """

    def __init__(
        self, path: Path, *, sent_bytes: int, with_length: bool, reset: bool = False
    ) -> None:
        super().__init__()
        self._path = path
        self._sent_bytes = sent_bytes
        self._with_length = with_length
        self._reset = reset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI
        """Write the answer past the server, which would insist on a complete one."""
        transport = _transport(scope)
        head = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\nconnection: close\r\n"
        if self._with_length:
            head += f"content-length: {self._path.stat().st_size}\r\n"
        transport.write(head.encode() + b"\r\n")
        for piece in self._pieces():
            transport.write(piece)
            while transport.get_write_buffer_size() > _MAX_BUFFERED_BYTES:
                await asyncio.sleep(0.01)
        if self._reset:
            transport.abort()
        else:
            transport.close()
        await _until_closed(receive)

    def _pieces(self) -> Iterator[bytes]:
        left = self._sent_bytes
        with self._path.open("rb") as handle:
            while left > 0 and (piece := handle.read(min(left, _PIECE_BYTES))):
                left -= len(piece)
                yield piece
