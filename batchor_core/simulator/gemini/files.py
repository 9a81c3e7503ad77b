"""The files of the Developer API: resumable uploads, and the answers of batches."""

import base64
import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.gemini.wire import GeminiError, field, page_bounds, rfc3339
from batchor_core.simulator.spool import Spool, StoredFile

_MAX_PAGE = 100
_RETENTION_S = 2 * 86_400.0
_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_MAX_ID_CHARS = 40
_RESULTS = "batch_results"


@dataclass(kw_only=True)
class _Session:
    """An upload that is not finished yet."""

    name: str
    path: Path
    display_name: str
    mime_type: str
    size_bytes: int
    received: int = 0


class FileShelf:
    """Files by name. Not thread-safe: the service's lock guards it.

    Args:
        spool: Where the bytes are.
        clock: The provider's time.
        max_bytes: Largest upload accepted.
    """

    def __init__(self, spool: Spool, clock: SimulatorClock, max_bytes: int) -> None:
        self._spool = spool
        self._clock = clock
        self._max_bytes = max_bytes
        self._files: dict[str, StoredFile] = {}
        self._labels: dict[str, tuple[str, str, str]] = {}
        self._sessions: dict[str, _Session] = {}

    def start(self, request: Any) -> str:
        """Begin an upload and return the id of its session.

        Raises:
            GeminiError: The name is taken or is none, or the file is too large.
        """
        file = field(request, "file")
        given = field(file, "name")
        file_id = str(given or f"sim-{uuid.uuid4().hex[:12]}").removeprefix("files/")
        if not _ID.fullmatch(file_id):
            raise GeminiError(400, f"Invalid file id {file_id!r}: [a-z0-9-], at most 40 characters")
        if self.find(f"files/{file_id}") is not None:
            raise GeminiError(409, f"Requested entity already exists: files/{file_id}")
        size = int(field(file, "sizeBytes") or 0)
        if size > self._max_bytes:
            raise GeminiError(400, f"The file is too large: at most {self._max_bytes} bytes.")
        session = self._spool.new_id("upload-")
        path = self._spool.path(session)
        path.touch()
        self._sessions[session] = _Session(
            name=f"files/{file_id}",
            path=path,
            display_name=str(field(file, "displayName") or ""),
            mime_type=str(field(file, "mimeType") or ""),
            size_bytes=size,
        )
        return session

    def append(
        self, session_id: str, chunk: bytes, *, offset: int, is_last: bool
    ) -> dict[str, Any] | None:
        """Take a piece of an upload; the file as JSON after the last one, else None.

        Raises:
            GeminiError: There is no such upload, or the piece does not follow the one before.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise GeminiError(404, "No such upload.")
        if offset != session.received:
            raise GeminiError(400, f"Expected offset {session.received}, not {offset}.")
        with session.path.open("ab") as handle:
            handle.write(chunk)
        session.received += len(chunk)
        if not is_last:
            return None
        del self._sessions[session_id]
        file = self._add(session.name, session.path, session.display_name, session.mime_type)
        return {"file": self.render(file)}

    def add_results(self, path: Path, unready_gets: int) -> str:
        """Keep a batch's answers under an id that is longer than the API's own calls take."""
        file = self._add(f"files/batch-{uuid.uuid4()}", path, "", _RESULTS)
        file.unready_gets = unready_gets
        return file.id

    def find(self, name: str) -> StoredFile | None:
        """The file, unless it never was, was deleted, or has expired."""
        file = self._files.get(name)
        if file is None or self._clock.now() >= (file.expires_at or 0.0):
            return None
        return file

    def get(self, name: str) -> StoredFile:
        """The file.

        Raises:
            GeminiError: It is not there, or its id is too long for this call.
        """
        if len(name.removeprefix("files/")) > _MAX_ID_CHARS:
            raise GeminiError(400, "* GetFileRequest.name: cannot be more than 40 characters long")
        file = self.find(name)
        if file is None:
            raise _no_file(name)
        return file

    def open(self, name: str) -> StoredFile:
        """The file, to be downloaded, which only answers of batches can be.

        Raises:
            GeminiError: It is not there (yet), or was uploaded.
        """
        file = self.find(name)
        if file is not None and file.unready_gets > 0:
            file.unready_gets -= 1
            file = None
        if file is None:
            raise GeminiError(404, f"Requested entity was not found: {name}")
        if file.purpose != _RESULTS:
            raise GeminiError(400, "Uploaded files cannot be downloaded.")
        return file

    def holds(self, path: Path) -> bool:
        """Whether these bytes are a file's."""
        return any(file.path == path for file in self._files.values())

    def forget(self, file: StoredFile, *, keep_bytes: bool = False) -> None:
        """Forget a file, whatever its id; its bytes may stay for who is still to read them."""
        self._files.pop(file.id, None)
        file.deleted = True
        if not keep_bytes:
            file.path.unlink(missing_ok=True)

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the list of files, newest first."""
        names = [name for name in reversed(self._files) if self.find(name)]
        start, end = page_bounds(query, names, _MAX_PAGE)
        shown = names[start:end]
        more = {"nextPageToken": shown[-1]} if shown and end < len(names) else {}
        return {"files": [self.render(self._files[name]) for name in shown], **more}

    def render(self, file: StoredFile) -> dict[str, Any]:
        """The file as JSON."""
        display_name, mime_type, digest = self._labels[file.id]
        return {
            "name": file.id,
            "displayName": display_name,
            "mimeType": mime_type,
            "sizeBytes": str(file.size_bytes),
            "createTime": rfc3339(file.created_at, self._clock),
            "updateTime": rfc3339(file.created_at, self._clock),
            "expirationTime": rfc3339(file.expires_at or 0.0, self._clock),
            "sha256Hash": digest,
            "uri": f"https://generativelanguage.googleapis.com/v1beta/{file.id}",
            "state": "ACTIVE",
            "source": "UPLOADED",
        }

    def clear(self) -> None:
        """Forget every file and upload, and remove the bytes."""
        for file in self._files.values():
            file.path.unlink(missing_ok=True)
        for session in self._sessions.values():
            session.path.unlink(missing_ok=True)
        self._files.clear()
        self._sessions.clear()

    def _add(self, name: str, path: Path, display_name: str, mime_type: str) -> StoredFile:
        now = self._clock.now()
        file = StoredFile(
            id=name,
            path=path,
            filename=display_name,
            purpose=mime_type,
            size_bytes=path.stat().st_size,
            created_at=now,
            expires_at=now + _RETENTION_S,
        )
        self._files[name] = file
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        encoded = base64.b64encode(digest.encode()).decode()
        self._labels[name] = (display_name, mime_type, encoded)
        return file


def _no_file(name: str) -> GeminiError:
    return GeminiError(
        403,
        f"You do not have permission to access the File {name.removeprefix('files/')} or it may "
        "not exist.",
    )
