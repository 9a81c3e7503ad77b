"""What surrounds every call of every protocol.

The key is checked, scripted faults may strike before the call has an effect, the service does it
in a worker thread, and faults may strike again afterwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from batchor_core.simulator.faults import FaultRule, ProtocolFaults, Target
from batchor_core.simulator.route_faults import RouteKind

Handler = Callable[[Request], Awaitable[Response]]


class Refusal(Exception, ABC):  # noqa: N818 - no failure of ours
    """A call that is refused; each protocol has its own shape for that."""

    @abstractmethod
    def response(self) -> Response:
        """Return the HTTP answer."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Surrounds the calls of one protocol.

    Attributes:
        faults: The rules in force.
        authorise: Raises a ``Refusal`` for a request without the right key.
        target: What rules may match of a call, given the route's name without prefix.
        error_body: The protocol's error for a rule that names status, message, type and code.
        prefix: What precedes the names of routes in fault rules, as ``anthropic.``.
    """

    faults: ProtocolFaults
    authorise: Callable[[Request], None]
    target: Callable[[str, Request], Awaitable[Target]]
    error_body: Callable[[FaultRule], Any]
    prefix: str = ""

    def wrap(self, route: str, handler: Handler) -> Handler:
        """Return a handler that is guarded."""

        async def endpoint(request: Request) -> Response:
            try:
                self.authorise(request)
                return await self._disturbed(route, handler, request)
            except Refusal as refusal:
                return refusal.response()

        return endpoint

    async def _disturbed(self, route: str, handler: Handler, request: Request) -> Response:
        request.state.error_body = self.error_body
        target = replace(await self.target(route, request), route=self.prefix + route)
        struck: list[tuple[FaultRule, RouteKind]] = []
        for rule, kind in self.faults.rules(RouteKind, target):
            if not rule.strike():
                continue
            # A rule that answers leaves those behind it unused: they are for the next calls.
            answer = await kind.before(rule, request)
            if answer is not None:
                return answer
            struck.append((rule, kind))
        response = await handler(request)
        for rule, kind in struck:
            response = await kind.after(rule, request, response)
        return response


async def answered(call: Callable[..., dict[str, Any]], *arguments: Any) -> Response:
    """Return what a service says, as JSON."""
    return JSONResponse(await run_in_threadpool(call, *arguments))


async def json_body(request: Request) -> Any:
    """Return a request's body; None for what is no JSON."""
    try:
        return msgspec.json.decode(await request.body())
    except msgspec.DecodeError:
        return None
