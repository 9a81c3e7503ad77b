"""From what a user names to the two planes: a path, a URL, ``"memory"``, or nothing at all."""

import os
from pathlib import Path

from batchor_core.artifacts import ArtifactStore, LocalArtifactStore
from batchor_core.clock import Clock
from batchor_core.errors import ConfigurationError
from batchor_core.home import default_home
from batchor_core.store.orchestration import OrchestratorStore
from batchor_core.store.sql import PostgresStorage, SQLiteStorage

MEMORY = "memory"

StoragePlace = OrchestratorStore | str | os.PathLike[str] | None
ArtifactPlace = ArtifactStore | str | os.PathLike[str] | None


def open_store(storage: StoragePlace, clock: Clock | None) -> OrchestratorStore:
    """Open the control plane; see ``BatchRunner`` for what may be named."""
    if storage is None:
        return SQLiteStorage(default_home() / "state.sqlite3", clock=clock)
    if storage == MEMORY:
        return SQLiteStorage.in_memory(clock=clock)
    if isinstance(storage, (str, os.PathLike)):
        if _is_dsn(storage):
            return PostgresStorage(str(storage), clock=clock)
        return SQLiteStorage(storage, clock=clock)
    return storage


def open_artifacts(artifacts: ArtifactPlace, storage: StoragePlace, scratch: str) -> ArtifactStore:
    """Open the data plane.

    Args:
        artifacts: What the user names; None: beside the control plane.
        storage: What the user names for the control plane.
        scratch: A temporary folder, for a control plane in memory.

    Raises:
        ConfigurationError: The control plane has no place that files could lie beside.
    """
    if isinstance(artifacts, ArtifactStore):
        return artifacts
    if artifacts is not None:
        return ArtifactStore(artifacts)
    if storage is None:
        return LocalArtifactStore(default_home() / "artifacts")
    if storage == MEMORY:
        return LocalArtifactStore(scratch)
    if isinstance(storage, (str, os.PathLike)) and not _is_dsn(storage):
        return LocalArtifactStore(Path(storage).expanduser().absolute().parent / "artifacts")
    raise ConfigurationError(
        "say where the files of the data plane shall lie: BatchRunner(storage, artifacts=...)"
    )


def open_target(place: str) -> ArtifactStore:
    """Open another place for files: a folder, made absolute, or a URL."""
    return ArtifactStore(place) if "://" in place else LocalArtifactStore(place)


def _is_dsn(storage: str | os.PathLike[str]) -> bool:
    return isinstance(storage, str) and storage.startswith(("postgres://", "postgresql"))
