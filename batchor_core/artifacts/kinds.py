"""The kinds of a run's files, as one may name them to export or remove them. Stored words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from batchor_core.artifacts.layout import RunLayout
from batchor_core.errors import ArtifactPrunedError
from batchor_core.model.records import ArtifactRef, ChunkRecord, RunRecord, SubmissionRecord


class ArtifactKind(StrEnum):
    """Some of a run's files, and what is lost without them."""

    RAW = "raw"
    """What the provider answered, byte for byte; nothing reads them again."""
    REQUESTS = "requests"
    """What was sent; without them failed items cannot be asked again."""
    ITEMS = "items"
    """Ids, kept columns, metadata; without them the result table can be read, but no item results,
    nothing can be reused, and failed items cannot be asked again."""
    RESULTS = "results"
    """The result table and the outcomes behind it; counts and cost are kept."""


SENT_AND_RECEIVED = (ArtifactKind.RAW, ArtifactKind.REQUESTS)
"""What is exported and removed where nothing else is named."""

_FOLDERS = {ArtifactKind.RESULTS: ("outcomes", "results")}


@dataclass(frozen=True, kw_only=True)
class KnownFile:
    """One file that the store points at.

    Attributes:
        what: ``raw``, ``requests``, ``items``, ``outcomes`` or ``results``.
        submission_id: Of which submission; None of a chunk's files.
        chunk_seq: Of which chunk.
    """

    ref: ArtifactRef
    what: str
    submission_id: str | None
    chunk_seq: int


def known_files(
    kinds: Iterable[ArtifactKind],
    chunks: Sequence[ChunkRecord],
    submissions: Sequence[SubmissionRecord],
) -> list[KnownFile]:
    """Return the files of some kinds that a run's records point at, each once."""
    wanted = {folder for kind in kinds for folder in folder_names(kind)}
    found: dict[str, KnownFile] = {}
    for chunk in chunks:
        refs = {"requests": chunk.requests, "items": chunk.items, "results": chunk.results}
        for what, ref in refs.items():
            if what in wanted and ref is not None:
                file = KnownFile(ref=ref, what=what, submission_id=None, chunk_seq=chunk.seq)
                found.setdefault(ref.path, file)
    for submission in submissions:
        named = [("raw", ref) for ref in submission.raw]
        if submission.outcomes is not None:
            named.append(("outcomes", submission.outcomes))
        for what, ref in named:
            if what in wanted:
                found[ref.path] = KnownFile(
                    ref=ref,
                    what=what,
                    submission_id=submission.submission_id,
                    chunk_seq=submission.chunk_seq,
                )
    return list(found.values())


def check_not_pruned(run: RunRecord, kinds: Iterable[ArtifactKind], consequence: str) -> None:
    """Raise ``ArtifactPrunedError`` if files of one of these kinds were removed on purpose."""
    gone = [kind.value for kind in kinds if kind in run.pruned]
    if gone:
        raise ArtifactPrunedError(
            f"the {' and '.join(gone)} files of run {run.run_id!r} were pruned: {consequence}"
        )


def folder_names(kind: ArtifactKind) -> tuple[str, ...]:
    """Return the names of the folders that hold files of a kind."""
    return _FOLDERS.get(kind, (kind.value,))


def folders(run_id: str, kind: ArtifactKind) -> list[str]:
    """Return the folders that hold a run's files of a kind, relative to the artifact root."""
    return [f"{RunLayout(run_id=run_id).folder}/{name}" for name in folder_names(kind)]
