"""Gemini's batches, on the Developer API and on Vertex AI."""

from batchor_core.providers.gemini.config import GeminiProviderConfig

__all__ = ["GeminiProviderConfig"]
