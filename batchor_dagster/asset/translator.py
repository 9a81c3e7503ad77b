"""The translator: a project's conventions for key, group, tags and the like of batch assets."""

from dataclasses import dataclass

import dagster as dg

from batchor_dagster.asset.declaration import BatchAssetDeclaration


@dataclass(frozen=True, kw_only=True)
class BatchAssetTranslatorData:
    """What a translator gets for each batch asset.

    Attributes:
        declaration: The options: model, provider, output, policies.
        spec: The asset spec by the keywords of ``batch_asset``. Its ``deps`` are those of the
            keyword ``deps``, without the assets that the function loads as inputs.
    """

    declaration: BatchAssetDeclaration
    spec: dg.AssetSpec


class DagsterBatchorTranslator:
    """Customises key, group, tags, owners, kinds, description, metadata and the like.

    Give an instance of a subclass as ``batch_asset(translator=...)``:

    ```python
    class Ours(DagsterBatchorTranslator):
        def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
            spec = super().get_asset_spec(data)
            return spec.replace_attributes(key=spec.key.with_prefix("llm")).merge_attributes(
                tags={"model": data.declaration.model}
            )
    ```
    """

    def get_asset_spec(self, data: BatchAssetTranslatorData) -> dg.AssetSpec:
        """Return the asset's spec; by default ``data.spec``."""
        return data.spec
