"""Bytes of input files: local or remote, plain or compressed, read from an offset."""

import codecs
import errno
import functools
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa
from upath import UPath

from batchor_core.errors import SourceError
from batchor_core.sources.protocol import Position
from batchor_core.sources.row_positions import position_number

BLOCK_BYTES = 16 << 20
"""Input bytes in a block, at most a few records more: bounds memory where records are long."""

LINE_BYTES = 256 << 20
"""The longest line that is read: a file without line feeds would be held as a whole."""

WEB_PROTOCOLS = frozenset({"http", "https"})

_BUFFER_BYTES = 1 << 20
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_UTF_8 = "utf-8"
_TRANSCODED_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TextPosition:
    """Where a record starts in a text file.

    Attributes:
        offset: Bytes before it, after decompression.
        line: Its line, from 1.
    """

    offset: int
    line: int

    @classmethod
    def parse(cls, position: Position, label: str) -> "TextPosition":
        """Read a stored position.

        Raises:
            SourceError: It was made by another kind of source.
        """
        return cls(
            offset=position_number(position, "offset", label),
            line=position_number(position, "line", label),
        )

    def as_json(self) -> dict[str, int]:
        """Return the form that blocks carry."""
        return {"offset": self.offset, "line": self.line}


class InputFile:
    """One file, by local path or fsspec URL.

    Args:
        path: Where it is.
        label: What messages call it; default: its name.
        encoding: How a text file is encoded.

    Raises:
        SourceError: Nothing is known about this kind of URL, or this encoding.
    """

    def __init__(
        self, path: "str | os.PathLike[str] | UPath", label: str = "", encoding: str = "utf-8"
    ) -> None:
        try:
            self._path = UPath(path)
        except (ValueError, ImportError) as error:
            raise SourceError(f"cannot read this kind of location: {error}") from error
        # Only the name: a URL may carry a signature or a password.
        name = self._path.name
        own = name.partition("?")[0] if self._path.protocol in WEB_PROTOCOLS else name
        self.label = label or own
        self.encoding = _encoding_name(encoding)

    @classmethod
    def of(cls, path: "str | os.PathLike[str] | InputFile", encoding: str = "utf-8") -> "InputFile":
        """Return the file at a path; one that is a file already stays what it is."""
        return path if isinstance(path, InputFile) else cls(path, encoding=encoding)

    @property
    def suffixes(self) -> tuple[str, str]:
        """The name's ending in lower case without compression, and the compression's or ''."""
        name = PurePosixPath(self.label.lower())
        if name.suffix not in _CODECS:
            return name.suffix, ""
        return PurePosixPath(name.stem).suffix, name.suffix

    def open_stored(self) -> AbstractContextManager[IO[bytes]]:
        """Open the bytes as they are stored, seekable."""
        return self._path.open("rb")

    @contextmanager
    def open(self, offset: int = 0) -> Iterator[io.BufferedReader]:
        """Open the decompressed bytes; ``tell`` of the stream counts from the start of the file.

        Text of another encoding is UTF-8 here, also to ``offset`` and ``tell``.

        Raises:
            SourceError: The file has fewer than ``offset`` bytes, or is encoded otherwise.
        """
        codec = _CODECS.get(self.suffixes[1])
        with self.open_stored() as stored:
            raw: Any = _Decompressed(stored, codec) if codec else stored
            if self.encoding != _UTF_8:
                raw = _Transcoded(raw, self.encoding, self.label)
            is_stored = raw is stored
            stream: io.BufferedReader = io.BufferedReader(raw, _BUFFER_BYTES)
            if not (_seek(stream, offset) if is_stored else _skip(stream, offset)):
                raise SourceError(f"{self.label} has become shorter: nothing at byte {offset}")
            yield stream

    def sha256(self, shape: str) -> str:
        """Return the SHA-256, in hex, of ``shape`` and the stored bytes.

        Raises:
            SourceError: The file cannot be read.
        """
        digest = hashlib.sha256(shape.encode())
        if self.encoding != _UTF_8:
            digest.update(f"{self.encoding}\n".encode())
        with read_errors(self.label), self.open_stored() as stream:
            while data := stream.read(_BUFFER_BYTES):
                digest.update(data)
        return digest.hexdigest()


def lines_of(stream: io.BufferedReader) -> Iterator[bytes]:
    """Yield the lines of a stream with their line feeds.

    The rest of one that is too long comes as lines of its own: whoever takes the lines checks that
    none of them has ``LINE_BYTES``.
    """
    return iter(functools.partial(stream.readline, LINE_BYTES), b"")


@contextmanager
def read_errors(label: str) -> Iterator[None]:
    """Turn what opening and reading may raise into a ``SourceError`` of one line."""
    try:
        yield
    except ImportError as error:  # fsspec names the package to install
        raise SourceError(f"cannot read {label}: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot read {label}: {_reason(error)}") from error


def _encoding_name(encoding: str) -> str:
    """Return Python's name of an encoding, with or without byte order mark the same for UTF-8."""
    try:
        "".encode(encoding)  # refuses also what is no encoding of text
    except LookupError as error:
        raise SourceError(f"there is no text encoding {encoding!r}") from error
    return codecs.lookup(encoding).name.removesuffix("-sig")


def _reason(error: OSError) -> str:
    """Return why, without the URL that file systems like to put into their messages."""
    if error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):
        return os.strerror(errno.ENOENT)
    return type(error).__name__


def _seek(stream: io.BufferedReader, offset: int) -> bool:
    if offset and stream.seek(0, os.SEEK_END) < offset:
        return False
    stream.seek(offset)
    return True


def _skip(stream: io.BufferedReader, offset: int) -> bool:
    """Read up to the offset: a compressed or transcoded file has no other way."""
    while offset and (data := stream.read(min(offset, _BUFFER_BYTES))):
        offset -= len(data)
    return not offset


class _Decompressed(io.RawIOBase):
    """Arrow's decompressor as a Python stream.

    Arrow's, because the readers of ``zstandard`` take a file that was cut off for a whole one.
    """

    def __init__(self, stored: IO[bytes], codec: str) -> None:
        self._codec = codec
        self._source: Any = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), codec)
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.read(len(buffer))
        except OSError as error:
            if error.errno is not None:
                raise
            raise OSError(errno.EIO, f"not a whole {self._codec} file") from error
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Transcoded(io.RawIOBase):
    """Text of any encoding as a stream of UTF-8.

    Not decoded line by line: in UTF-16 the byte of a line feed is part of other characters too.
    """

    def __init__(self, stored: Any, encoding: str, label: str) -> None:
        self._stored = stored
        self._encoding = encoding
        self._label = label
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._unread = b""
        self._position = 0
        self._line = 1
        self._is_at_end = False

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        while not self._unread and not self._is_at_end:
            data = self._stored.read(_TRANSCODED_BYTES)
            self._is_at_end = not data
            self._unread = self._in_utf_8(data)
        count = min(len(buffer), len(self._unread))
        buffer[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        self._position += count
        return count

    def _in_utf_8(self, data: bytes) -> bytes:
        try:
            text = self._decoder.decode(data, final=not data).encode()
        except UnicodeError as error:
            raise self._failure(error) from error
        self._line += text.count(b"\n")
        return text

    def _failure(self, error: UnicodeError) -> SourceError:
        line, byte = self._line, ""
        if isinstance(error, UnicodeDecodeError):
            before = error.object[: error.start].decode(error.encoding, "ignore")
            line += before.count("\n")
            byte = f" (byte 0x{error.object[error.start]:02x})"
        return SourceError(f"{self._label}, line {line}: not {self._encoding}{byte}")
