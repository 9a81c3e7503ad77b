"""Which of Gemini's backends a configuration means."""

from batchor_core.providers.gemini.config import GeminiProviderConfig
from batchor_core.providers.gemini.developer import GeminiProvider
from batchor_core.providers.gemini.vertex import VertexProvider
from batchor_core.providers.protocol import BatchProvider

__all__ = ["GeminiProvider", "VertexProvider", "gemini_provider"]


def gemini_provider(config: GeminiProviderConfig) -> BatchProvider:
    """Return the adapter of a configuration.

    Raises:
        MissingCredentialsError: There is no key, or there are no credentials.
        ConfigurationError: Vertex AI lacks project, location or bucket.
    """
    return VertexProvider(config) if config.is_vertex else GeminiProvider(config)
