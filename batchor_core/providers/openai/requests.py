"""Request lines of the Responses endpoint, and what those of chat have in common with them."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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


def endpoint_path(endpoint: str, config: OpenAIProviderConfig) -> str:
    """Return an endpoint as lines and batches name it; Azure's ``api-version`` has no ``/v1``."""
    path = ENDPOINT_PATHS[endpoint]
    return path.removeprefix("/v1") if config.api_version else path


def line_frame(path: str) -> LineFrame:
    """Return how bodies for an endpoint become lines."""
    return LineFrame(
        prefix=b'{"custom_id":"', middle=f'","method":"POST","url":"{path}","body":'.encode()
    )


class TextEncoder(BodyEncoder):
    """Encodes prompts for an endpoint that answers in words.

    Args:
        config: Model and parameters.
        host: Part of the request key.
        system_prompt: The job's own.
        schema: The compiled output model; None for plain text.

    Attributes:
        endpoint: Which endpoint it is.
        opening: What stands in a body between its head and one plain text.
        closing: What stands behind that text.
        token_bound_name: What the endpoint calls the upper bound of an answer.
    """

    endpoint: ClassVar[str]
    opening: ClassVar[bytes]
    closing: ClassVar[bytes]
    token_bound_name: ClassVar[str]

    def __init__(
        self,
        config: OpenAIProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> None:
        path = endpoint_path(self.endpoint, config)
        super().__init__(
            ("openai", host, path),
            frame=line_frame(path),
            system_prompt=system_prompt,
            opening=self.opening,
            closing=self.closing,
        )
        self._config = config
        self._schema = schema

    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body as the user wrote it, with the model where it names none."""
        model = self._config.model
        if body.get("model", model) != model:
            named = body["model"]
            raise ValueError(f"the body names the model {named!r}: a batch has one, {model!r}")
        if body.get("stream"):
            raise ValueError("the body asks for a stream, which a batch cannot give")
        return encode_json({"model": model, **checked_params(body, frozenset(), "")})

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return model and parameters, an item's own ones over the config's."""
        own = checked_params(params, OWNED_PARAMS, "model, max_output_tokens")
        settings: dict[str, Any] = {"model": self._config.model, **self._config.params, **own}
        if self._config.max_output_tokens is not None:
            settings[self.token_bound_name] = self._config.max_output_tokens
        return settings

    def turns(self, parts: PromptParts) -> list[dict[str, Any]]:
        """Return the conversation, the item's own question last."""
        messages = [*parts.messages, Message(role="user", content=parts.prompt)]
        return [
            {"role": message.role, "content": self._content(message.content, message.role)}
            for message in messages
        ]

    @abstractmethod
    def text_part(self, text: str, role: str) -> dict[str, Any]:
        """Return a text among other parts."""

    @abstractmethod
    def media_part(self, part: Image | File) -> dict[str, Any]:
        """Return a picture or document.

        Raises:
            ValueError: It cannot be read, or this endpoint does not take it.
        """

    def _content(self, content: str | Sequence[Part], role: str) -> str | list[dict[str, Any]]:
        if isinstance(content, str):
            return content
        if role != "user" and any(not isinstance(part, str) for part in content):
            raise ValueError("only what the user says may hold pictures and documents")
        return [
            self.text_part(part, role) if isinstance(part, str) else self.media_part(part)
            for part in content
        ]


class ResponsesEncoder(TextEncoder):
    """Encodes prompts for ``/v1/responses``."""

    endpoint = "responses"
    opening = b',"input":'
    closing = b"}"
    token_bound_name = "max_output_tokens"  # noqa: S105 - no secret

    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return model, parameters, instructions and output format."""
        settings = self.settings(params)
        if system:
            settings["instructions"] = system
        head = encode_sorted(settings)[:-1]
        if self._schema is not None:
            # As it is: the model fills fields in the schema's order, and reasoning that the user
            # put before a verdict must stay there.
            spec = {"type": "json_schema", **schema_spec(self._schema)}
            head += b',"text":' + encode_json({"format": spec})
        return head

    def tail(self, parts: PromptParts) -> bytes:
        """Return the input items."""
        return self.opening + encode_json(self.turns(parts)) + self.closing

    def text_part(self, text: str, role: str) -> dict[str, Any]:
        """Return a text among other parts."""
        return {"type": "input_text" if role == "user" else "output_text", "text": text}

    def media_part(self, part: Image | File) -> dict[str, Any]:
        """Return a picture or document."""
        loaded = load_media(part)
        if isinstance(part, Image):
            detail = {"detail": part.detail} if part.detail else {}
            return {"type": "input_image", "image_url": loaded.data_url, **detail}
        if loaded.url is not None:
            return {"type": "input_file", "file_url": loaded.url}
        return {"type": "input_file", "filename": file_name(part), "file_data": loaded.data_url}


def schema_spec(schema: CompiledSchema) -> dict[str, Any]:
    """Return an output model as both endpoints name it."""
    return {"name": schema.name, "schema": schema.schema, "strict": True}


def file_name(file: File) -> str:
    """Return what the model is told that a document is called."""
    return file.name or "document.pdf"
