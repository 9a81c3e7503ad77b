"""HTTP routes of both backends, under ``/gemini``.

The Developer API is there in its versions ``v1`` and ``v1beta``, Vertex AI in ``v1`` and
``v1beta1``: what tells them apart is the path behind the version.
"""

from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from batchor_core.simulator.calls import Guard, Handler, answered, json_body
from batchor_core.simulator.faults import FaultBook, FaultRule, Target
from batchor_core.simulator.gemini.service import GeminiService
from batchor_core.simulator.gemini.vertex_service import VertexService
from batchor_core.simulator.gemini.wire import GeminiError, error_body

_ROOT = "/gemini"
_ENDPOINTS = {
    "batchGenerateContent": "generateContent",
    "asyncBatchEmbedContent": "embedContent",
}


def gemini_routes(
    developer: GeminiService, vertex: VertexService, faults: FaultBook, api_key: str | None
) -> list[Route]:
    """The routes of both backends; each is named as fault rules name it."""
    return [
        *_developer_routes(developer, faults, api_key),
        *_vertex_routes(vertex, faults),
    ]


def _developer_routes(
    service: GeminiService, faults: FaultBook, api_key: str | None
) -> list[Route]:
    calls = _DeveloperCalls(service)
    guard = Guard(
        faults=faults.of(service.protocol),
        authorise=partial(_check_key, api_key),
        target=partial(_developer_target, service),
        error_body=_rule_body,
        prefix=service.prefix,
    )
    uploads = f"{_ROOT}/upload/{{version}}/files"
    base = f"{_ROOT}/{{version}}"
    table: list[tuple[str, str, str, Handler]] = [
        ("files.create", "POST", uploads, calls.start_upload),
        ("files.upload", "POST", f"{uploads}/{{session}}", calls.upload),
        ("files.list", "GET", f"{base}/files", calls.list_files),
        ("files.download", "GET", f"{base}/files/{{id}}:download", calls.download),
        ("files.get", "GET", f"{base}/files/{{id}}", calls.get_file),
        ("files.delete", "DELETE", f"{base}/files/{{id}}", calls.delete_file),
        *(
            ("batches.create", "POST", f"{base}/models/{{model}}:{method}", calls.create(endpoint))
            for method, endpoint in _ENDPOINTS.items()
        ),
        ("batches.list", "GET", f"{base}/batches", calls.list_batches),
        ("batches.cancel", "POST", f"{base}/batches/{{id}}:cancel", calls.cancel_batch),
        ("batches.get", "GET", f"{base}/batches/{{id}}", calls.get_batch),
        ("batches.delete", "DELETE", f"{base}/batches/{{id}}", calls.delete_batch),
    ]
    return _routes(guard, table)


def _vertex_routes(service: VertexService, faults: FaultBook) -> list[Route]:
    calls = _VertexCalls(service)
    guard = Guard(
        faults=faults.of(service.protocol),
        authorise=_check_token,
        target=partial(_vertex_target, service),
        error_body=_rule_body,
        prefix=service.prefix,
    )
    jobs = f"{_ROOT}/{{version}}/projects/{{project}}/locations/{{location}}/batchPredictionJobs"
    table: list[tuple[str, str, str, Handler]] = [
        ("batches.create", "POST", jobs, calls.create_job),
        ("batches.list", "GET", jobs, calls.list_jobs),
        ("batches.cancel", "POST", f"{jobs}/{{id}}:cancel", calls.cancel_job),
        ("batches.get", "GET", f"{jobs}/{{id}}", calls.get_job),
        ("batches.delete", "DELETE", f"{jobs}/{{id}}", calls.delete_job),
    ]
    return _routes(guard, table)


def _routes(guard: Guard, table: list[tuple[str, str, str, Handler]]) -> list[Route]:
    return [
        Route(path, guard.wrap(name, handler), methods=[method], name=f"{guard.prefix}{name}")
        for name, method, path, handler in table
    ]


