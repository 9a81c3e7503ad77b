"""Batch assets, and what they need, declared in YAML for ``dg``."""

from batchor_dagster.components.batch_asset import BatchAssetComponent
from batchor_dagster.components.batchor import BatchorComponent

__all__ = ["BatchAssetComponent", "BatchorComponent"]
