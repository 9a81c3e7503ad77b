"""The data plane: everything that is per item, as immutable files."""

from batchor_core.artifacts.layout import RunLayout
from batchor_core.artifacts.store import ArtifactStore, ArtifactWriter, LocalArtifactStore

__all__ = ["ArtifactStore", "ArtifactWriter", "LocalArtifactStore", "RunLayout"]
