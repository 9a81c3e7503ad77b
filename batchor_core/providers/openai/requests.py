"""Request lines of OpenAI's endpoints."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchor_core.model.items import File, Image, Message, Part, PromptParts
from batchor_core.planning.media import load_media
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.config import checked_params
from batchor_core.providers.encoding import BodyEncoder, LineFrame, encode_json, encode_sorted
from batchor_core.providers.openai.config import OWNED_PARAMS, OpenAIProviderConfig

ENDPOINT_PATHS = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "embeddings": "/v1/embeddings",
}


def line_frame(path: str) -> LineFrame:
    """Return how bodies for an endpoint become lines."""
    return LineFrame(
        prefix=b'{"custom_id":"', middle=f'","method":"POST","url":"{path}","body":'.encode()
    )


class ResponsesEncoder(BodyEncoder):
    """Encodes prompts for ``/v1/responses``.

    Args:
        config: Model and parameters.
        host: Part of the request key.
        system_prompt: The job's own.
        schema: The compiled output model; None for plain text.
    """

    def __init__(
        self,
        config: OpenAIProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> None:
        path = ENDPOINT_PATHS["responses"]
        super().__init__(
            ("openai", host, path),
            frame=line_frame(path),
            system_prompt=system_prompt,
            opening=b',"input":',
            closing=b"}",
        )
        self._config = config
        self._schema = schema

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return model, parameters, instructions and output format."""
        own = checked_params(params, OWNED_PARAMS, "model, max_output_tokens")
        body: dict[str, Any] = {"model": self._config.model, **self._config.params, **own}
        if self._config.max_output_tokens is not None:
            body["max_output_tokens"] = self._config.max_output_tokens
        if system:
            body["instructions"] = system
        head = encode_sorted(body)[:-1]
        if self._schema is not None:
            # As it is: the model fills fields in the schema's order, and reasoning that the user
            # put before a verdict must stay there.
            head += b',"text":' + encode_json({"format": text_format(self._schema)})
        return head

    def tail(self, parts: PromptParts) -> bytes:
        """Return the input items."""
        turns = [*parts.messages, Message(role="user", content=parts.prompt)]
        return b',"input":' + encode_json([_turn(each) for each in turns]) + b"}"

    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body as the user wrote it."""
        return raw_body(body, self._config.model)


def text_format(schema: CompiledSchema) -> dict[str, Any]:
    """Return the ``text.format`` of an output model."""
    return {"type": "json_schema", "name": schema.name, "schema": schema.schema, "strict": True}


def raw_body(body: Mapping[str, Any], model: str) -> bytes:
    """Return a body as the user wrote it, with the model where it names none.

    Raises:
        ValueError: It asks for another model, or for a stream.
    """
    if body.get("model", model) != model:
        raise ValueError(f"the body names the model {body['model']!r}: a batch has one, {model!r}")
    if body.get("stream"):
        raise ValueError("the body asks for a stream, which a batch cannot give")
    return encode_json({"model": model, **checked_params(body, frozenset(), "")})


def _turn(message: Message) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": message.role, "content": message.content}
    return {"role": message.role, "content": _content(message.content, message.role)}


def _content(parts: Sequence[Part], role: str) -> list[dict[str, Any]]:
    text_type = "input_text" if role == "user" else "output_text"
    return [
        {"type": text_type, "text": part} if isinstance(part, str) else _media(part)
        for part in parts
    ]


def _media(part: Image | File) -> dict[str, Any]:
    loaded = load_media(part)
    if isinstance(part, Image):
        detail = {"detail": part.detail} if part.detail else {}
        return {"type": "input_image", "image_url": loaded.data_url, **detail}
    if loaded.url is not None:
        return {"type": "input_file", "file_url": loaded.url}
    return {
        "type": "input_file",
        "filename": part.name or "document.pdf",
        "file_data": loaded.data_url,
    }
