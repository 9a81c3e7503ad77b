"""LLM batch APIs as partitioned Dagster assets.

``@batch_asset`` declares an asset whose rows a provider's batch API answers. The sensors of
``build_batch_sensors`` advance and materialize it. ``batchor_definitions`` bundles assets, sensors
and jobs as ``Definitions``.
"""

from batchor_dagster.asset.checks import BatchChecks, CheckThreshold
from batchor_dagster.asset.run_config import BatchRunConfig
from batchor_dagster.asset.translator import BatchAssetTranslatorData, DagsterBatchorTranslator
from batchor_dagster.asset_decorator import batch_asset
from batchor_dagster.components import BatchAssetComponent, BatchorComponent
from batchor_dagster.constants import HoldKind
from batchor_dagster.definitions import batchor_definitions
from batchor_dagster.resources import (
    AnthropicBatchResource,
    BatchorResource,
    GeminiBatchResource,
    OpenAIBatchResource,
)
from batchor_dagster.resources.io_manager import BatchParquetIOManager
from batchor_dagster.sensors.builder import build_batch_sensors

__all__ = [
    "AnthropicBatchResource",
    "BatchAssetComponent",
    "BatchAssetTranslatorData",
    "BatchChecks",
    "BatchParquetIOManager",
    "BatchRunConfig",
    "BatchorComponent",
    "BatchorResource",
    "CheckThreshold",
    "DagsterBatchorTranslator",
    "GeminiBatchResource",
    "HoldKind",
    "OpenAIBatchResource",
    "batch_asset",
    "batchor_definitions",
    "build_batch_sensors",
]
