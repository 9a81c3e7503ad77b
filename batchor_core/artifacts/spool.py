"""A folder on this machine for files on their way to or from another place."""

import os
import shutil
import tempfile
import threading
import weakref


class SpoolFolder:
    """A private folder, made when it is first asked for; each process has its own.

    Removed by ``close``, with the object, or at the end of the process; one that is killed leaves
    ``batchor-spool-*`` behind in the folder for temporary files.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None
        self._pid = 0

    @property
    def path(self) -> str:
        """The folder, with mode 0700."""
        with self._lock:
            if self._path is None or self._pid != os.getpid():  # a forked child leaves it alone
                self._path, self._pid = tempfile.mkdtemp(prefix="batchor-spool-"), os.getpid()
                weakref.finalize(self, _remove, self._path, self._pid)
            return self._path

    def close(self) -> None:
        """Remove the folder. Idempotent; it is made anew if it is asked for again."""
        with self._lock:
            if self._path is not None:
                _remove(self._path, self._pid)
                self._path = None


def _remove(path: str, pid: int) -> None:
    if pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
