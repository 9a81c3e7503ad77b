"""The embeddings endpoint: many inputs share a request, and vectors come back."""

import base64
import binascii
import hashlib
import struct
from typing import Any

from batchor_core.errors import ConfigurationError
from batchor_core.model.faults import ItemErrorCode
from batchor_core.model.items import PromptParts
from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.encoding import LineFrame, encode_json, encode_sorted
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.openai.requests import endpoint_path, line_frame
from batchor_core.providers.openai.result_lines import (
    Response,
    body_failure,
    item_fault,
    mapping_of,
    read_line,
    text_or_none,
    tokens_of,
)
from batchor_core.providers.openai.usual_lines import usual_vectors
from batchor_core.providers.protocol import Answer
from batchor_core.providers.wire import count_of

MAX_INPUTS = 2_048
"""Inputs that one request takes (OpenAI's embeddings reference)."""

_ANSWER_BYTES = 8_000_000
"""Size of one result line that is aimed at: one is in memory as a whole."""

_BYTES_PER_DIMENSION = 5.4
"""Of an answer: four bytes as base64, and a little for what surrounds a vector."""

_FLOAT_BYTES = 4


class EmbeddingsEncoder:
    """Encodes texts for ``/v1/embeddings``; a piece is the JSON string of one of them.

    Args:
        config: Model, parameters and dimensions.
        host: Part of the request key.
        system_prompt: Refused: there is nobody to instruct.
        schema: Refused: vectors have one shape.

    Raises:
        ConfigurationError: There is a system prompt or an output model.
    """

    def __init__(
        self,
        config: OpenAIProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> None:
        dimensions = config.embedding_dimensions
        if dimensions is None or system_prompt or schema is not None:
            raise ConfigurationError(
                "embeddings are vectors of texts: leave out the system prompt and the output "
                "model, or use the endpoint 'responses' or 'chat'"
            )
        most = int(_ANSWER_BYTES / (dimensions * _BYTES_PER_DIMENSION))
        self.inputs_per_request = max(1, min(MAX_INPUTS, most))
        path = endpoint_path("embeddings", config)
        head = _head(config)
        frame = line_frame(path)
        self._frame = LineFrame(
            prefix=frame.prefix, middle=frame.middle + head + b',"input":[', suffix=b"]}}"
        )
        self._key_base = hashlib.blake2b(digest_size=16)
        self._key_base.update(f"openai\0{host}\0{path}\0".encode() + head)

    def encode(self, prompt: str | PromptParts) -> tuple[bytes, bytes]:
        """Return (request key, piece) of a text, as if it were sent alone."""
        piece = encode_json(prompt if isinstance(prompt, str) else _text_of(prompt))
        if len(piece) <= len(b'""'):
            raise ValueError("an empty text has no embedding")
        key = self._key_base.copy()
        key.update(piece)
        return key.digest(), piece

    def line(self, custom_id: str, body: bytes) -> bytes:
        r"""Return the line of pieces that are joined by commas, ending in ``\n``."""
        return self._frame.line(custom_id, body)

    def relabel(self, line: bytes, token: str) -> bytes:
        """Return a sealed line with its custom id moved to the chunk of ``token``."""
        return self._frame.relabel(line, token)

    def body_offset(self, custom_id: str) -> int:
        """Return where in a line its first piece begins."""
        return self._frame.body_offset(custom_id)


def decode_vectors(line: bytes) -> Answer | None:
    """Return the answer on one line, or None where it cannot be read or names no custom id."""
    return usual_vectors(line) or read_line(line, _vectors_answer)


def _head(config: OpenAIProviderConfig) -> bytes:
    """Return what precedes the inputs in a request's body."""
    # Half as large as numbers, and five times as fast to read; hosts that do not know it send
    # numbers.
    body: dict[str, Any] = {
        "model": config.model,
        "encoding_format": "base64",
        **config.params,
    }
    if config.dimensions is not None:
        body["dimensions"] = config.dimensions
    return encode_sorted(body)[:-1]


def _text_of(parts: PromptParts) -> str:
    if parts.body is not None:
        raise ValueError(
            "embeddings take no body of a row's own, since rows share their requests: give its "
            "text as prompt, and what is the same for all rows as params of the configuration"
        )
    if parts.system_prompt or parts.messages or parts.params:
        raise ValueError(
            "embeddings take a text alone: no system prompt, no messages, and no params of a "
            "row's own (params of the configuration are for all rows)"
        )
    if isinstance(parts.prompt, str):
        return parts.prompt
    raise ValueError("embeddings take one text a row, no parts and no media")


def _vectors_answer(response: Response) -> Answer:
    body = response.body
    usage = mapping_of(body.get("usage"))
    vectors = _vectors(body.get("data"))
    fault = None
    if vectors is None:
        error = mapping_of(body.get("error"))
        message = "the answer does not have one readable vector for each input"
        unreadable = item_fault(ItemErrorCode.UNREADABLE_RESULT, message, again=True)
        fault = body_failure(error) if error else unreadable
    return Answer(
        custom_id=response.custom_id,
        vectors=vectors,
        fault=fault,
        model=text_or_none(body.get("model")),
        request_id=response.request_id,
        input_tokens=tokens_of(usage, "prompt_tokens") or tokens_of(usage, "total_tokens"),
    )


def _vectors(data: object) -> list[bytes] | None:
    """Return the vectors in the order of their inputs; None if any is missing, doubled or odd."""
    if not isinstance(data, list) or not data:
        return None
    found: dict[int, bytes] = {}
    for entry in data:
        fields = mapping_of(entry)
        vector = _vector(fields.get("embedding"))
        is_alone = len(data) == 1 and fields.get("index") is None
        index = 0 if is_alone else count_of(fields.get("index"))
        if vector is None or index is None:
            return None
        found[index] = vector
    if sorted(found) != list(range(len(data))):
        return None
    return [found[index] for index in range(len(data))]


def _vector(value: object) -> bytes | None:
    """Return a vector as little-endian float32, from base64 or from a list of numbers."""
    try:
        if isinstance(value, str):
            vector = base64.b64decode(value, validate=True)
        elif isinstance(value, list):
            vector = struct.pack(f"<{len(value)}f", *value)
        else:
            return None
    except (binascii.Error, struct.error, ValueError, OverflowError):
        return None
    return vector if vector and len(vector) % _FLOAT_BYTES == 0 else None
