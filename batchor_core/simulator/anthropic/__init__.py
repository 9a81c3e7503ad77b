"""The Anthropic protocol: Message Batches, whose requests come in the create call itself."""

from batchor_core.simulator.anthropic.routes import anthropic_routes
from batchor_core.simulator.anthropic.service import AnthropicService

__all__ = ["AnthropicService", "anthropic_routes"]
