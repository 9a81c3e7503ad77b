"""Reading a multipart upload from the wire straight to disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from python_multipart import MultipartParser
from python_multipart.multipart import parse_options_header
from starlette.requests import Request


class UploadError(Exception):
    """The request body is not a usable multipart form."""


class MultipartUpload:
    """Form fields in memory, the file part on disk.

    Starlette's own form parser writes a temporary file first and leaves it open when the client
    vanishes in the middle of the upload; this one writes each byte once.

    Args:
        content_type: The request's header, for the boundary.
        path: Where the bytes of the part named `file` go.
    """

    def __init__(self, content_type: str, path: Path) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise UploadError("a multipart/form-data body is needed")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size_bytes = 0
        self._path = path
        self._handle: BinaryIO | None = None
        self._parser = self._new_parser(options[b"boundary"])
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._value = b""
        self._in_file = False

    async def receive(self, request: Request) -> None:
        """Read the whole request body; afterwards the fields and the file are complete.

        Raises:
            UploadError: The body is no multipart form.
            ClientDisconnect: The client went away; the caller removes the file.
        """
        try:
            with self._path.open("wb") as handle:
                self._handle = handle
                async for chunk in request.stream():
                    self._parser.write(chunk)
                self._parser.finalize()
        except ValueError as error:
            raise UploadError(str(error)) from error

    def _new_parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_text,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
            },
        )

    def _begin(self) -> None:
        self._headers = {}
        self._value = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_text(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = _text(options, b"name")
        self._in_file = self._name == "file" and b"filename" in options
        if self._in_file:
            self.filename = _text(options, b"filename")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file and self._handle is not None:
            self._handle.write(memoryview(data)[start:end])
            self.size_bytes += end - start
        else:
            self._value += data[start:end]

    def _end(self) -> None:
        if not self._in_file:
            self.fields[self._name] = self._value.decode("utf-8", "replace")


def _text(options: Mapping[bytes, bytes], key: bytes) -> str:
    return options.get(key, b"").decode("utf-8", "replace")
