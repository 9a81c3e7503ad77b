"""What a batch asset looks like in Dagster, for projects with conventions of their own."""

from dataclasses import dataclass

import dagster as dg

from batchor_dagster.asset.declaration import BatchAssetDeclaration


@dataclass(frozen=True, kw_only=True)
class BatchAssetTranslatorData:
    """What a translator is given.

    Attributes:
        declaration: The recipe: model, provider, output, policies.
        spec: What the keywords of ``batch_asset`` say about the asset. Its ``deps`` are those that
            were named as such: what the function loads as inputs comes on top.
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
        """Return the asset's spec; by default what was declared."""
        return data.spec
