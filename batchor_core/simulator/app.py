"""The simulator as an ASGI application.

One world serves every protocol: one clock, one spool, one ledger, one set of fault rules, one
simulated model (`World`). A protocol is a package of three parts, listed in two places: its
service in `SimulatorState.services`, its routes in `create_app`.

- *routes* say how a call looks: paths, keys, errors. Every handler goes through a `Guard`, which
  checks the key and lets faults of calls strike. Paths of two protocols may not meet: OpenAI's are
  under `/v1`, Anthropic's under `/v1/messages`, Gemini's under `/gemini`, because its own
  (`/v1/files`, `/v1/batches`) are OpenAI's too. What a client takes as base URL is a property of
  `Simulator`.
- the *service* says what a call does. It is a `BatchService`: batches by id, settled when somebody
  calls, listed newest first, described for `/_sim/ledger`. Its batch is a `BatchPlan` with what the
  protocol adds, timed by `SimulatorOptions.batch_seconds`; queue limits are an option that only the
  protocols heed which have such a limit. Batches are numbered per protocol.
- the *execution* answers each request once, through the world's `AnswerWriter`, which knows no
  protocol; an `ExecutionLog` spoils the `Answer` as rules say and notes it in the ledger; the
  protocol's own writer gives it a shape, and honours whatever a fault left in it (`copies`,
  `raw_before`, `raw_instead`, `also_as`, `edits`, `patches`).

Fault rules are the same for all. A kind names the `protocols` that have such a thing, and passes by
the others. Routes are named as rules name them: OpenAI's plainly (`batches.create`), those of the
others after their protocol (`anthropic.batches.create`, `gemini.files.download`,
`vertex.batches.get`). The ledger knows an item by run, row and request; where a protocol's batches
carry nothing of the run (Anthropic), the run is the empty text.
"""

import uuid

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchor_core.simulator.admin_routes import admin_routes
from batchor_core.simulator.answers import NOTICE
from batchor_core.simulator.anthropic import anthropic_routes
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.connections import remember_transport
from batchor_core.simulator.gemini import gemini_routes
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
                request_id = headers.setdefault("x-request-id", f"req_{uuid.uuid4().hex}")
                headers.setdefault("request-id", request_id)
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
        *anthropic_routes(state.anthropic, state.faults, state.options.api_key),
        *gemini_routes(state.gemini, state.vertex, state.faults, state.options.api_key),
    ]
    inner = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})
    return SimulatorApp(inner, state)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"Invalid URL ({request.method} {request.url.path})"
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": body}, status)
