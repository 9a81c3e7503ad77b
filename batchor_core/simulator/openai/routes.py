"""HTTP routes of the OpenAI protocol.

Every call goes the same way: the key is checked, scripted faults may strike before it has an
effect, the service does it in a worker thread, and faults may strike again afterwards.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from batchor_core.simulator.faults import FaultBook, FaultRule, Target
from batchor_core.simulator.openai.service import OpenAIService
from batchor_core.simulator.openai.wire import WireError
from batchor_core.simulator.route_faults import RouteKind
from batchor_core.simulator.uploads import MultipartUpload, UploadError

Handler = Callable[[Request], Awaitable[Response]]


def openai_routes(service: OpenAIService, faults: FaultBook, api_key: str | None) -> list[Route]:
    """The routes under `/v1`; each is named as fault rules name it."""
    calls = _Calls(service)
    guard = _Guard(service, faults, api_key)
    table: list[tuple[str, str, str, Handler]] = [
        ("files.create", "POST", "/v1/files", calls.create_file),
        ("files.list", "GET", "/v1/files", calls.list_files),
        ("files.get", "GET", "/v1/files/{file_id}", calls.get_file),
        ("files.delete", "DELETE", "/v1/files/{file_id}", calls.delete_file),
        ("files.content", "GET", "/v1/files/{file_id}/content", calls.content),
        ("batches.create", "POST", "/v1/batches", calls.create_batch),
        ("batches.list", "GET", "/v1/batches", calls.list_batches),
        ("batches.get", "GET", "/v1/batches/{batch_id}", calls.get_batch),
        ("batches.cancel", "POST", "/v1/batches/{batch_id}/cancel", calls.cancel_batch),
    ]
    return [
        Route(path, guard.wrap(name, handler), methods=[method], name=name)
        for name, method, path, handler in table
    ]


class _Guard:
    """What surrounds every call."""

    def __init__(self, service: OpenAIService, faults: FaultBook, api_key: str | None) -> None:
        self._service = service
        self._faults = faults
        self._api_key = api_key

    def wrap(self, route: str, handler: Handler) -> Handler:
        async def endpoint(request: Request) -> Response:
            try:
                self._authorise(request)
                return await self._disturbed(route, handler, request)
            except WireError as error:
                return error.response()

        return endpoint

    async def _disturbed(self, route: str, handler: Handler, request: Request) -> Response:
        target = replace(await self._target(route, request), route=route)
        struck: list[tuple[FaultRule, RouteKind]] = []
        for rule, kind in self._faults.rules(RouteKind, target):
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

    def _authorise(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise WireError(401, "You didn't provide an API key in an Authorization header.")
        if self._api_key is not None and key.strip() != self._api_key:
            raise WireError(401, "Incorrect API key provided.", code="invalid_api_key")

    async def _target(self, route: str, request: Request) -> Target:
        if route == "batches.create":
            return self._service.creation_target(await _json(request))
        return self._service.target(request.path_params.get("batch_id", ""))


class _Calls:
    """One method a call."""

    def __init__(self, service: OpenAIService) -> None:
        self._service = service

    async def create_file(self, request: Request) -> Response:
        path = self._service.new_upload_path()
        try:
            upload = MultipartUpload(request.headers.get("content-type", ""), path)
            await upload.receive(request)
        except UploadError as error:
            path.unlink(missing_ok=True)
            raise WireError(400, f"Could not parse multipart form: {error}") from error
        except ClientDisconnect:
            path.unlink(missing_ok=True)
            return Response(status_code=400)
        return await _answer(
            self._service.upload, path, upload.fields, upload.filename, upload.size_bytes
        )

    async def list_files(self, request: Request) -> Response:
        return await _answer(self._service.list_files, dict(request.query_params))

    async def get_file(self, request: Request) -> Response:
        return await _answer(self._service.get_file, request.path_params["file_id"])

    async def delete_file(self, request: Request) -> Response:
        return await _answer(self._service.delete_file, request.path_params["file_id"])

    async def content(self, request: Request) -> Response:
        file = await run_in_threadpool(self._service.content, request.path_params["file_id"])
        return FileResponse(file.path, media_type="application/octet-stream")

    async def create_batch(self, request: Request) -> Response:
        return await _answer(self._service.create_batch, await _json(request))

    async def list_batches(self, request: Request) -> Response:
        return await _answer(self._service.list_batches, dict(request.query_params))

    async def get_batch(self, request: Request) -> Response:
        return await _answer(self._service.get_batch, request.path_params["batch_id"])

    async def cancel_batch(self, request: Request) -> Response:
        return await _answer(self._service.cancel_batch, request.path_params["batch_id"])


async def _answer(call: Callable[..., dict[str, Any]], *arguments: Any) -> Response:
    return JSONResponse(await run_in_threadpool(call, *arguments))


async def _json(request: Request) -> Any:
    try:
        return msgspec.json.decode(await request.body())
    except msgspec.DecodeError:
        return None
