"""Request lines of Anthropic's Messages."""

import base64
from collections.abc import Sequence
from typing import Any

from batchor_core.model.items import File, Image, Message, Part, PromptParts
from batchor_core.planning.media import LoadedMedia, load_media
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.anthropic.config import (
    OWNED_PARAMS,
    AnthropicProviderConfig,
    check_sampling,
)
from batchor_core.providers.config import checked_params
from batchor_core.providers.encoding import BodyEncoder, LineFrame, encode_json, encode_sorted

MESSAGES_PATH = "/v1/messages"
LINE_FRAME = LineFrame(prefix=b'{"custom_id":"', middle=b'","params":')

_IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_PDF = "application/pdf"


class MessagesEncoder(BodyEncoder):
    """Encodes prompts as the ``params`` of one request of a batch.

    Args:
        config: Model and parameters.
        host: Part of the request key.
        system_prompt: The job's own.
        schema: The compiled output model; None for plain text.
    """

    def __init__(
        self,
        config: AnthropicProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> None:
        super().__init__(
            ("anthropic", host, MESSAGES_PATH),
            frame=LINE_FRAME,
            system_prompt=system_prompt,
            opening=b',"messages":[{"role":"user","content":',
            closing=b"}]}",
        )
        self._config = config
        self._schema = schema
        ttl = config.prompt_cache
        self._cache = {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {}

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return model, parameters, instructions and output format."""
        own = checked_params(params, OWNED_PARAMS, "model, max_tokens, effort")
        body = {**self._config.message_params, **own}
        check_sampling(body, self._config.api_version)
        body |= {"model": self._config.model, "max_tokens": self._config.max_tokens}
        if system:
            body["system"] = [_text(system) | self._cache] if self._cache else system
        return encode_sorted(body)[:-1] + self._output_config()

    def tail(self, parts: PromptParts) -> bytes:
        """Return the messages, the last example marked as the end of what is cached."""
        turns = [_turn(message) for message in parts.messages]
        if turns and self._cache:
            turns[-1] = _marked(turns[-1], self._cache)
        turns.append(_turn(Message(role="user", content=parts.prompt)))
        return b',"messages":' + encode_json(turns) + b"}"

    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body as the user wrote it, with the model where it names none."""
        model = self._config.model
        if body.get("model", model) != model:
            raise ValueError(f"the body names the model {body['model']!r}, the job {model!r}")
        if body.get("stream"):
            raise ValueError("the body asks for a stream, which a batch cannot give")
        if "max_tokens" not in body:
            raise ValueError("the body has no max_tokens, which Anthropic wants")
        check_sampling(body, self._config.api_version)
        return encode_json({"model": model, **checked_params(body, frozenset(), "")})

    def _output_config(self) -> bytes:
        config: dict[str, Any] = {"effort": self._config.effort} if self._config.effort else {}
        if self._schema is not None:
            # As it is: the model fills fields in the schema's order, and reasoning that the user
            # put before a verdict must stay there.
            config["format"] = {"type": "json_schema", "schema": self._schema.schema}
        return b',"output_config":' + encode_json(config) if config else b""


def _turn(message: Message) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    return {"role": message.role, "content": _blocks(message.content, message.role)}


def _blocks(parts: Sequence[Part], role: str) -> list[dict[str, Any]]:
    if role != "user" and not all(isinstance(part, str) for part in parts):
        raise ValueError("only what the user says may hold pictures and documents")
    return [_text(part) if isinstance(part, str) else _media(part) for part in parts]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _marked(turn: dict[str, Any], cache: dict[str, Any]) -> dict[str, Any]:
    content = turn["content"]
    blocks = [_text(content)] if isinstance(content, str) else content
    if not blocks or blocks[-1].get("text") == "":  # an empty text cannot be cached
        return turn
    return {**turn, "content": [*blocks[:-1], blocks[-1] | cache]}


def _media(part: Image | File) -> dict[str, Any]:
    loaded = load_media(part)
    if isinstance(part, Image):
        return {"type": "image", "source": _source(loaded, allowed=_IMAGE_TYPES)}
    title = {"title": part.name} if part.name else {}
    if (loaded.media_type or "").startswith("text/"):
        return {"type": "document", "source": _text_source(part, loaded), **title}
    return {"type": "document", "source": _source(loaded, allowed=frozenset({_PDF})), **title}


def _source(loaded: LoadedMedia, *, allowed: frozenset[str]) -> dict[str, Any]:
    if loaded.url is not None:
        return {"type": "url", "url": loaded.url}
    if loaded.media_type not in allowed:
        raise ValueError(
            f"Anthropic reads no {loaded.media_type} here, but {', '.join(sorted(allowed))}"
        )
    return {"type": "base64", "media_type": loaded.media_type, "data": loaded.base64}


def _text_source(part: File, loaded: LoadedMedia) -> dict[str, Any]:
    if loaded.base64 is None:
        raise ValueError(f"Anthropic fetches PDF documents only, not {part.url!r}: give its bytes")
    try:
        text = base64.b64decode(loaded.base64).decode()
    except UnicodeDecodeError as exc:
        raise ValueError(f"the text file {part.name or ''!r} is not in UTF-8: {exc}") from exc
    return {"type": "text", "media_type": "text/plain", "data": text}
