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
from batchor_core.simulator.scripted_answers import Reply
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
        return self.environment["OPENAI_BASE_URL"]

    @property
    def anthropic_base_url(self) -> str:
        """What the Anthropic SDK takes as `base_url`."""
        return self.environment["ANTHROPIC_BASE_URL"]

    @property
    def gemini_base_url(self) -> str:
        """What Google's SDK takes as `base_url`, for the Developer API and for Vertex AI."""
        return self.environment["GOOGLE_GEMINI_BASE_URL"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that lead every provider's SDK here."""
        return environment_of(self.base_url, self.state.options.api_key)

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

    def answer(self, reply: Reply, *, containing: str = "") -> None:
        """Give requests an answer of your own, in place of a made-up one.

        `sim.answer({"category": "billing"}, containing="charged twice")`

        The answer given last goes first. Fields of a structured answer that are left out are made
        up. What the output model does not accept makes the row an invalid one, as with a model
        that answers so; a field that the schema does not have makes the provider refuse the row,
        with a message that names it. Embeddings cannot be scripted.

        Args:
            reply: A text, or a mapping or Pydantic model with fields of a structured answer; or a
                function that gets the question and returns one of these, or None to leave it to
                others. It is called in the simulator's thread.
            containing: Only requests whose prompt contains this.
        """
        self.state.script.add(reply, containing)

    def clear_answers(self) -> None:
        """Put every scripted answer out of force."""
        self.state.script.clear()

    def advance_time(self, seconds: float) -> None:
        """Jump forward in the simulator's time."""
        self.state.clock.advance(seconds)

    def reset(self) -> None:
        """Forget files, batches, faults, scripted answers and the ledger."""
        self.state.reset()

    def close(self) -> None:
        """Stop it and remove its files; idempotent."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()
        self.state.close()


def environment_of(base_url: str, api_key: str | None = None) -> dict[str, str]:
    """Return the environment variables that lead every provider's SDK to a simulator.

    Args:
        base_url: Where it serves.
        api_key: The only key that it accepts; None if it accepts any.
    """
    key = api_key or "simulated"
    return {
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_GEMINI_BASE_URL": f"{base_url}/gemini",
        "GOOGLE_API_KEY": key,
    }


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
