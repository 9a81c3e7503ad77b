"""OpenAI's adapter against the contract of all providers, at each of its endpoints."""

import math
import struct
from typing import Any

from pydantic import SecretStr

from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.openai.chat_requests import ChatEncoder
from batchor_core.providers.openai.embeddings import EmbeddingsEncoder
from batchor_core.providers.openai.requests import ResponsesEncoder
from batchor_core.providers.protocol import Answer
from batchor_core.testing.provider_suite import ProviderContract

DIMENSIONS = 64


def _config(base_url: str, key: str, **fields: Any) -> OpenAIProviderConfig:
    return OpenAIProviderConfig(
        model="gpt-test", base_url=f"{base_url}/v1", api_key=SecretStr(key), timeout_s=20, **fields
    )


class TestOpenAI(ProviderContract):
    def connect(self, base_url: str, key: str) -> OpenAIProvider:
        return OpenAIProvider(_config(base_url, key))

    def encoder(self, host: str) -> ResponsesEncoder:
        config = _config("http://127.0.0.1", "unused")
        return ResponsesEncoder(config, host=host, system_prompt=None, schema=None)

    def test_the_scope_reveals_nothing(self) -> None:
        """Keys would be written to the store as part of a queue's name."""
        provider = self.connect("http://127.0.0.1:9", "sk-contract-0123456789")
        assert provider.scope == "openai:127.0.0.1:9:::gpt-test"
        provider.close()


class TestOpenAIChat(ProviderContract):
    def connect(self, base_url: str, key: str) -> OpenAIProvider:
        return OpenAIProvider(_config(base_url, key, endpoint="chat"))

    def encoder(self, host: str) -> ChatEncoder:
        config = _config("http://127.0.0.1", "unused", endpoint="chat")
        return ChatEncoder(config, host=host, system_prompt="be brief", schema=None)


class TestOpenAIEmbeddings(ProviderContract):
    def connect(self, base_url: str, key: str) -> OpenAIProvider:
        fields = {"endpoint": "embeddings", "dimensions": DIMENSIONS}
        return OpenAIProvider(_config(base_url, key, **fields))

    def encoder(self, host: str) -> EmbeddingsEncoder:
        config = _config("http://127.0.0.1", "unused", endpoint="embeddings", dimensions=DIMENSIONS)
        return EmbeddingsEncoder(config, host=host, system_prompt=None, schema=None)

    def check_answer(self, answer: Answer) -> None:
        assert (answer.text, answer.fault, answer.output_tokens) == (None, None, 0)
        assert answer.input_tokens
        (vector,) = answer.vectors or []
        values = struct.unpack(f"<{DIMENSIONS}f", vector)
        assert math.isclose(math.hypot(*values), 1.0, rel_tol=1e-5)
