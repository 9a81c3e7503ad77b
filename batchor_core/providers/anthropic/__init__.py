"""Anthropic's Message Batches."""

from batchor_core.providers.anthropic.config import AnthropicProviderConfig

__all__ = ["AnthropicProviderConfig"]
