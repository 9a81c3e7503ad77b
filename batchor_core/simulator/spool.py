"""Files that clients uploaded or that batches produced, kept on disk."""

import itertools
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class StoredFile:
    """One file of the simulated provider.

    `created_at` and `expires_at` are instants of the simulator's clock.
    """

    id: str
    path: Path
    filename: str
    purpose: str
    size_bytes: int
    created_at: float
    expires_at: float | None = None
    deleted: bool = False
    unready_gets: int = 0


class Spool:
    """A private folder for the simulator's files, removed by `close()`.

    Ids hold a random part of the spool, so that a simulator started anew does not answer for ids
    that an earlier one gave out.
    """

    def __init__(self, parent: Path | None = None) -> None:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="batchor-simulator-", dir=parent))
        self._salt = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    def new_id(self, prefix: str) -> str:
        """An id that was never given before, such as `file-5f0e…0001`."""
        return f"{prefix}{self._salt}{next(self._numbers):016x}"

    def path(self, name: str) -> Path:
        """Where the file `name` is or will be."""
        return self.folder / name

    def close(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
