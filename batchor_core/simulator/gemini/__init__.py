"""The Gemini protocol: the Developer API's files and batches, and Vertex AI's prediction jobs."""

from batchor_core.simulator.gemini.routes import gemini_routes
from batchor_core.simulator.gemini.service import GeminiService
from batchor_core.simulator.gemini.vertex_service import VertexService

__all__ = ["GeminiService", "VertexService", "gemini_routes"]
