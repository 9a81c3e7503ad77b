"""Files behind an fsspec URL, as four verbs whose faults are ours.

What each library does with a broken connection differs; here it is told apart once: gone, refused
(somebody has to mend it) or out of reach (a later cycle tries again).
"""

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

from batchor_core.artifacts.remote_errors import is_missing, is_transient, one_line
from batchor_core.errors import ArtifactError, ArtifactUnavailableError, ConfigurationError

_EXTRAS: Mapping[str, tuple[str, str]] = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "az": ("adlfs", "azure"),
    "abfs": ("adlfs", "azure"),
    "abfss": ("adlfs", "azure"),
}
"""Protocol → (the library that speaks it, our extra that brings it)."""

_PART_BYTES = 8 << 20
_PARTS = {"chunksize": _PART_BYTES, "max_concurrency": 4}
_PUT_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "s3fs": _PARTS,
    "gcsfs": {"chunksize": _PART_BYTES},
}
_GET_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3fs": _PARTS}
"""Keep transfers in small parts: by default s3fs holds ten parts of 50 MB in memory at a time."""

_MAGIC = frozenset("*?[]#")


class RemoteFiles:
    """Files under one URL. Threads may share it, and a forked child may go on using it.

    Args:
        url: A plain fsspec URL, not a chain of them.
        options: Passed to the file system. Neither they nor what the environment adds to them is
            ever stored or shown.

    Raises:
        ConfigurationError: Nothing is installed that speaks the protocol, or the URL is of no use.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._protocol = fsspec.core.split_protocol(url)[0] or ""
        self._library, self._extra = _EXTRAS.get(self._protocol, ("", ""))
        self._url = url
        self._options = dict(options)
        self._lock = threading.Lock()
        self._opened: tuple[int, Any, str] | None = None
        self.root = public_url(url)
        self._check()

    def put(self, source: Path, path: str) -> None:
        """Upload a local file; readers see all of it or nothing.

        Raises:
            ArtifactError: It cannot be written; nothing is left under its name.
            ArtifactUnavailableError: The place cannot be reached now.
        """
        with self._guard("written", path) as (fs, target):
            if self._library:  # one put of an object is atomic
                fs.put_file(str(source), target, **_PUT_OPTIONS.get(self._library, {}))
            else:
                _put_and_rename(fs, source, target)

    def get(self, path: str, target: Path) -> None:
        """Download a file.

        Raises:
            FileNotFoundError: It is gone.
            ArtifactError: It cannot be read.
            ArtifactUnavailableError: The place cannot be reached now.
        """
        with self._guard("read", path, missing_ok=True) as (fs, source):
            fs.get_file(source, str(target), **_GET_OPTIONS.get(self._library, {}))

    def delete(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._guard("deleted", path, missing_ok=True) as (fs, target),
        ):
            fs.rm(target)  # of one file too: older adlfs has no rm_file

    def delete_folder(self, path: str) -> None:
        """Remove all files below a folder; one that is gone already is no error."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._guard("deleted", path, missing_ok=True) as (fs, target),
        ):
            fs.rm(target, recursive=True)

    def has_folder(self, path: str) -> bool:
        """Whether there are files below a folder.

        Raises:
            ArtifactError: It cannot be read.
            ArtifactUnavailableError: The place cannot be reached now.
        """
        with self._guard("read", path) as (fs, target):
            fs.invalidate_cache(target)
            return bool(fs.isdir(target))

    def close(self) -> None:
        """Let go of connections. Idempotent; the next use opens new ones."""
        with self._lock:
            self._opened = None

    def _check(self) -> None:
        if "::" in self._protocol:
            raise ConfigurationError(
                f"artifacts cannot lie on {self.root!r}: give one plain URL, not a chain of them"
            )
        if _MAGIC & set(self._url):
            raise ConfigurationError(
                f"artifacts cannot lie on {self.root!r}: * ? [ ] and # are taken for patterns or "
                "versions there; choose another prefix, and give options apart from the URL"
            )
        try:
            fsspec.get_filesystem_class(self._protocol)
        except ImportError as exc:
            raise ConfigurationError(self._missing(exc)) from exc
        except ValueError as exc:
            raise ConfigurationError(
                f"artifacts cannot lie on {self._protocol}://: fsspec knows no such protocol"
            ) from exc

    def _missing(self, error: ImportError) -> str:
        if not self._extra:
            return f"artifacts on {self._protocol}:// need a library: {error}"
        return (
            f"artifacts on {self._protocol}:// need {self._library}: "
            f"pip install 'batchor-dagster[{self._extra}]'"
        )

    @contextlib.contextmanager
    def _guard(
        self, what: str, path: str, *, missing_ok: bool = False
    ) -> Iterator[tuple[Any, str]]:
        """Give file system and full path; what fails in the block leaves it as one of ours."""
        try:
            fs, base = self._filesystem()
            yield fs, f"{base}/{path}"
        except Exception as exc:  # each library raises whatever its own SDK raises
            if missing_ok and is_missing(exc):
                raise FileNotFoundError(path) from exc
            if not is_transient(exc):
                raise self._refused(what, path, exc) from exc
            raise ArtifactUnavailableError(
                f"{path!r} under {self.root!r} cannot be {what} now: "
                f"{one_line(exc, self._options)}; it is tried again"
            ) from exc

    def _refused(self, what: str, path: str, error: Exception) -> ArtifactError:
        return ArtifactError(
            f"{path!r} under {self.root!r} cannot be {what}: {one_line(error, self._options)}; "
            "mend that, then resume the run"
        )

    def _filesystem(self) -> tuple[Any, str]:
        """Return this process's file system and the root's path in it.

        It is ours alone: no listing is kept, since other processes add and remove files, and a
        forked child opens its own, since connections and their event loop do not survive a fork.
        """
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                fs, base = fsspec.url_to_fs(self._url, skip_instance_cache=True, **self._options)
                fs.dircache.use_listings_cache = False  # as an option, some would pass it on
                self._opened = (os.getpid(), fs, base.rstrip("/"))
            return self._opened[1:]


def public_url(url: str) -> str:
    """Return a URL without what may be secret in it: a user with a password, and its query."""
    protocol, found, rest = url.partition("://")
    if not found:
        return url
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    if protocol in ("abfs", "abfss") and ":" not in user:
        host = f"{user}{at}{host}"  # there the container stands before the @
    return f"{protocol}://{host}{slash}{path}".split("?", 1)[0]


def _put_and_rename(fs: Any, source: Path, target: str) -> None:
    """Write beside the target first: elsewhere than in an object store a put is no atomic step."""
    folder, _, name = target.rpartition("/")
    fs.makedirs(folder, exist_ok=True)
    temporary = f"{folder}/.{name}.{uuid.uuid4().hex}.tmp"
    try:
        fs.put_file(str(source), temporary)
        fs.mv(temporary, target)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            fs.rm_file(temporary)
        raise
