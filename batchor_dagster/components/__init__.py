"""Components for ``dg``: batch assets, and their store, accounts and sensors, in YAML."""

from batchor_dagster.components.batch_asset import BatchAssetComponent
from batchor_dagster.components.batchor import BatchorComponent

__all__ = ["BatchAssetComponent", "BatchorComponent"]
