"""OpenAI's adapter against the contract of all providers."""

from pydantic import SecretStr

from batchor_core.providers.openai import OpenAIProviderConfig
from batchor_core.providers.openai.adapter import OpenAIProvider
from batchor_core.providers.openai.requests import ResponsesEncoder
from batchor_core.testing.provider_suite import ProviderContract


def _config(base_url: str, key: str) -> OpenAIProviderConfig:
    return OpenAIProviderConfig(
        model="gpt-test", base_url=f"{base_url}/v1", api_key=SecretStr(key), timeout_s=20
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
