"""HTTP routes of the Anthropic protocol."""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from batchor_core.simulator.anthropic.batches import BATCHES_PATH
from batchor_core.simulator.anthropic.service import AnthropicService
from batchor_core.simulator.anthropic.wire import WireError, error_body, error_type
from batchor_core.simulator.calls import Guard, Handler
from batchor_core.simulator.faults import FaultBook, FaultRule, Target


def anthropic_routes(
    service: AnthropicService, faults: FaultBook, api_key: str | None
) -> list[Route]:
    """Return the routes under `/v1/messages`; each is named as fault rules name it."""
    calls = _Calls(service)
    guard = Guard(
        faults=faults.of(service.protocol),
        authorise=partial(_authorise, api_key),
        target=partial(_target, service),
        error_body=_error_body,
        prefix=service.prefix,
    )
    one = f"{BATCHES_PATH}/{{batch_id}}"
    table: list[tuple[str, str, str, Handler]] = [
        ("batches.create", "POST", BATCHES_PATH, calls.create),
        ("batches.list", "GET", BATCHES_PATH, calls.list),
        ("batches.get", "GET", one, calls.get),
        ("batches.cancel", "POST", f"{one}/cancel", calls.cancel),
        ("batches.delete", "DELETE", one, calls.delete),
        ("batches.results", "GET", f"{one}/results", calls.results),
    ]
    return [
        Route(path, guard.wrap(name, handler), methods=[method], name=service.prefix + name)
        for name, method, path, handler in table
    ]


class _Calls:
    """One method a call."""

    def __init__(self, service: AnthropicService) -> None:
        self._service = service

    async def create(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response(status_code=400)
        version = request.headers["anthropic-version"]
        return await _batch(request, self._service.create_batch, body, version)

    async def list(self, request: Request) -> Response:
        query = dict(request.query_params)
        page = await run_in_threadpool(self._service.list_batches, query)
        return JSONResponse({**page, "data": [_linked(each, request) for each in page["data"]]})

    async def get(self, request: Request) -> Response:
        return await _batch(request, self._service.get_batch, _batch_id(request))

    async def cancel(self, request: Request) -> Response:
        return await _batch(request, self._service.cancel_batch, _batch_id(request))

    async def delete(self, request: Request) -> Response:
        return await _batch(request, self._service.delete_batch, _batch_id(request))

    async def results(self, request: Request) -> Response:
        path = await run_in_threadpool(self._service.results, _batch_id(request))
        return FileResponse(path, media_type="application/x-jsonl")


async def _batch(
    request: Request, call: Callable[..., dict[str, Any]], *arguments: Any
) -> Response:
    return JSONResponse(_linked(await run_in_threadpool(call, *arguments), request))


def _linked(record: dict[str, Any], request: Request) -> dict[str, Any]:
    """Return a batch whose results have an absolute address, on the host that was asked."""
    path = record.get("results_url")
    if not path:
        return record
    return {**record, "results_url": str(request.base_url).rstrip("/") + path}


def _batch_id(request: Request) -> str:
    batch_id: str = request.path_params["batch_id"]
    return batch_id


async def _target(service: AnthropicService, route: str, request: Request) -> Target:
    if route == "batches.create":
        return service.creation_target()
    return service.target(request.path_params.get("batch_id", ""))


def _authorise(api_key: str | None, request: Request) -> None:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not key:
        raise WireError(401, "x-api-key or Authorization header is required")
    if api_key is not None and key != api_key:
        raise WireError(401, "invalid x-api-key")
    if not request.headers.get("anthropic-version"):
        raise WireError(400, "anthropic-version: header is required")


def _error_body(rule: FaultRule) -> dict[str, Any]:
    kind = error_type(int(rule["status"]), rule["type"])
    return error_body(kind, rule["message"], error_code=rule["code"])
