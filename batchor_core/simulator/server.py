"""Running the simulator: in the foreground, or beside a test."""

import ipaddress
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import uvicorn

from batchor_core.simulator.app import SimulatorApp, create_app
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.ledger import Ledger
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.state import SimulatorState

_START_TIMEOUT_S = 30.0
_BACKLOG = 128


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    options: SimulatorOptions | None = None,
    *,
    faults: Iterable[Mapping[str, Any]] = (),
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run a simulator until it is interrupted.

    Args:
        host: A loopback address; nobody else may take it for a provider.
        port: The port, or 0 for a free one.
        options: How it behaves.
        faults: Fault rules that are in force from the start.
        on_ready: Called with the base URL once the port is bound.

    Raises:
        FaultError: A fault rule makes no sense.
        ValueError: `host` is not a loopback address.
        OSError: The port is taken.
    """
    with _bind(host, port) as listener, _sigterm_unwinds():
        app = create_app(options)
        try:
            app.state.add_faults(faults)
            if on_ready is not None:
                on_ready(_url(listener))
            _server(app).run(sockets=[listener])
        except KeyboardInterrupt:
            return  # the usual way to end it; uvicorn has already shut down
        finally:
            app.state.close()


class Simulator:
    """A simulator in a background thread, for as long as the `with` block lasts.

    Args:
        options: How it behaves.
        host: A loopback address.
        port: The port, or 0 for a free one.
        clock: Its time; a frozen one makes `advance_time` the only passing of time.

    Raises:
        ValueError: `host` is not a loopback address.
        OSError: The port is taken.
    """

    def __init__(
        self,
        options: SimulatorOptions | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: SimulatorClock | None = None,
    ) -> None:
        self._listener = _bind(host, port)
        self._app = create_app(options, clock=clock)
        self._server = _server(self._app)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._listener]},
            name="batchor-simulator",
            daemon=True,
        )
        self.base_url = _url(self._listener)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise RuntimeError("the simulator did not start; see the log of uvicorn")
            time.sleep(0.002)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def openai_base_url(self) -> str:
        """What the OpenAI SDK takes as `base_url`."""
        return f"{self.base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """What the Anthropic SDK takes as `base_url`."""
        return self.base_url

    @property
    def gemini_base_url(self) -> str:
        """What Google's SDK takes as `base_url`, for the Developer API and for Vertex AI."""
        return f"{self.base_url}/gemini"

    @property
    def state(self) -> SimulatorState:
        """The world behind the HTTP interface."""
        return self._app.state

    def ledger(self) -> Ledger:
        """What was executed so far, everything that is due included."""
        return self.state.settled_ledger()

    def faults(self, *rules: Mapping[str, Any], **rule: Any) -> None:
        """Put fault rules in force: given as mappings, or one as keywords.

        `sim.faults(kind="line_error", status=503, rounds=1)`

        Raises:
            FaultError: A rule makes no sense.
        """
        self.state.add_faults([*rules, rule] if rule else rules)

    def clear_faults(self) -> None:
        """Put every fault rule out of force."""
        self.state.clear_faults()

    def advance_time(self, seconds: float) -> None:
        """Jump forward in the simulator's time."""
        self.state.clock.advance(seconds)

    def reset(self) -> None:
        """Forget files, batches, faults and the ledger."""
        self.state.reset()

    def close(self) -> None:
        """Stop it and remove its files; idempotent."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        self.state.close()


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM raise SystemExit: uvicorn re-raises it, whose default would skip cleanup."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _bind(host: str, port: int) -> socket.socket:
    address = "127.0.0.1" if host == "localhost" else host
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or not parsed.is_loopback:
        raise ValueError(
            f"the simulator serves loopback addresses only, not {host!r}: its answers come from"
            " no model"
        )
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _server(app: SimulatorApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        # The app writes its own Date, by the provider's clock.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
