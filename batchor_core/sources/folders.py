"""Which files a folder holds, or a pattern matches."""

import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from upath import UPath

from batchor_core.errors import SourceError
from batchor_core.sources.streams import WEB_PROTOCOLS, InputFile, read_errors

_WILDCARDS = frozenset("*?[")
_LOCAL_PROTOCOLS = frozenset({"", "file", "local"})


class Folder:
    """A folder, or a pattern over files: ``*`` and ``?`` within a name, ``**`` for any folders.

    Files in sub-folders belong to it. Names that begin with ``.`` or ``_`` are passed over, as are
    all files below folders of such a name: they are marks and logs of whoever wrote the others.

    Args:
        path: Local path or fsspec URL.

    Raises:
        SourceError: Nothing is known about this kind of URL.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.label = InputFile(path).label
        self._path = UPath(path)

    def exists(self) -> bool:
        """Whether it is a folder, or a pattern that is not the very name of a file.

        Raises:
            SourceError: The place cannot be looked at.
        """
        if self._path.protocol in WEB_PROTOCOLS:  # there "?" begins a query, and nothing is listed
            return False
        with read_errors(self.label):
            if _WILDCARDS.isdisjoint(self._path.path):
                return self._path.is_dir()
            return not self._path.is_file()

    def files(self, encoding: str) -> list[InputFile]:
        """Return the files in the order of their paths; messages call them by the part below.

        Raises:
            SourceError: There is none, or the place cannot be looked at.
        """
        with read_errors(self.label):
            root, paths = self._paths()
        found = []
        for path in sorted(paths, key=lambda path: path.parts):
            below = path.relative_to(root)
            if not any(name.startswith((".", "_")) for name in below.parts):
                found.append(InputFile(self._located(path), str(below), encoding))
        if not found:
            raise SourceError(f"there are no files in {self.label}")
        return found

    def _paths(self) -> tuple[PurePosixPath, set[PurePosixPath]]:
        """Return the folder that all files lie in, and the files."""
        fs = self._path.fs
        given = PurePosixPath(fs._strip_protocol(str(self._path)))  # noqa: SLF001 - fsspec's way
        parts = given.parts
        fixed = next((n for n, part in enumerate(parts) if not _WILDCARDS.isdisjoint(part)), None)
        if fixed is None or self._path.is_dir():
            return given, set(map(PurePosixPath, fs.find(str(given))))
        return PurePosixPath(*parts[:fixed]), set(self._matches(str(given)))

    def _matches(self, pattern: str) -> Iterator[PurePosixPath]:
        fs = self._path.fs
        for path, info in fs.glob(pattern, detail=True).items():
            if info["type"] == "directory":
                yield from map(PurePosixPath, fs.find(path))
            else:
                yield PurePosixPath(path)

    def _located(self, path: PurePosixPath) -> UPath:
        if self._path.protocol in _LOCAL_PROTOCOLS:
            return UPath(str(path))
        url = self._path.fs.unstrip_protocol(str(path))
        located: UPath = UPath(url, **self._path.storage_options)
        return located
