"""Anthropic's adapter against the contract of all providers."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import SecretStr

from batchor_core.providers.anthropic import AnthropicProviderConfig
from batchor_core.providers.anthropic.adapter import AnthropicProvider
from batchor_core.providers.anthropic.requests import MessagesEncoder
from batchor_core.testing.provider_suite import KeylessContract


def _config(base_url: str, key: str) -> AnthropicProviderConfig:
    return AnthropicProviderConfig(
        model="claude-test", max_tokens=64, base_url=base_url, api_key=SecretStr(key), timeout_s=20
    )


class TestAnthropic(KeylessContract):
    routes: ClassVar[Mapping[str, str]] = {
        "create": "anthropic.batches.create",
        "list": "anthropic.batches.list",
        "get": "anthropic.batches.get",
        "download": "anthropic.batches.results",
    }
    create_path = "/v1/messages/batches"
    unknown_id = "msgbatch_unknown"
    absent_results = ()
    rejects_batches = False

    def connect(self, base_url: str, key: str) -> AnthropicProvider:
        return AnthropicProvider(_config(base_url, key))

    def encoder(self, host: str) -> MessagesEncoder:
        config = _config("http://127.0.0.1", "unused")
        return MessagesEncoder(config, host=host, system_prompt=None, schema=None)

    def test_the_scope_reveals_nothing(self) -> None:
        """Keys would be written to the store as part of a queue's name."""
        provider = self.connect("http://127.0.0.1:9", "sk-contract-0123456789")
        assert provider.scope == "anthropic:127.0.0.1:9::claude-test"
        provider.close()
