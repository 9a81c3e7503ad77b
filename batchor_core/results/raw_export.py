"""Copying a finished run's files elsewhere, with a manifest that lets anybody check them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from batchor_core.artifacts import ArtifactStore, RunLayout
from batchor_core.artifacts.kinds import ArtifactKind, KnownFile, check_not_pruned, known_files
from batchor_core.errors import ConfigurationError, RunNotFinishedError
from batchor_core.model.records import ArtifactRef, RunRecord
from batchor_core.store.protocol import Store

_COPY_BYTES = 1 << 20
MANIFEST_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export has written.

    Attributes:
        manifest: The manifest's path below the target.
        files: How many files it names.
        size_bytes: Their size in all.
    """

    manifest: str
    files: int
    size_bytes: int


def export_files(
    store: Store,
    artifacts: ArtifactStore,
    run_id: str,
    target: ArtifactStore,
    *,
    kinds: Iterable[ArtifactKind],
    now: datetime,
) -> Exported:
    """Copy files of a finished run, under the paths that they have here, and check each copy.

    The manifest is written last: an export without one was cut short, and is repeated as a whole.
    With the raw answers among the files, the store learns that they were exported.

    Raises:
        ConfigurationError: The target is the run's own artifact root.
        RunNotFinishedError: The run is not finished.
        ArtifactPrunedError: Some of the files were removed on purpose.
        ArtifactError: A file is lost or was altered, or a copy cannot be written or read back.
    """
    if target.root == artifacts.root:
        raise ConfigurationError(
            f"{target.root!r} is where the files lie already: export them to another place"
        )
    run = store.get_run(run_id)
    wanted = tuple(dict.fromkeys(kinds))
    _check(run, wanted)
    files = known_files(wanted, store.list_chunks(run_id), store.list_submissions(run_id))
    for file in files:
        _copy(artifacts, target, file.ref)
    path = manifest_path(run_id)
    _write_manifest(target, path, _manifest(run, wanted, files, now))
    size_bytes = sum(file.ref.size_bytes for file in files)
    if ArtifactKind.RAW in wanted:
        store.note_export(run_id, files=len(files), size_bytes=size_bytes)
    return Exported(manifest=path, files=len(files), size_bytes=size_bytes)


def manifest_path(run_id: str) -> str:
    """Return where the manifest of a run's export lies below the target."""
    return f"{RunLayout(run_id=run_id).folder}/manifest.json"


def _check(run: RunRecord, kinds: tuple[ArtifactKind, ...]) -> None:
    if not run.state.is_terminal:
        raise RunNotFinishedError(
            f"run {run.run_id!r} is {run.state}: its files are exported once it is finished"
        )
    check_not_pruned(run, kinds, "leave them out")


def _copy(artifacts: ArtifactStore, target: ArtifactStore, ref: ArtifactRef) -> None:
    with artifacts.local(ref) as path, path.open("rb") as source, target.writer(ref.path) as file:
        while block := source.read(_COPY_BYTES):
            file.write(block)
        file.commit()
    with target.local(ref):  # reads it back: what is exported may be removed here
        pass


def _manifest(
    run: RunRecord, kinds: tuple[ArtifactKind, ...], files: list[KnownFile], now: datetime
) -> dict[str, Any]:
    return {
        "format": MANIFEST_FORMAT,
        "run_id": run.run_id,
        "namespace": run.namespace,
        "state": run.state.value,
        "exported_at": now.isoformat(),
        "kinds": [kind.value for kind in kinds],
        "files": [
            {
                **asdict(file.ref),
                "what": file.what,
                "run_id": run.run_id,
                "submission_id": file.submission_id,
                "chunk_seq": file.chunk_seq,
            }
            for file in files
        ],
    }


def _write_manifest(target: ArtifactStore, path: str, manifest: dict[str, Any]) -> None:
    with target.writer(path) as file:
        file.write(json.dumps(manifest, indent=1).encode())
        file.commit()
