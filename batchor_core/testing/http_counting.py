"""A transparent proxy on loopback that counts the requests that go through it."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_PIECE_BYTES = 64 * 1024


class CountingProxy:
    """Passes bytes in both directions, and breaks off where either side does.

    It sees a request by its first line, so that requests are counted which never got an answer.

    Args:
        target: Base URL of the server behind it.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._lines: list[bytes] = []
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def count(self, method: str, path_end: str) -> int:
        """Return how many requests of this method had a path that ends so."""
        start, end = f"{method} ".encode(), f"{path_end} HTTP/1.1".encode()
        return sum(line.startswith(start) and line.endswith(end) for line in self._lines)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]  # any callable
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for one in (client, server):  # else each small piece waits for the one before
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            self._start(self._pass_on, client, server, True)
            self._start(self._pass_on, server, client, False)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        try:
            while piece := source.recv(_PIECE_BYTES):
                if is_request:
                    self._note(piece)
                sink.sendall(piece)
        except OSError:
            pass
        _shut(sink)
        _shut(source)

    def _note(self, piece: bytes) -> None:
        lines = piece.split(b"\r\n")
        self._lines += [line for line in lines if line.endswith(b" HTTP/1.1")]


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
