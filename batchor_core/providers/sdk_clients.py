"""The providers' own SDK clients over our configurations, for calls that are no batches.

They behave as the SDK's users know them: retries and time-outs are the SDK's defaults, errors are
the SDK's own. What an answer says that it used is read off the wire, so that every way of the SDK
to make a call is counted alike.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchor_core.providers.anthropic.config import AnthropicProviderConfig
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.loose_json import decode_json
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.registry import ProviderConfig
from batchor_core.providers.wire import text_of, tokens_in

if TYPE_CHECKING:
    from anthropic import Anthropic
    from google.genai import Client
    from httpx2 import Response
    from openai import OpenAI

_COUNTED_PATHS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/messages",
    "/responses",
    ":batchEmbedContents",
    ":embedContent",
    ":generateContent",
)


@dataclass(frozen=True, kw_only=True)
class CallUsage:
    """What one call has used, as its answer says.

    Attributes:
        model: As the answer names it; of Gemini's embeddings as the request does.
        prompt_tokens: Input, cached input included.
        completion_tokens: Output, reasoning included.
    """

    model: str
    prompt_tokens: int
    completion_tokens: int


@contextmanager
def open_sdk_client(
    config: ProviderConfig, told: Callable[[CallUsage], None]
) -> "Iterator[OpenAI | Anthropic | Client]":
    """Yield the SDK's client of an account, closed after the block.

    Args:
        config: The account; its model and parameters play no part.
        told: Called after each answer of a known endpoint, in the calling thread. Not for streamed
            ones, and not by the SDK's asynchronous half.

    Raises:
        MissingCredentialsError: There is no key.
    """

    def hook(response: "Response") -> None:
        usage = _usage_of(response)
        if usage is not None:
            told(usage)

    client = _client_of(config, {"response": [hook]})
    try:
        yield client
    finally:
        client.close()


def _client_of(
    config: ProviderConfig, hooks: Mapping[str, list[Callable[..., Any]]]
) -> "OpenAI | Anthropic | Client":
    match config:
        case OpenAIProviderConfig():
            return _openai_client(config, hooks)
        case AnthropicProviderConfig():
            return _anthropic_client(config, hooks)
        case GeminiProviderConfig():
            return _gemini_client(config, hooks)


def _openai_client(config: OpenAIProviderConfig, hooks: Mapping[str, Any]) -> "OpenAI":
    import openai  # noqa: PLC0415 - only who uses it pays for it

    from batchor_core.providers.openai.client import open_client  # noqa: PLC0415 - imports the SDK

    client = open_client(config, openai.DefaultHttpxClient(event_hooks=dict(hooks)))
    return client.with_options(
        max_retries=openai.DEFAULT_MAX_RETRIES, timeout=openai.DEFAULT_TIMEOUT
    )


def _anthropic_client(config: AnthropicProviderConfig, hooks: Mapping[str, Any]) -> "Anthropic":
    import anthropic  # noqa: PLC0415 - only who uses it pays for it

    from batchor_core.providers.anthropic.client import open_client  # noqa: PLC0415 - as above

    client = open_client(config, anthropic.DefaultHttpxClient(event_hooks=dict(hooks)))
    return client.with_options(
        max_retries=anthropic.DEFAULT_MAX_RETRIES, timeout=anthropic.DEFAULT_TIMEOUT
    )


def _gemini_client(config: GeminiProviderConfig, hooks: Mapping[str, Any]) -> "Client":
    from google import genai  # noqa: PLC0415 - only who uses it pays for it
    from google.genai.types import HttpOptions  # noqa: PLC0415 - as above

    from batchor_core.providers.gemini.developer import key_of  # noqa: PLC0415 - as above

    options: dict[str, Any] = {"vertexai": False, "api_key": None}
    if config.is_vertex:  # project, location and credentials are the SDK's to find where not given
        options = {"vertexai": True, "project": config.project, "location": config.location}
    else:
        options["api_key"] = key_of(config)
    return genai.Client(
        **options,
        http_options=HttpOptions(
            base_url=config.base_url,
            api_version=config.api_version,
            client_args={"event_hooks": dict(hooks)},
        ),
    )


def _usage_of(response: "Response") -> CallUsage | None:
    """Return what an answer has used; None for a refusal, a stream, or another endpoint."""
    path = response.request.url.path
    is_json = response.headers.get("content-type", "").startswith("application/json")
    if response.status_code != 200 or not is_json or not path.endswith(_COUNTED_PATHS):
        return None
    body = decode_json(response.read())
    if not isinstance(body, dict):
        return None
    usage = body.get("usage") or body.get("usageMetadata")
    read = _gemini_tokens if ":" in path.rpartition("/")[2] else _tokens
    prompt, completion = read(usage if isinstance(usage, dict) else {})
    model = text_of(body.get("model")) or text_of(body.get("modelVersion")) or _model_in(path)
    return CallUsage(model=model, prompt_tokens=prompt, completion_tokens=completion)


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Return (prompt, completion) tokens as OpenAI's endpoints and Anthropic's count them."""
    # Anthropic's input tokens leave out what is read from a cache or written to it.
    caches = ("cache_creation_input_tokens", "cache_read_input_tokens")
    prompt = _sum(usage, "prompt_tokens") or _sum(usage, "input_tokens", *caches)
    return prompt, _sum(usage, "completion_tokens") or _sum(usage, "output_tokens")


def _gemini_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    return (
        _sum(usage, "promptTokenCount", "toolUsePromptTokenCount"),
        _sum(usage, "candidatesTokenCount", "thoughtsTokenCount"),
    )


def _sum(usage: Mapping[str, Any], *names: str) -> int:
    return sum(tokens_in(usage.get(name)) for name in names)


def _model_in(path: str) -> str:
    """Return the model of a Gemini path, ``…/models/<model>:<method>``."""
    return path.rpartition("/")[2].partition(":")[0]
