"""HTTP routes of the OpenAI protocol."""

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from batchor_core.simulator.calls import Guard, Handler, answered, json_body
from batchor_core.simulator.faults import FaultBook, FaultRule, Target
from batchor_core.simulator.openai.service import OpenAIService
from batchor_core.simulator.openai.wire import WireError
from batchor_core.simulator.uploads import MultipartUpload, UploadError


def openai_routes(service: OpenAIService, faults: FaultBook, api_key: str | None) -> list[Route]:
    """The routes under `/v1`; each is named as fault rules name it."""
    calls = _Calls(service)
    guard = Guard(
        faults=faults.of(service.protocol),
        authorise=partial(_authorise, api_key),
        target=partial(_target, service),
        error_body=_error_body,
        prefix=service.prefix,
    )
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
        return await answered(
            self._service.upload, path, upload.fields, upload.filename, upload.size_bytes
        )

    async def list_files(self, request: Request) -> Response:
        return await answered(self._service.list_files, dict(request.query_params))

    async def get_file(self, request: Request) -> Response:
        return await answered(self._service.get_file, request.path_params["file_id"])

    async def delete_file(self, request: Request) -> Response:
        return await answered(self._service.delete_file, request.path_params["file_id"])

    async def content(self, request: Request) -> Response:
        file = await run_in_threadpool(self._service.content, request.path_params["file_id"])
        return FileResponse(file.path, media_type="application/octet-stream")

    async def create_batch(self, request: Request) -> Response:
        return await answered(self._service.create_batch, await json_body(request))

    async def list_batches(self, request: Request) -> Response:
        return await answered(self._service.list_batches, dict(request.query_params))

    async def get_batch(self, request: Request) -> Response:
        return await answered(self._service.get_batch, request.path_params["batch_id"])

    async def cancel_batch(self, request: Request) -> Response:
        return await answered(self._service.cancel_batch, request.path_params["batch_id"])


async def _target(service: OpenAIService, route: str, request: Request) -> Target:
    if route == "batches.create":
        return service.creation_target(await json_body(request))
    return service.target(request.path_params.get("batch_id", ""))


def _authorise(api_key: str | None, request: Request) -> None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise WireError(401, "You didn't provide an API key in an Authorization header.")
    if api_key is not None and key.strip() != api_key:
        raise WireError(401, "Incorrect API key provided.", code="invalid_api_key")


def _error_body(rule: FaultRule) -> dict[str, Any]:
    error = {name: rule[name] for name in ("message", "type", "code")}
    return {"error": {**error, "param": None}}
