"""The OpenAI protocol: files, batches, and the endpoints that a batch may call."""

from batchor_core.simulator.openai.routes import openai_routes
from batchor_core.simulator.openai.service import OpenAIService

__all__ = ["OpenAIService", "openai_routes"]
