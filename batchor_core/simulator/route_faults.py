"""Faults of calls. A kind acts before the call has an effect, or after.

`before` may answer in place of the call, which then has no effect; `after` may replace the answer
to a call that had its effect.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from batchor_core.simulator.connections import DroppedConnection, TruncatedFile, client_is_gone
from batchor_core.simulator.faults import FaultKind, FaultRule

_HANG_STEP_S = 0.05
_REDIRECTED = "redirected"


async def _proceed(_: FaultRule, __: Request) -> Response | None:
    return None


async def _keep(_: FaultRule, __: Request, response: Response) -> Response:
    return response


@dataclass(frozen=True, kw_only=True)
class RouteKind(FaultKind):
    """Disturbs a call."""

    scope = "route"
    matches = frozenset({"run", "batch", "endpoint", "route"})
    before: Callable[[FaultRule, Request], Awaitable[Response | None]] = _proceed
    after: Callable[[FaultRule, Request, Response], Awaitable[Response]] = _keep


async def _http_error(rule: FaultRule, request: Request) -> Response | None:
    headers = {name: str(value) for name, value in rule["headers"].items()}
    status = int(rule["status"])
    if isinstance(rule["body"], str):
        return Response(rule["body"], status, headers, media_type=rule["media_type"])
    return JSONResponse(rule["body"] or request.state.error_body(rule), status, headers)


async def _drop_before(_: FaultRule, __: Request) -> Response | None:
    return DroppedConnection()


async def _drop_after(_: FaultRule, __: Request, ___: Response) -> Response:
    return DroppedConnection()


async def _hang(rule: FaultRule, request: Request) -> None:
    until = time.monotonic() + float(rule["seconds"])
    while time.monotonic() < until and not client_is_gone(request.scope):
        await asyncio.sleep(min(_HANG_STEP_S, max(0.0, until - time.monotonic())))


async def _hang_before(rule: FaultRule, request: Request) -> Response | None:
    if not rule["after_commit"]:
        await _hang(rule, request)
        if client_is_gone(request.scope):
            return DroppedConnection()
    return None


async def _hang_after(rule: FaultRule, request: Request, response: Response) -> Response:
    if rule["after_commit"]:
        await _hang(rule, request)
    return response


async def _truncate(rule: FaultRule, _: Request, response: Response) -> Response:
    if not isinstance(response, FileResponse):
        return response
    path = Path(response.path)
    sent = rule["bytes"]
    if sent is None:
        sent = int(path.stat().st_size * float(rule["fraction"]))
    return TruncatedFile(
        path,
        sent_bytes=int(sent),
        with_length=bool(rule["with_length"]),
        reset=bool(rule["reset"]),
    )


async def _redirect(rule: FaultRule, request: Request) -> Response | None:
    if _REDIRECTED in request.query_params:
        return None
    location = request.url.include_query_params(**{_REDIRECTED: "1"})
    return Response(status_code=int(rule["status"]), headers={"location": str(location)})


ROUTE_KINDS = (
    RouteKind(
        name="http_error",
        before=_http_error,
        defaults={
            "status": 500,
            "headers": {},
            "body": None,
            "media_type": "text/html",
            "message": "Simulated failure of the call.",
            "type": "server_error",
            "code": None,
        },
    ),
    RouteKind(name="drop_before_commit", before=_drop_before),
    RouteKind(name="drop_after_commit", after=_drop_after),
    RouteKind(
        name="hang",
        before=_hang_before,
        after=_hang_after,
        defaults={"seconds": 1.0, "after_commit": False},
    ),
    RouteKind(
        name="truncate_download",
        after=_truncate,
        defaults={"fraction": 0.5, "bytes": None, "with_length": True, "reset": False},
    ),
    RouteKind(name="redirect", before=_redirect, defaults={"status": 307}),
)
