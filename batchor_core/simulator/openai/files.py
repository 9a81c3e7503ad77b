"""The files of the OpenAI protocol: uploads and results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.openai.wire import WireError, list_body, page_of
from batchor_core.simulator.spool import Spool, StoredFile

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
_MAX_PAGE = 10_000
_RETENTION_S = 30 * 86_400.0
_EXPIRES_BY_ITSELF = ("batch", "batch_output")


class FileShelf:
    """Files by id, in order of creation. Not thread-safe: the service's lock guards it.

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

    def check_upload(self, fields: Mapping[str, str], filename: str | None, size: int) -> None:
        """Refuse an upload that the provider would refuse.

        Raises:
            WireError: With status 400 and the reason.
        """
        purpose = fields.get("purpose")
        if purpose not in PURPOSES:
            message = f"'{purpose}' is not one of {list(PURPOSES)} - 'purpose'"
            raise WireError(400, message, param="purpose")
        if filename is None:
            raise WireError(400, "'file' is a required property", param="file")
        if purpose == "batch" and not filename.endswith(".jsonl"):
            raise WireError(400, "Invalid file format for Batch API. Must be .jsonl")
        if size > self._max_bytes:
            message = f"File is too large: {size} bytes. The limit is {self._max_bytes} bytes."
            raise WireError(400, message, param="file")
        _expiry_s(fields)

    def add_upload(
        self, path: Path, fields: Mapping[str, str], filename: str, size: int
    ) -> StoredFile:
        """Keep a checked upload."""
        return self.add(
            path,
            filename=filename,
            purpose=fields["purpose"],
            size_bytes=size,
            expiry_s=_expiry_s(fields),
        )

    def add(
        self,
        path: Path,
        *,
        filename: str,
        purpose: str,
        size_bytes: int,
        expiry_s: float | None = None,
    ) -> StoredFile:
        """Keep a file whose name in the spool is its id; files of batches expire anyhow."""
        now = self._clock.now()
        if expiry_s is None and purpose in _EXPIRES_BY_ITSELF:
            expiry_s = _RETENTION_S
        file = StoredFile(
            id=path.name,
            path=path,
            filename=filename,
            purpose=purpose,
            size_bytes=size_bytes,
            created_at=now,
            expires_at=None if expiry_s is None else now + expiry_s,
        )
        self._files[file.id] = file
        return file

    def find(self, file_id: str) -> StoredFile | None:
        """The file, unless it never was, was deleted, or has expired."""
        file = self._files.get(file_id)
        if file is None or (file.expires_at is not None and self._clock.now() >= file.expires_at):
            return None
        return file

    def get(self, file_id: str) -> StoredFile:
        """The file.

        Raises:
            WireError: With status 404.
        """
        file = self.find(file_id)
        if file is None:
            raise _no_file(file_id)
        return file

    def open(self, file_id: str) -> StoredFile:
        """The file, to be read; one that is not ready yet is as good as none.

        Raises:
            WireError: With status 404.
        """
        file = self.get(file_id)
        if file.unready_gets > 0:
            file.unready_gets -= 1
            raise _no_file(file_id)
        return file

    def delete(self, file_id: str, *, keep_bytes: bool) -> dict[str, Any]:
        """Forget a file; its bytes stay for a batch that is still to read them."""
        file = self.get(file_id)
        del self._files[file_id]
        file.deleted = True
        if not keep_bytes:
            file.path.unlink(missing_ok=True)
        return {"id": file_id, "object": "file", "deleted": True}

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """A page of the list of files, newest first unless `order=asc`."""
        purpose = query.get("purpose")
        files = [
            file
            for file_id in self._files
            if (file := self.find(file_id)) and purpose in (None, file.purpose)
        ]
        if query.get("order", "desc") != "asc":
            files.reverse()
        data, has_more = page_of(files, query, default=_MAX_PAGE, highest=_MAX_PAGE)
        return list_body([self.render(file) for file in data], has_more=has_more)

    def render(self, file: StoredFile) -> dict[str, Any]:
        """The file object as JSON."""
        unix = self._clock.unix
        return {
            "id": file.id,
            "object": "file",
            "bytes": file.size_bytes,
            "created_at": unix(file.created_at),
            "expires_at": None if file.expires_at is None else unix(file.expires_at),
            "filename": file.filename,
            "purpose": file.purpose,
            "status": "processed",
            "status_details": None,
        }

    def clear(self) -> None:
        """Forget every file and remove the bytes."""
        for file in self._files.values():
            file.path.unlink(missing_ok=True)
        self._files.clear()


def _no_file(file_id: str) -> WireError:
    return WireError(404, f"No such File object: {file_id}", param="id")


def _expiry_s(fields: Mapping[str, str]) -> int | None:
    given = fields.get("expires_after[seconds]")
    if given is None:
        return None
    return checked_expiry_s(int(given) if given.isdigit() else None, "expires_after")


def checked_expiry_s(seconds: object, param: str) -> int:
    """An expiry in seconds, within an hour and thirty days.

    Raises:
        WireError: With status 400.
    """
    if not isinstance(seconds, int) or not 3600 <= seconds <= _RETENTION_S:
        message = f"'{param}.seconds' must be an integer between 3600 and 2592000."
        raise WireError(400, message, param=f"{param}.seconds")
    return seconds
