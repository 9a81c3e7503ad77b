"""Request lines of Gemini, in the REST API's spelling, not the SDK's (facts on providers, 1.3)."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchor_core.errors import ConfigurationError
from batchor_core.model.items import File, Image, Message, Part, PromptParts
from batchor_core.planning.media import load_media
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.config import checked_params
from batchor_core.providers.encoding import BodyEncoder, LineFrame, encode_json, encode_sorted
from batchor_core.providers.gemini.config import OWNED_PARAMS, GeminiProviderConfig
from batchor_core.providers.gemini.wire import camel
from batchor_core.providers.protocol import RequestEncoder

DEVELOPER_LINES = LineFrame(prefix=b'{"key":"', middle=b'","request":')
VERTEX_LINES = LineFrame(
    # Vertex AI keeps no key; what comes back is the request, with its labels.
    prefix=b'{"request":{"labels":{"custom_id":"',
    middle=b'"},',
    skipped=1,
)
_OWNED_EMBEDDING_PARAMS = frozenset({"content", "model", "outputDimensionality", "taskType"})
_ROLES = {"user": "user", "assistant": "model"}


def request_encoder(
    config: GeminiProviderConfig,
    *,
    host: str,
    system_prompt: str | None,
    schema: CompiledSchema | None,
) -> RequestEncoder:
    """Return the encoder of a configuration.

    Raises:
        ConfigurationError: The endpoint cannot do that.
    """
    if config.endpoint == "generate":
        return GenerateEncoder(config, host=host, system_prompt=system_prompt, schema=schema)
    if config.is_vertex:
        raise ConfigurationError(
            "Gemini's embeddings in batch mode are there on the Developer API only: "
            "backend='developer'"
        )
    if schema is not None:
        raise ConfigurationError("embeddings are vectors: they cannot have an output model")
    if system_prompt is not None:
        raise ConfigurationError("embeddings take no system prompt")
    return EmbedEncoder(config, host=host)


class GenerateEncoder(BodyEncoder):
    """Encodes prompts for ``generateContent``.

    Args:
        config: Model and parameters.
        host: Part of the request key.
        system_prompt: The job's own.
        schema: The compiled output model; None for plain text.
    """

    def __init__(
        self,
        config: GeminiProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> None:
        super().__init__(
            ("gemini", host, f"{config.model}:generateContent"),  # a body does not name its model
            frame=VERTEX_LINES if config.is_vertex else DEVELOPER_LINES,
            system_prompt=system_prompt,
            opening=b'"contents":[{"role":"user","parts":[{"text":',
            closing=b"}]}]}",
        )
        self._config = config
        self._schema = schema

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return parameters, instructions and output format, up to the comma before the prompt."""
        body: dict[str, Any] = dict(self._config.request_params)
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        own = checked_params(_camel_keys(params), OWNED_PARAMS, "max_output_tokens, output model")
        generation = {**_camel_keys(self._config.generation_config), **own}
        if self._config.max_output_tokens is not None:
            generation["maxOutputTokens"] = self._config.max_output_tokens
        head = encode_sorted(body)[1:-1]
        config = self._generation_config(generation)
        return b"{" + b"".join(piece + b"," for piece in (config, head) if piece)

    def tail(self, parts: PromptParts) -> bytes:
        """Return the turns of the conversation."""
        turns = [*parts.messages, Message(role="user", content=parts.prompt)]
        return b'"contents":' + encode_json([_turn(each) for each in turns]) + b"}"

    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body as the user wrote it."""
        return raw_body(body, self._config.model)

    def _generation_config(self, generation: dict[str, Any]) -> bytes:
        if self._schema is None:
            return b'"generationConfig":' + encode_sorted(generation) if generation else b""
        generation["responseMimeType"] = "application/json"
        # The schema as it is: the model fills fields in its order, and reasoning that the user
        # put before a verdict must stay there.
        schema = encode_json(self._schema.schema)
        name = self._config.schema_dialect.encode()
        own = encode_sorted(generation)[:-1]
        return b'"generationConfig":' + own + b',"' + name + b'":' + schema + b"}"


class EmbedEncoder(BodyEncoder):
    """Encodes texts for ``embedContent``, each in a request of its own.

    Args:
        config: Model and parameters.
        host: Part of the request key.
    """

    def __init__(self, config: GeminiProviderConfig, *, host: str) -> None:
        super().__init__(
            ("gemini", host, f"{config.model}:embedContent"),
            frame=DEVELOPER_LINES,
            system_prompt=None,
            opening=b'"content":{"parts":[{"text":',
            closing=b"}]}}",
        )
        self._config = config

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return the parameters, up to the comma before the text."""
        if system:
            raise ValueError("embeddings take no system prompt")
        own = checked_params(_camel_keys(params), _OWNED_EMBEDDING_PARAMS, "dimensions, task_type")
        body: dict[str, Any] = {**self._config.request_params, **own}
        if self._config.dimensions is not None:
            body["outputDimensionality"] = self._config.dimensions
        if self._config.task_type is not None:
            body["taskType"] = self._config.task_type
        return encode_sorted(body)[:-1] + (b"," if body else b"")

    def tail(self, parts: PromptParts) -> bytes:
        """Return the text."""
        if not isinstance(parts.prompt, str) or parts.messages:
            raise ValueError("embeddings take one text, without media and earlier turns")
        return b'"content":' + encode_json({"parts": [{"text": parts.prompt}]}) + b"}"

    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body as the user wrote it."""
        return raw_body(body, self._config.model)


def raw_body(body: Mapping[str, Any], model: str) -> bytes:
    """Return a body as the user wrote it, in either spelling, but for the model's name.

    Raises:
        ValueError: It is empty, asks for another model, or has labels, which carry our ids.
    """
    named = str(body.get("model", model)).removeprefix("models/")
    if named != model:
        raise ValueError(f"the body names the model {named!r}: a batch has one, {model!r}")
    if "labels" in body:
        raise ValueError("the body has labels, which batches keep their own ids in")
    rest = checked_params(
        {name: value for name, value in body.items() if name != "model"}, frozenset(), ""
    )
    if not rest:
        raise ValueError("the body is empty")
    return encode_json(rest)


def _camel_keys(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters in REST spelling, so that no field is named twice, in both spellings."""
    return {camel(name): value for name, value in params.items()}


def _turn(message: Message) -> dict[str, Any]:
    content = [message.content] if isinstance(message.content, str) else message.content
    return {"role": _ROLES[message.role], "parts": _parts(content)}


def _parts(content: Sequence[Part]) -> list[dict[str, Any]]:
    return [{"text": part} if isinstance(part, str) else _media(part) for part in content]


def _media(part: Image | File) -> dict[str, Any]:
    loaded = load_media(part)
    media_type = {"mimeType": loaded.media_type} if loaded.media_type else {}
    if loaded.url is not None:
        return {"fileData": {**media_type, "fileUri": loaded.url}}
    return {"inlineData": {**media_type, "data": loaded.base64}}