class _DeveloperCalls:
    """One method a call."""

    def __init__(self, service: GeminiService) -> None:
        self._service = service

    async def start_upload(self, request: Request) -> Response:
        session = await run_in_threadpool(self._service.start_upload, await json_body(request))
        # The client goes where this says, so it has to be the address that the client knows.
        url = f"{request.url.scheme}://{request.headers['host']}{request.url.path}/{session}"
        headers = {"x-goog-upload-url": url, "x-goog-upload-status": "active"}
        return JSONResponse({}, headers=headers)

    async def upload(self, request: Request) -> Response:
        command = request.headers.get("x-goog-upload-command", "")
        offset = request.headers.get("x-goog-upload-offset", "0")
        if "upload" not in command or not offset.isdigit():
            raise GeminiError(400, "X-Goog-Upload-Command and -Offset are needed.")
        file = await run_in_threadpool(
            self._service.upload,
            request.path_params["session"],
            await request.body(),
            int(offset),
            "finalize" in command,
        )
        status = "active" if file is None else "final"
        return JSONResponse(file or {}, headers={"x-goog-upload-status": status})

    async def list_files(self, request: Request) -> Response:
        return await answered(self._service.list_files, dict(request.query_params))

    async def download(self, request: Request) -> Response:
        if request.query_params.get("alt") != "media":
            raise GeminiError(400, "Only alt=media is supported.")
        file = await run_in_threadpool(self._service.content, _name("files", request))
        return FileResponse(file.path, media_type="application/octet-stream")

    async def get_file(self, request: Request) -> Response:
        return await answered(self._service.get_file, _name("files", request))

    async def delete_file(self, request: Request) -> Response:
        return await answered(self._service.delete_file, _name("files", request))

    def create(self, endpoint: str) -> Handler:
        async def create_batch(request: Request) -> Response:
            model = request.path_params["model"]
            body = await json_body(request)
            return await answered(self._service.create_batch, model, endpoint, body)

        return create_batch

    async def list_batches(self, request: Request) -> Response:
        return await answered(self._service.list_batches, dict(request.query_params))

    async def cancel_batch(self, request: Request) -> Response:
        return await answered(self._service.cancel_batch, _name("batches", request))

    async def get_batch(self, request: Request) -> Response:
        return await answered(self._service.get_batch, _name("batches", request))

    async def delete_batch(self, request: Request) -> Response:
        return await answered(self._service.delete_batch, _name("batches", request))


class _VertexCalls:
    """One method a call."""

    def __init__(self, service: VertexService) -> None:
        self._service = service

    async def create_job(self, request: Request) -> Response:
        return await answered(self._service.create_job, _place(request), await json_body(request))

    async def list_jobs(self, request: Request) -> Response:
        return await answered(self._service.list_jobs, dict(request.query_params))

    async def cancel_job(self, request: Request) -> Response:
        return await answered(self._service.cancel_job, _job_name(request))

    async def get_job(self, request: Request) -> Response:
        return await answered(self._service.get_job, _job_name(request))

    async def delete_job(self, request: Request) -> Response:
        return await answered(self._service.delete_job, _job_name(request))


def _name(kind: str, request: Request) -> str:
    return f"{kind}/{request.path_params.get('id', '')}"


def _place(request: Request) -> str:
    given = request.path_params
    return f"projects/{given['project']}/locations/{given['location']}"


def _job_name(request: Request) -> str:
    return f"{_place(request)}/batchPredictionJobs/{request.path_params.get('id', '')}"


async def _developer_target(service: GeminiService, route: str, request: Request) -> Target:
    if route == "batches.create":
        method = request.url.path.rpartition(":")[2]
        return service.creation_target(_ENDPOINTS[method], await json_body(request))
    return service.target(_name("batches", request) if route.startswith("batches.") else "")


async def _vertex_target(service: VertexService, route: str, request: Request) -> Target:
    if route == "batches.create":
        return service.creation_target(await json_body(request))
    return service.target(_job_name(request))


def _check_key(api_key: str | None, request: Request) -> None:
    if "session" in request.path_params:
        return  # the pieces of an upload carry no key; its address is secret enough
    key = request.headers.get("x-goog-api-key", "") or request.query_params.get("key", "")
    if not key.strip():
        raise GeminiError(
            403, "Method doesn't allow unregistered callers. Please use API Key.", name=""
        )
    if api_key is not None and key.strip() != api_key:
        raise GeminiError(
            400, "API key not valid. Please pass a valid API key.", reason="API_KEY_INVALID"
        )


def _check_token(request: Request) -> None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise GeminiError(401, "Request is missing required authentication credential.")


def _rule_body(rule: FaultRule) -> dict[str, Any]:
    code = rule["code"]
    name = code if isinstance(code, str) and code.isupper() else ""
    return error_body(int(rule["status"]), str(rule["message"]), name=name)
