"""Which providers there are: their configurations, and their adapters, loaded when first used."""

from collections.abc import Callable
from typing import Annotated, TypeAlias

from pydantic import Field, SecretStr

from batchor_core.providers.anthropic.config import AnthropicProviderConfig
from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.openai.config import OpenAIProviderConfig
from batchor_core.providers.protocol import BatchProvider

ProviderConfig: TypeAlias = Annotated[
    OpenAIProviderConfig | AnthropicProviderConfig | GeminiProviderConfig,
    Field(discriminator="provider"),
]
"""What a user says about one of the providers, told apart by its ``provider``."""

ProviderFactory = Callable[[ProviderConfig], BatchProvider]
"""Makes the adapter of a configuration; programs that keep credentials put them in here."""


def connect(config: ProviderConfig) -> BatchProvider:
    """Return the adapter of a configuration; its SDK is imported here and not before.

    Raises:
        MissingCredentialsError: There is no key.
        ConfigurationError: The SDK's own requirements are not met.
    """
    match config:
        case OpenAIProviderConfig():
            from batchor_core.providers.openai.adapter import OpenAIProvider  # noqa: PLC0415

            return OpenAIProvider(config)
        case AnthropicProviderConfig():
            from batchor_core.providers.anthropic.adapter import AnthropicProvider  # noqa: PLC0415

            return AnthropicProvider(config)
        case GeminiProviderConfig():
            from batchor_core.providers.gemini.adapter import gemini_provider  # noqa: PLC0415

            return gemini_provider(config)


def connect_without_key(config: ProviderConfig) -> BatchProvider:
    """Return an adapter that is never called, for reading results, which are files of ours."""
    changed: dict[str, object] = {"api_key": SecretStr("not-needed")}
    if isinstance(config, GeminiProviderConfig):
        changed["backend"] = "developer"  # Vertex has credentials in place of a key
    return connect(config.model_copy(update=changed))
