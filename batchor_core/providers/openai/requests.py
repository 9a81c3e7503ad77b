"""Request lines of the Responses endpoint."""

import hashlib
from typing import Any

import msgspec

from batchor_core.ids import CHUNK_TOKEN_CHARS
from batchor_core.model.items import PromptParts
from batchor_core.providers.openai.config import OpenAIProviderConfig

ENDPOINT_PATHS = {"responses": "/v1/responses"}
_ID_PREFIX = b'{"custom_id":"'
_TOKEN_START = len(_ID_PREFIX)
_TOKEN_END = _TOKEN_START + CHUNK_TOKEN_CHARS
_encode_json = msgspec.json.Encoder().encode


class ResponsesEncoder:
    """Encodes prompts for ``/v1/responses``.

    All that is the same for every row is encoded once per system prompt and hashed once; the
    prompt comes last in the body, so that a row costs its own text and nothing else.

    Args:
        config: Model and parameters.
        host: Part of the request key.
        system_prompt: The job's own; an item's ``PromptParts.system_prompt`` wins.
        text_format: The ``text.format`` object for structured output; None for plain text.
    """

    def __init__(
        self,
        config: OpenAIProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        text_format: dict[str, Any] | None,
    ) -> None:
        self._config = config
        self._text_format = text_format
        self._system_prompt = system_prompt
        path = ENDPOINT_PATHS[config.endpoint]
        self._key_base = hashlib.blake2b(digest_size=16)
        self._key_base.update(f"openai\0{host}\0{path}\0".encode())
        self._middle = f'","method":"POST","url":"{path}","body":'.encode()
        self._heads: dict[str | None, tuple[bytes, Any]] = {}

    def encode(self, prompt: str | PromptParts) -> tuple[bytes, bytes]:
        """Return (request key, canonical body)."""
        if isinstance(prompt, str):
            text, system = prompt, self._system_prompt
        else:
            text, system = prompt.prompt, prompt.system_prompt or self._system_prompt
        head, hasher = self._heads.get(system) or self._head(system)
        tail = _encode_json(text) + b"}"
        key = hasher.copy()
        key.update(tail)
        return key.digest(), head + tail

    def line(self, custom_id: str, body: bytes) -> bytes:
        r"""Return the line of a body, ending in ``\n``."""
        return _ID_PREFIX + custom_id.encode() + self._middle + body + b"}\n"

    def relabel(self, line: bytes, token: str) -> bytes:
        """Return a sealed line with its custom id moved to the chunk of ``token``."""
        return line[:_TOKEN_START] + token.encode() + line[_TOKEN_END:]

    def _head(self, system: str | None) -> tuple[bytes, Any]:
        body: dict[str, Any] = {"model": self._config.model, **self._config.params}
        if self._config.max_output_tokens is not None:
            body["max_output_tokens"] = self._config.max_output_tokens
        if system:
            body["instructions"] = system
        head = msgspec.json.encode(body, order="sorted")[:-1]
        if self._text_format is not None:
            # As it is: the model fills fields in the schema's order, and reasoning that the user
            # put before a verdict must stay there.
            head += b',"text":' + _encode_json({"format": self._text_format})
        head += b',"input":'
        hasher = self._key_base.copy()
        hasher.update(head)
        if len(self._heads) >= 256:
            self._heads.clear()
        self._heads[system] = (head, hasher)
        return head, hasher
