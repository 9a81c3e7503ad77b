"""The simulator as an ASGI application."""

import uuid

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchor_core.simulator.admin_routes import admin_routes
from batchor_core.simulator.answers import NOTICE
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.connections import remember_transport
from batchor_core.simulator.openai import openai_routes
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.state import SimulatorState


class SimulatorApp:
    """The application, with the world behind it as `state`.

    It stands outside of Starlette's middleware, because it needs the server's own `send`, and
    because errors too must say that no model was involved.
    """

    def __init__(self, inner: ASGIApp, state: SimulatorState) -> None:
        self.state = state
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, with the provider's clock and the notice in its headers."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        remember_transport(scope, send)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["date"] = self.state.clock.http_date()
                headers["x-batchor-simulator"] = NOTICE
                headers.setdefault("x-request-id", f"req_{uuid.uuid4().hex}")
            await send(message)

        await self._inner(scope, receive, send_marked)


def create_app(
    options: SimulatorOptions | None = None, *, clock: SimulatorClock | None = None
) -> SimulatorApp:
    """A simulator with nothing in it; its owner calls `app.state.close()` at the end."""
    state = SimulatorState(options or SimulatorOptions(), clock)
    routes = [
        *admin_routes(state),
        *openai_routes(state.openai, state.faults, state.options.api_key),
    ]
    inner = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})
    return SimulatorApp(inner, state)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"Invalid URL ({request.method} {request.url.path})"
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": body}, status)
