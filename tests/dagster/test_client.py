"""SDK clients in assets and ops: the real SDKs, over HTTP, against canned answers."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest
import uvicorn
from anthropic import Anthropic
from google import genai
from google.auth.credentials import Credentials
from openai import OpenAI, RateLimitError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from batchor_dagster import AnthropicBatchResource, GeminiBatchResource, OpenAIBatchResource

pytestmark = pytest.mark.filterwarnings(
    "ignore:Parameter `backfill_policy` of function `asset`:dagster.BetaWarning"
)

KEY = "sk-test-of-calls-7f2c"
ASK: Any = [{"role": "user", "content": "Hello"}]


class Provider:
    """Answers as the three providers do, and remembers the requests."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.refusals = 0

    async def answer(self, request: Request) -> Response:
        """Answer any endpoint."""
        body = await request.json()
        path = request.url.path
        self.requests.append((path, dict(request.headers), body))
        if self.refusals:
            self.refusals -= 1
            refused = {"error": {"message": "slow down", "code": "rate_limit"}}
            return JSONResponse(refused, 429, {"retry-after-ms": "1"})
        if body.get("stream"):
            return Response(self._stream(body["model"]), media_type="text/event-stream")
        for pattern, make in _ANSWERS.items():
            if re.search(pattern, path):
                return JSONResponse(make(body))
        return JSONResponse({"error": {"message": f"no {path}"}}, 404)

    def _stream(self, model: str) -> str:
        chunk = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": model,
            "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}],
        }
        return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": '{"label": "good"}'}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
    }


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": "Hi", "annotations": []}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": body["model"],
        "output": [{**message, "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 9,
        },
    }


def _embeddings(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "object": "list",
        "model": body["model"],
        "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }


def _messages(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 30,
            "output_tokens": 6,
        },
    }


def _generate(body: dict[str, Any]) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}}],
        "modelVersion": "gemini-2.5-flash",
        "usageMetadata": {
            "promptTokenCount": 8,
            "candidatesTokenCount": 3,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 13,
        },
    }


def _embed_content(body: dict[str, Any]) -> dict[str, Any]:
    return {"embeddings": [{"values": [0.6, 0.8]}]}


