"""A folder in Google Cloud Storage, where Vertex AI reads requests and writes answers.

The SDK never talks to it (facts on providers, 1.4); fsspec does. Every failure leaves this module
as a ``ProviderError``.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec

from batchor_core.errors import ConfigurationError, ProviderError
from batchor_core.model.faults import Fault, FaultKind, FaultOwner
from batchor_core.providers.wire import one_line

_BLOCK_BYTES = 8 << 20
_MESSAGE_CHARS = 300
_CREDENTIAL_ERRORS = frozenset({"RefreshError", "DefaultCredentialsError", "MalformedError"})


class Bucket:
    """Files under ``gs://`` addresses. Threads may share it.

    Args:
        options: Passed to the file system: credentials, and where tests have a stand-in its
            address.
        describe: Takes what is secret out of a message.

    Raises:
        ConfigurationError: The library that speaks to Google Cloud Storage is not installed.
    """

    def __init__(self, options: Mapping[str, Any], describe: Callable[[str], str]) -> None:
        self._options = dict(options)
        self._describe = describe
        self._lock = threading.Lock()
        self._opened: Any = None
        try:
            fsspec.get_filesystem_class("gs")
        except ImportError as exc:
            raise ConfigurationError(
                "Gemini on Vertex AI stages its files in Google Cloud Storage, which needs gcsfs: "
                "pip install 'batchor-dagster[gcs]'"
            ) from exc

    def put(self, source: Path, uri: str, progress: Callable[[], None]) -> None:
        """Upload a local file; what was there under this address is replaced as a whole."""
        with self._mapped(uri) as fs:
            target = fs.open(uri, "wb", block_size=_BLOCK_BYTES)
        try:
            with source.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    with self._mapped(uri):
                        target.write(block)
                    progress()
            with self._mapped(uri):
                target.close()
        except BaseException:
            target.closed = True  # else it would be completed as it is when it is forgotten
            raise

    def get(self, uri: str, target: Path, progress: Callable[[], None]) -> None:
        """Download a file."""
        with self._mapped(uri) as fs:
            source = fs.open(uri, "rb", block_size=_BLOCK_BYTES)
        with source, target.open("wb") as file:
            while block := self._next_block(source, uri):
                file.write(block)
                progress()

    def list_files(self, folder: str) -> Sequence[str]:
        """Return the addresses of all files below a folder, sorted; none if it does not exist."""
        with self._mapped(folder) as fs:
            try:
                found = fs.find(folder.rstrip("/") + "/")
            except FileNotFoundError:
                return []
            return [f"gs://{path}" for path in sorted(found)]

    def delete_folder(self, folder: str) -> None:
        """Remove all files below a folder; one that is gone already is no error."""
        with self._mapped(folder) as fs, contextlib.suppress(FileNotFoundError):
            fs.rm(folder.rstrip("/"), recursive=True)

    def close(self) -> None:
        """Let go of connections. Idempotent; the next use opens new ones."""
        with self._lock:
            self._opened = None

    def _next_block(self, source: Any, uri: str) -> bytes:
        with self._mapped(uri):
            return bytes(source.read(_BLOCK_BYTES))

    @contextlib.contextmanager
    def _mapped(self, uri: str) -> Iterator[Any]:
        try:
            yield self._filesystem()
        except Exception as exc:  # noqa: BLE001 - gcsfs raises whatever its libraries raise
            fault = _fault_of(exc, self._describe(f"{uri}: {exc}"))
            raise ProviderError(f"{fault.code}: {fault.message}", fault) from None

    def _filesystem(self) -> Any:
        with self._lock:
            if self._opened is None:
                fs = fsspec.filesystem("gs", skip_instance_cache=True, **self._options)
                fs.dircache.use_listings_cache = False  # Vertex AI adds files behind our back
                self._opened = fs
            return self._opened


def _fault_of(error: Exception, message: str) -> Fault:
    kind, owner = FaultKind.TRANSIENT, FaultOwner.PROVIDER
    status = str(getattr(error, "code", "") or getattr(error, "status", ""))
    names = {each.__name__ for each in type(error).__mro__}
    if isinstance(error, FileNotFoundError) or status == "404":
        kind = FaultKind.MISSING
    elif (
        isinstance(error, PermissionError) or status in ("401", "403") or names & _CREDENTIAL_ERRORS
    ):
        kind, owner = FaultKind.ACCOUNT, FaultOwner.ACCOUNT
    return Fault(
        kind=kind,
        owner=owner,
        code=f"gcs_{type(error).__name__}",
        message=one_line(message)[:_MESSAGE_CHARS],
    )
