"""Folders on this machine for files on their way to or from another place.

Each is locked by the process that made it, for as long as that lives, however it ends. Whoever
gets the lock of a folder therefore knows that it was left behind, and removes it. Where a lock says
nothing (the folder is another machine's, or the file system has none) age decides.
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from batchor_core.ids import path_segment

if sys.platform != "win32":
    import fcntl

SPOOL_PREFIX = "batchor-spool-"
"""Of the folders in the one for temporary files."""

_OLD_S = 24 * 3600.0
"""For so long no transfer stands still."""


class HeldFolder:
    """A new private folder, with mode 0700, that belongs to this process.

    Args:
        parent: Where to make it.
        prefix: What its name begins with.
    """

    def __init__(self, parent: str, prefix: str = "") -> None:
        self._pid = os.getpid()
        self._lock: int | None = None
        self.path = Path()
        is_ours = False
        while not is_ours:  # somebody who looks for left-overs may come between us and our lock
            self._unlock()
            self.path = Path(tempfile.mkdtemp(prefix=_prefix_here(prefix), dir=parent))
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                self._lock = _lock(self.path)
                is_ours = self.path.is_dir()

    def remove(self) -> None:
        """Remove it with all that is in it, unless this is a forked child. Idempotent."""
        if self._pid == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


class SpoolFolder:
    """A private folder among the temporary files, made when it is first asked for.

    Each process has its own, removed by ``close``, with the object, or at the end of the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder: HeldFolder | None = None
        self._pid = 0

    @property
    def path(self) -> str:
        """The folder, with mode 0700."""
        with self._lock:
            if self._folder is None or self._pid != os.getpid() or not self._folder.path.is_dir():
                self._folder = HeldFolder(tempfile.gettempdir(), SPOOL_PREFIX)
                self._pid = os.getpid()  # a forked child leaves its parent's alone
                weakref.finalize(self, self._folder.remove)
            return str(self._folder.path)

    def close(self) -> None:
        """Remove the folder. Idempotent; it is made anew if it is asked for again."""
        with self._lock:
            if self._folder is not None:
                self._folder.remove()
                self._folder = None


@contextlib.contextmanager
def held_folder(parent: str) -> Iterator[Path]:
    """Give a folder of this process, removed after the block."""
    folder = HeldFolder(parent)
    try:
        yield folder.path
    finally:
        folder.remove()


def remove_leftovers(parent: str, prefix: str = "") -> None:
    """Remove the folders that killed processes have left behind, never one of a living process.

    Args:
        parent: Where they are; it need not exist.
        prefix: What their names begin with.
    """
    try:
        with os.scandir(parent) as entries:
            found = [e for e in entries if e.name.startswith(prefix) and _is_folder(e)]
    except OSError:
        return
    for entry in found:
        with contextlib.suppress(OSError):  # locked by a living process, gone, or another user's
            is_ours = entry.name.startswith(_prefix_here(prefix))
            lock = _lock(Path(entry.path)) if is_ours else None
            if lock is not None or _is_old(Path(entry.path)):
                shutil.rmtree(entry.path, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _prefix_here(prefix: str) -> str:
    """Return what the names of this machine's folders begin with: no segment holds an ``@``."""
    return f"{prefix}{path_segment(socket.gethostname())}@"


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed; None where folders cannot be locked.

    Raises:
        BlockingIOError: Somebody has it.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(descriptor)
        if isinstance(exc, BlockingIOError):
            raise
        return None
    return descriptor


def _is_old(folder: Path) -> bool:
    """Whether nothing in a folder has been written for a long time."""
    newest = max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    return newest < time.time() - _OLD_S