_ANSWERS = {
    r"/v1/chat/completions$": _chat,
    r"/v1/responses$": _responses,
    r"/v1/embeddings$": _embeddings,
    r"/v1/messages$": _messages,
    r":generateContent$": _generate,
    r":batchEmbedContents$": _embed_content,
}


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider on a free local port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider = Provider(f"http://127.0.0.1:{listener.getsockname()[1]}")
        app = Starlette(routes=[Route("/{path:path}", provider.answer, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield provider
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def resources(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The three accounts, their key in the environment."""
    monkeypatch.setenv("KEY_OF_CALLS", KEY)
    key = dg.EnvVar("KEY_OF_CALLS")
    return {
        "openai": OpenAIBatchResource(
            api_key=key, base_url=f"{provider.base_url}/v1", organization="org-1", project="proj-1"
        ),
        "anthropic": AnthropicBatchResource(
            api_key=key, base_url=provider.base_url, api_version="2023-06-01"
        ),
        "gemini": GeminiBatchResource(api_key=key, base_url=provider.base_url, backend="developer"),
    }


def materialized(
    result: dg.ExecuteInProcessResult, key: str, partition: str | None = None
) -> dict[str, Any]:
    """The metadata of an asset's materialization."""
    (found,) = [
        event.materialization
        for event in result.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey(key) and event.partition == partition
    ]
    return {name: value.value for name, value in found.metadata.items()}


def test_openai_calls_of_every_endpoint_are_summed(
    provider: Provider, resources: dict[str, Any]
) -> None:
    """Who replaces dagster-openai would find its plots empty, or counts of the last call only."""

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            assert isinstance(client, OpenAI)
            for _ in range(2):
                client.chat.completions.create(model="gpt-4.1-mini", messages=ASK)
            client.responses.create(model="gpt-4.1-mini", input="Hello")
        with openai.get_client(context) as client:
            client.embeddings.create(model="text-embedding-3-small", input="Hello")
            client.chat.completions.with_raw_response.create(model="gpt-4.1-mini", messages=ASK)
        assert client.is_closed()

    result = dg.materialize([answers], resources=resources)
    assert materialized(result, "answers") == {
        "openai.gpt-4.1-mini.calls": 4,
        "openai.gpt-4.1-mini.prompt_tokens": 3 * 11 + 7,
        "openai.gpt-4.1-mini.completion_tokens": 3 * 5 + 2,
        "openai.gpt-4.1-mini.total_tokens": 3 * 16 + 9,
        "openai.text-embedding-3-small.calls": 1,
        "openai.text-embedding-3-small.prompt_tokens": 4,
        "openai.text-embedding-3-small.completion_tokens": 0,
        "openai.text-embedding-3-small.total_tokens": 4,
    }
    _, headers, _ = provider.requests[0]
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["openai-organization"] == "org-1"
    assert headers["openai-project"] == "proj-1"


def test_azure_calls_go_to_the_deployment(provider: Provider) -> None:
    """An account on Azure would answer batches, and every single call would end in a 404."""
    azure = OpenAIBatchResource(api_key=KEY, base_url=provider.base_url, api_version="2025-04-01")

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client, pytest.raises(Exception, match="404"):
            client.chat.completions.create(model="my-deployment", messages=ASK)

    dg.materialize([answers], resources={"openai": azure})
    ((path, headers, _),) = provider.requests
    assert path == "/openai/deployments/my-deployment/chat/completions"
    assert headers["api-key"] == KEY


def test_anthropic_and_gemini_calls_are_counted(
    provider: Provider, resources: dict[str, Any]
) -> None:
    """Cached input, which Anthropic counts apart, and Gemini's thoughts would be left out."""

    @dg.asset
    def answers(
        context: dg.AssetExecutionContext,
        anthropic: AnthropicBatchResource,
        gemini: GeminiBatchResource,
    ) -> None:
        with anthropic.get_client(context) as client, gemini.get_client(context) as google:
            assert isinstance(client, Anthropic)
            client.messages.create(model="claude-of-tests", max_tokens=10, messages=ASK)
            assert isinstance(google, genai.Client)
            google.models.generate_content(model="gemini-2.5-flash", contents="Hello")
            google.models.embed_content(model="gemini-embedding-001", contents="Hello")

    result = dg.materialize([answers], resources=resources)
    assert materialized(result, "answers") == {
        "anthropic.claude-of-tests.calls": 1,
        "anthropic.claude-of-tests.prompt_tokens": 60,
        "anthropic.claude-of-tests.completion_tokens": 6,
        "anthropic.claude-of-tests.total_tokens": 66,
        "gemini.gemini-2.5-flash.calls": 1,
        "gemini.gemini-2.5-flash.prompt_tokens": 8,
        "gemini.gemini-2.5-flash.completion_tokens": 5,
        "gemini.gemini-2.5-flash.total_tokens": 13,
        "gemini.gemini-embedding-001.calls": 1,
        "gemini.gemini-embedding-001.prompt_tokens": 0,
        "gemini.gemini-embedding-001.completion_tokens": 0,
        "gemini.gemini-embedding-001.total_tokens": 0,
    }
    for _, headers, _ in provider.requests:
        assert KEY in (headers.get("x-goog-api-key") or headers["authorization"])
    assert provider.requests[0][1]["anthropic-version"] == "2023-06-01"


class Token(Credentials):  # type: ignore[misc]  # google-auth has no types
    """Google's credentials, already refreshed."""

    def __init__(self) -> None:
        super().__init__()
        self.token = KEY

    def refresh(self, request: object) -> None:
        """Stay as they are."""


def test_vertex_calls_go_to_the_project(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single calls would go to the Developer API, and to another bill."""
    monkeypatch.setattr("google.auth.default", lambda **_: (Token(), "another-project"))
    account = GeminiBatchResource(
        backend="vertex", cloud_project="my-project", location="eu", base_url=provider.base_url
    )

    @dg.asset
    def answers(context: dg.AssetExecutionContext, gemini: GeminiBatchResource) -> None:
        with gemini.get_client(context) as client:
            client.models.generate_content(model="gemini-2.5-flash", contents="Hello")

    result = dg.materialize([answers], resources={"gemini": account})
    ((path, headers, _),) = provider.requests
    assert "/projects/my-project/locations/eu/" in path
    assert headers["authorization"] == f"Bearer {KEY}"
    assert materialized(result, "answers")["gemini.gemini-2.5-flash.calls"] == 1


def test_streams_pass_through_uncounted(resources: dict[str, Any]) -> None:
    """Counting would read a stream to its end before the first word of it is seen."""
    words = []

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            stream = client.chat.completions.create(model="gpt-4.1-mini", messages=ASK, stream=True)
            words.extend(chunk.choices[0].delta.content for chunk in stream)

    result = dg.materialize([answers], resources=resources)
    assert words == ["Hi"]
    assert materialized(result, "answers") == {}


def test_refused_calls_are_retried_and_counted_once(
    provider: Provider, resources: dict[str, Any]
) -> None:
    """Batches are created without the SDK's retries; a single call has to have them."""
    provider.refusals = 1

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            client.chat.completions.create(model="gpt-4.1-mini", messages=ASK)

    result = dg.materialize([answers], resources=resources)
    assert len(provider.requests) == 2
    assert materialized(result, "answers")["openai.gpt-4.1-mini.calls"] == 1


def test_calls_from_threads_are_all_counted(resources: dict[str, Any]) -> None:
    """Metadata is read, added to and written back: two threads would lose a count."""

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client, ThreadPoolExecutor(8) as pool:
            for _ in range(40):
                pool.submit(client.responses.create, model="gpt-4.1-mini", input="Hello")

    result = dg.materialize([answers], resources=resources)
    assert materialized(result, "answers")["openai.gpt-4.1-mini.calls"] == 40


def test_several_assets_of_one_step_have_their_own_usage(resources: dict[str, Any]) -> None:
    """The usage of one asset would be shown at another, or at all of them."""

    @dg.multi_asset(specs=[dg.AssetSpec("first"), dg.AssetSpec("second")])
    def both(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> Iterator[Any]:
        with openai.get_client_for_asset(context, dg.AssetKey("second")) as client:
            client.responses.create(model="gpt-4.1-mini", input="Hello")
        yield dg.MaterializeResult(asset_key="first", metadata={"rows": 1})
        yield dg.MaterializeResult(asset_key="second", metadata={"rows": 2})

    result = dg.materialize([both], resources=resources)
    assert materialized(result, "first") == {"rows": 1}
    second = materialized(result, "second")
    assert (second["rows"], second["openai.gpt-4.1-mini.calls"]) == (2, 1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [(None, "makes 2 assets: say with get_client_for_asset"), ("third", "'third' is not made by")],
)
def test_whose_usage_it_is_has_to_be_clear(
    resources: dict[str, Any], asked: str | None, message: str
) -> None:
    """Usage would silently go nowhere."""

    @dg.multi_asset(specs=[dg.AssetSpec("first"), dg.AssetSpec("second")])
    def both(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> Iterator[Any]:
        given = (
            openai.get_client(context)
            if asked is None
            else openai.get_client_for_asset(context, dg.AssetKey(asked))
        )
        with given:
            yield dg.MaterializeResult(asset_key="first")

    with pytest.raises(Exception, match=message):
        dg.materialize([both], resources=resources)


def test_a_partition_shows_its_own_usage(resources: dict[str, Any]) -> None:
    """The sum over all partitions would be shown at each."""

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            client.responses.create(model="gpt-4.1-mini", input=context.partition_key)

    for partition in ("a", "b"):
        result = dg.materialize([answers], resources=resources, partition_key=partition)
        assert materialized(result, "answers", partition)["openai.gpt-4.1-mini.calls"] == 1


def test_a_range_shows_its_sum_at_each_partition(resources: dict[str, Any]) -> None:
    """The page says so; a plot over partitions would be wrong if nobody knew."""

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["a", "b"]),
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            for key in context.partition_keys:
                client.responses.create(model="gpt-4.1-mini", input=key)

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    result = dg.materialize([answers], resources=resources, tags=tags)
    for partition in ("a", "b"):
        assert materialized(result, "answers", partition)["openai.gpt-4.1-mini.calls"] == 2


def test_ops_show_usage_at_their_output(resources: dict[str, Any]) -> None:
    """An op's calls would be seen nowhere."""

    @dg.op
    def ask(context: dg.OpExecutionContext, openai: OpenAIBatchResource) -> str:
        with openai.get_client(context) as client:
            return client.responses.create(model="gpt-4.1-mini", input="Hello").output_text

    @dg.op(out={"x": dg.Out(str), "y": dg.Out(str)})
    def ask_twice(context: dg.OpExecutionContext, openai: OpenAIBatchResource) -> tuple[str, str]:
        with openai.get_client(context) as client:
            answer = client.responses.create(model="gpt-4.1-mini", input="Hello").output_text
        return answer, answer

    @dg.job(resource_defs={"openai": resources["openai"]})
    def asking() -> None:
        ask()
        ask_twice()

    result = asking.execute_in_process()
    metadata = {
        (event.step_key, event.step_output_data.output_name): event.step_output_data.metadata
        for event in result.all_events
        if event.is_successful_output
    }
    assert metadata["ask", "result"]["openai.gpt-4.1-mini.total_tokens"].value == 9
    assert not metadata["ask_twice", "x"]


def test_a_graph_backed_asset_counts_at_its_op(resources: dict[str, Any]) -> None:
    """An op inside a graph asset has an asset that is not its own output's."""

    @dg.op
    def ask(context: dg.OpExecutionContext, openai: OpenAIBatchResource) -> str:
        with openai.get_client(context) as client:
            return client.responses.create(model="gpt-4.1-mini", input="Hello").output_text

    @dg.op
    def shout(answer: str) -> str:
        return answer.upper()

    @dg.graph_asset
    def answers() -> Any:
        return shout(ask())

    result = dg.materialize([answers], resources=resources)
    assert result.output_for_node("answers.ask") == "Hi"
    (ask_output,) = [
        event.step_output_data
        for event in result.all_events
        if event.is_successful_output and event.step_key == "answers.ask"
    ]
    assert ask_output.metadata["openai.gpt-4.1-mini.calls"].value == 1


def test_asset_checks_get_a_client(resources: dict[str, Any]) -> None:
    """A check that asks a model would fail for want of an output to describe."""

    @dg.asset
    def answers() -> None: ...

    @dg.asset_check(asset=answers)
    def judged(
        context: dg.AssetCheckExecutionContext, openai: OpenAIBatchResource
    ) -> dg.AssetCheckResult:
        with openai.get_client(context) as client:
            answer = client.responses.create(model="gpt-4.1-mini", input="Hello").output_text
        return dg.AssetCheckResult(passed=answer == "Hi")

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([answers, judged], resources=resources, instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
    assert any("openai.gpt-4.1-mini.calls: 1" in message for message in logged)


def test_errors_are_the_sdks_own_and_close_the_client(
    provider: Provider, resources: dict[str, Any]
) -> None:
    """Who handles the SDK's errors would have to learn others; and connections would pile up."""
    provider.refusals = 10
    clients = []

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> None:
        with openai.get_client(context) as client:
            clients.append(client)
            client.with_options(max_retries=0).responses.create(model="gpt-4.1", input="Hello")

    with pytest.raises(RateLimitError):
        dg.materialize([answers], resources=resources)
    assert clients[0].is_closed()


def test_functions_can_be_called_in_unit_tests(resources: dict[str, Any]) -> None:
    """A user's unit test calls the asset's function with ``build_asset_context``."""

    @dg.asset
    def answers(context: dg.AssetExecutionContext, openai: OpenAIBatchResource) -> str:
        with openai.get_client(context) as client:
            return client.responses.create(model="gpt-4.1-mini", input="Hello").output_text

    account = resources["openai"].model_copy(update={"api_key": KEY})
    assert answers(dg.build_asset_context(), openai=account) == "Hi"
