"""Files and folders that outlive a power failure: their content, and their names as well."""

import os
from pathlib import Path

_USUAL_MODE = 0o777


def publish(temporary: Path, target: Path) -> None:
    """Put a file that was written beside its place into it, whole or not at all.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    _sync(temporary, os.O_RDWR)
    temporary.replace(target)
    sync_folder(target.parent)


def make_folder(folder: Path, *, root: Path | None = None, mode: int = _USUAL_MODE) -> None:
    """Make a folder and what is missing above it.

    Args:
        folder: The folder.
        root: What is missing from there on gets ``mode``, what is above it the usual one.
        mode: Who may do what.

    Raises:
        OSError: One cannot be made.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent, root=root, mode=mode)
    is_below = root is None or folder.is_relative_to(root)
    folder.mkdir(mode=mode if is_below else _USUAL_MODE, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a name is part of the folder, not of the file."""
    if hasattr(os, "O_DIRECTORY"):  # Windows keeps names by itself
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
