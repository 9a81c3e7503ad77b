"""Removing files of finished runs that nobody needs any more.

The store is told before anything is removed and after it: a crash in between leaves files that
count as removed already, and the next prune removes them. Whole folders go, and with them what
crashes have left in them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.kinds import ArtifactKind, folders, known_files
from batchor_core.store.protocol import Store


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a prune has removed of one run, or would.

    Attributes:
        kinds: Kinds of files that it removed.
        files: How many, of those that the store points at.
        size_bytes: Their size in all.
        refused: Why nothing was removed; None where it was.
    """

    run_id: str
    kinds: Sequence[ArtifactKind]
    files: int
    size_bytes: int
    refused: str | None = None


def prune_files(
    store: Store,
    artifacts: ArtifactStore,
    run_id: str,
    kinds: Iterable[ArtifactKind],
    *,
    is_dry: bool = False,
) -> Pruned:
    """Remove files of a finished run; what is removed already is left out.

    Args:
        store: The control plane.
        artifacts: The data plane.
        run_id: The run.
        kinds: What to remove.
        is_dry: Only tell what would be removed.

    Raises:
        RunNotFinishedError: The run is not finished.
        PruneRefusedError: The files are still needed, or the raw answers were never exported.
        ArtifactError: They cannot be removed now.
    """
    run = store.get_run(run_id)
    left = [kind for kind in dict.fromkeys(kinds) if run.pruned.get(kind) != "done"]
    files = known_files(left, store.list_chunks(run_id), store.list_submissions(run_id))
    pruned = Pruned(
        run_id=run_id,
        kinds=left,
        files=len(files),
        size_bytes=sum(file.ref.size_bytes for file in files),
    )
    store.begin_prune(run_id, left, is_dry=is_dry)
    if is_dry or not left:
        return pruned
    for kind in left:
        for folder in folders(run_id, kind):
            artifacts.delete_folder(folder)
    store.finish_prune(run_id, left)
    return pruned
