"""Immutable files under one root: a local folder or any fsspec URL.

A file is written under a temporary name and renamed (on an object store: one atomic put), never
overwritten, and counts only once a record of the control plane points at it. Its size and SHA-256
are checked before each use.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from batchor_core.artifacts.remote import RemoteFiles
from batchor_core.artifacts.spool import (
    SPOOL_PREFIX,
    SpoolFolder,
    held_folder,
    remove_leftovers,
)
from batchor_core.durable import make_folder, publish
from batchor_core.errors import ArtifactAlteredError, ArtifactError, ArtifactMissingError
from batchor_core.model.records import ArtifactRef

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


class ArtifactWriter:
    """A file on its way: write bytes, then ``commit``; leaving without it discards the file.

    Made by ``ArtifactStore.writer``. Hashes while writing, so that nothing is read twice.
    """

    def __init__(self, temporary: Path, path: str, publish: Callable[[Path, str], None]) -> None:
        self._temporary = temporary
        self._path = path
        self._publish = publish
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
        self._file: IO[bytes] = os.fdopen(descriptor, "wb")
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        """Append bytes (any buffer); return their number."""
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        try:
            self._file.write(view)
        except OSError as exc:
            raise self._failed(exc) from exc
        self.size_bytes += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: a file counts only once committed (Arrow's writers ask for it)."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more (Arrow's writers ask)."""
        return self._file.closed

    def close(self) -> None:
        """Discard the file unless it was committed. Idempotent."""
        with contextlib.suppress(OSError):  # what cannot be written any more is not wanted either
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def commit(self) -> ArtifactRef:
        """Make the file durable under its final name and return what points at it.

        Raises:
            ArtifactError: It cannot be written (a full disk, say); nothing is left behind.
        """
        try:
            self._file.close()
            self._publish(self._temporary, self._path)
        except OSError as exc:
            raise self._failed(exc) from exc
        return ArtifactRef(
            path=self._path, size_bytes=self.size_bytes, sha256=self._sha256.hexdigest()
        )

    def _failed(self, error: OSError) -> ArtifactError:
        return ArtifactError(
            f"{self._path!r} cannot be written: {error.strerror or error}; make room or mend the "
            "permissions, then resume the run"
        )

    def __enter__(self) -> "ArtifactWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ArtifactStore:
    """The data plane under one root.

    Args:
        root: A local folder or any URL that fsspec understands.
        storage_options: Passed to fsspec for a URL, over what it finds in the environment; see
            ``docs/artifacts.md``. They are never stored.

    Raises:
        ConfigurationError: Nothing is installed that speaks the URL's protocol.
    """

    def __init__(self, root: str | os.PathLike[str], **storage_options: Any) -> None:
        self._root = str(root)
        self._local_root = _local_path(self._root)
        self._remote: RemoteFiles | None = None
        if self._local_root is None:
            inherited = getattr(root, "storage_options", {})  # of a UPath
            self._remote = RemoteFiles(self._root, {**inherited, **storage_options})
        self._spool = SpoolFolder()
        self._is_swept = False

    @property
    def root(self) -> str:
        """The root as it was given but for passwords and queries: fit to be shown and stored."""
        return self._root if self._remote is None else self._remote.root

    @property
    def is_local(self) -> bool:
        """Whether files lie on this machine only."""
        return self._local_root is not None

    def writer(self, path: str) -> ArtifactWriter:
        """Start the file at ``path``, relative to the root.

        Raises:
            ArtifactError: The folder cannot be written.
        """
        if self._local_root is None:
            temporary = Path(self._spool_folder()) / os.urandom(8).hex()
            return ArtifactWriter(temporary, path, self._upload)
        target = self._local_root / path
        try:
            make_folder(target.parent, root=self._local_root, mode=_FOLDER_MODE)
            temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
            return ArtifactWriter(temporary, path, self._rename)
        except OSError as exc:
            raise ArtifactError(f"cannot write {path!r} under {self.root!r}: {exc}") from exc

    @contextlib.contextmanager
    def local(self, ref: ArtifactRef) -> Iterator[Path]:
        """Give a local path with the file's checked content, for the time of the block.

        Raises:
            ArtifactMissingError: It is gone.
            ArtifactAlteredError: Its size or its SHA-256 is not the recorded one.
        """
        if self._local_root is not None:
            path = self._local_root / ref.path
            self._check(path, ref)
            yield path
            return
        with self.spool() as folder:
            path = folder / Path(ref.path).name
            self._fetch(ref, path)
            yield path

    def spool(self) -> "contextlib.AbstractContextManager[Path]":
        """Give a local folder for transfers, removed after the block."""
        return held_folder(self._spool_folder())

    def remove_leftovers(self) -> None:
        """Remove what killed processes were transferring; what others transfer now stays.

        Also done when this object first transfers something.
        """
        if self._local_root is not None:
            remove_leftovers(str(self._local_root / "spool"))
        else:
            remove_leftovers(tempfile.gettempdir(), SPOOL_PREFIX)

    def has_folder(self, path: str) -> bool:
        """Whether there is a folder at ``path``, relative to the root."""
        if self._remote is not None:
            return self._remote.has_folder(path)
        assert self._local_root is not None
        return (self._local_root / path).is_dir()

    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        if self._remote is not None:
            self._remote.delete(path)
            return
        assert self._local_root is not None
        (self._local_root / path).unlink(missing_ok=True)

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; one that is gone already is no error."""
        if self._remote is not None:
            self._remote.delete_folder(path)
            return
        assert self._local_root is not None
        try:
            shutil.rmtree(self._local_root / path)
        except FileNotFoundError:  # also where another process removes it at the same time
            shutil.rmtree(self._local_root / path, ignore_errors=True)
        except OSError as exc:
            raise ArtifactError(
                f"{path!r} under {self.root!r} cannot be removed: {exc.strerror or exc}"
            ) from exc

    def close(self) -> None:
        """Remove what transfers left behind and let go of connections. Idempotent."""
        self._spool.close()
        if self._remote is not None:
            self._remote.close()

    def __enter__(self) -> "ArtifactStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, path: Path, ref: ArtifactRef) -> None:
        try:
            size = path.stat().st_size
            if size != ref.size_bytes:
                raise ArtifactAlteredError(
                    f"{ref.path!r} under {self.root!r} has {size} bytes, {ref.size_bytes} were "
                    "recorded: restore it, or cancel the run"
                )
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise ArtifactMissingError(
                f"{ref.path!r} is not under {self.root!r} any more: restore it, or check that "
                "every process uses the same artifact root"
            ) from None
        except OSError as exc:
            raise ArtifactError(
                f"{ref.path!r} under {self.root!r} cannot be read: {exc.strerror or exc}"
            ) from exc
        if digest != ref.sha256:
            raise ArtifactAlteredError(
                f"{ref.path!r} under {self.root!r} was changed after it was recorded: restore it, "
                "or cancel the run"
            )

    def _rename(self, temporary: Path, path: str) -> None:
        assert self._local_root is not None
        target = self._local_root / path
        publish(temporary, target)

    def _upload(self, temporary: Path, path: str) -> None:
        assert self._remote is not None
        self._remote.put(temporary, path)
        temporary.unlink()

    def _fetch(self, ref: ArtifactRef, path: Path) -> None:
        """Download and check; twice, before a cut connection is taken for an altered file."""
        try:
            self._download(ref, path)
            self._check(path, ref)
        except ArtifactAlteredError:
            self._download(ref, path)
            self._check(path, ref)

    def _download(self, ref: ArtifactRef, path: Path) -> None:
        assert self._remote is not None
        try:
            self._remote.get(ref.path, path)
        except FileNotFoundError:
            path.unlink(missing_ok=True)  # the check that follows names it

    def _spool_folder(self) -> str:
        if not self._is_swept:
            self._is_swept = True
            self.remove_leftovers()
        if self._local_root is not None:
            folder = self._local_root / "spool"
            try:
                make_folder(folder, root=self._local_root, mode=_FOLDER_MODE)
            except OSError as exc:
                raise ArtifactError(f"cannot write under {self.root!r}: {exc}") from exc
            return str(folder)
        return self._spool.path


class LocalArtifactStore(ArtifactStore):
    """The data plane in a local folder.

    Args:
        root: The folder; made with mode 0700 when it is first written to.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(Path(root).expanduser().absolute())


def _local_path(root: str) -> Path | None:
    """Return the folder that a root names; None for a URL of another place."""
    protocol, found, path = root.partition("://")
    if not found or protocol not in ("file", "local"):
        return None if found or "::" in root else Path(root)
    return Path(path)
