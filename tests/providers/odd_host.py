"""A hand-written host for answers that the simulator does not give."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import SecretStr

from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider

SECRET = "sk-odd-host-0123456789"


@dataclass(kw_only=True)
class Reply:
    """One scripted answer."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(kw_only=True)
class Seen:
    """One recorded request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Script = Callable[[Seen], Reply]


class OddHost:
    """Answers by a script and records what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def handle(self) -> None:
                with suppress(ConnectionError):
                    super().handle()

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = Seen(
                    method=self.command,
                    path=self.path,
                    headers=headers,
                    body=self.rfile.read(length),
                )
                host.seen.append(seen)
                reply = host.script(seen)
                self.send_response_only(reply.status)
                fallback = {"content-type": "application/json", "connection": "close"}
                for name, value in {**fallback, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.content)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """Stop listening; idempotent."""
        if not self._thread.is_alive():
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def odd_provider(
    script: Script | Reply, *, path: str = "/v1", **fields: Any
) -> Iterator[tuple[OpenAIProvider, OddHost]]:
    """Run a host, with an adapter connected to it.

    Args:
        script: What the host answers.
        path: Path of the base URL.
        fields: Further fields of the configuration.
    """
    host = OddHost(script if callable(script) else lambda _: script)
    given = {"api_key": SecretStr(SECRET), "timeout_s": 10, **fields}
    config = OpenAIProviderConfig(model="gpt-test", base_url=f"{host.url}{path}", **given)
    try:
        with closing(OpenAIProvider(config)) as provider:
            yield provider, host
    finally:
        host.close()
