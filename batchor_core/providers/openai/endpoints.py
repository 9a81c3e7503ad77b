"""The endpoints that a batch may call: for each, how it is asked, and how its answers are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batchor_core.planning.schema_compiler import CompiledSchema
from batchor_core.providers.openai.chat_requests import ChatEncoder
from batchor_core.providers.openai.chat_results import decode_chat_line
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.openai.embeddings import EmbeddingsEncoder, decode_vectors
from batchor_core.providers.openai.requests import ResponsesEncoder
from batchor_core.providers.openai.results import decode_line
from batchor_core.providers.protocol import Answer, RequestEncoder


class MakeEncoder(Protocol):
    """Makes an endpoint's encoder."""

    def __call__(
        self,
        config: OpenAIProviderConfig,
        *,
        host: str,
        system_prompt: str | None,
        schema: CompiledSchema | None,
    ) -> RequestEncoder:
        """Return the encoder of one run."""
        ...


@dataclass(frozen=True, kw_only=True)
class Codec:
    """One endpoint.

    Attributes:
        encoder: Turns prompts into its request lines.
        decode: Returns the answer on one of its result lines; None for a line that cannot be
            read or has no custom id.
    """

    encoder: MakeEncoder
    decode: Callable[[bytes], Answer | None]


CODECS = {
    "responses": Codec(encoder=ResponsesEncoder, decode=decode_line),
    "chat": Codec(encoder=ChatEncoder, decode=decode_chat_line),
    "embeddings": Codec(encoder=EmbeddingsEncoder, decode=decode_vectors),
}
"""By the endpoint's name in the configuration."""
