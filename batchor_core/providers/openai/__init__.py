"""OpenAI's Batch API, and every host that speaks it. The SDK is imported with the first call."""

from batchor_core.providers.openai.config import OpenAIEnqueueLimitConfig, OpenAIProviderConfig

__all__ = ["OpenAIEnqueueLimitConfig", "OpenAIProviderConfig"]
