"""Resources of a code location: the store, accounts of providers, and an IO manager."""

from batchor_dagster.resources.accounts import (
    AnthropicBatchResource,
    GeminiBatchResource,
    ModelRequest,
    OpenAIBatchResource,
    ProviderBatchResource,
)
from batchor_dagster.resources.io_manager import BatchParquetIOManager
from batchor_dagster.resources.store import BatchorResource

__all__ = [
    "AnthropicBatchResource",
    "BatchParquetIOManager",
    "BatchorResource",
    "GeminiBatchResource",
    "ModelRequest",
    "OpenAIBatchResource",
    "ProviderBatchResource",
]
