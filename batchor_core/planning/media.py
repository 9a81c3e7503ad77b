"""Pictures and documents in prompts: found out, read, and counted."""

import base64
import mimetypes
import os
from dataclasses import dataclass
from pathlib import PurePosixPath

from upath import UPath

from batchor_core.model.items import File, Image, PromptParts

IMAGE_TOKENS = 1_600
"""Estimate for one picture: what a provider counts at most for one that it scales to its own
size (Anthropic's vision guide; OpenAI's and Gemini's counts are of the same order)."""

BYTES_PER_FILE_TOKEN = 20
"""Estimate for a document: a PDF page is some 60 KB and 1,500 to 3,000 tokens."""

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


@dataclass(frozen=True, kw_only=True)
class LoadedMedia:
    """A picture or document as it is sent: either by its address, or its bytes as base64 text."""

    media_type: str | None
    url: str | None = None
    base64: str | None = None

    @property
    def data_url(self) -> str:
        """Its address; of bytes, one that holds them."""
        return self.url or f"data:{self.media_type};base64,{self.base64}"


@dataclass(frozen=True, kw_only=True)
class MediaSize:
    """What media add to a request.

    Attributes:
        sent_bytes: Bytes of the request that are no text.
        tokens: Estimated input tokens.
    """

    sent_bytes: int = 0
    tokens: int = 0


def load_media(part: Image | File) -> LoadedMedia:
    """Read a picture or document.

    Raises:
        ValueError: It cannot be read, or nothing tells what it is.
    """
    if part.url is not None:
        return _of_url(part)
    data = part.data if part.data is not None else _read(part.path)
    media_type = part.media_type or _sniffed(data) or _guessed(part)
    if media_type is None:
        raise ValueError(f"the type of {_name(part)} is not known: give media_type")
    return LoadedMedia(media_type=media_type, base64=base64.b64encode(data).decode())


def media_size(parts: PromptParts) -> MediaSize:
    """Return what the media of a prompt add to its request; nothing is read but file sizes."""
    sent, tokens = 0, 0
    for part in parts.media:
        size = _size(part)
        sent += size * 4 // 3
        is_image = isinstance(part, Image)
        tokens += IMAGE_TOKENS if is_image else max(IMAGE_TOKENS, size // BYTES_PER_FILE_TOKEN)
    return MediaSize(sent_bytes=sent, tokens=tokens)


def _of_url(part: Image | File) -> LoadedMedia:
    url = part.url or ""
    if not url.startswith("data:"):
        return LoadedMedia(url=url, media_type=part.media_type or _guessed(part))
    head, _, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if encoding != "base64" or not media_type:
        raise ValueError("a data: URL has to be data:<type>;base64,<data>")
    return LoadedMedia(media_type=media_type, base64=data)


def _read(path: str | os.PathLike[str] | None) -> bytes:
    assert path is not None
    try:
        return bytes(UPath(path).read_bytes())
    except (OSError, ValueError, ImportError) as exc:
        raise ValueError(f"{os.fspath(path)!r} cannot be read: {exc}") from exc


def _size(part: Image | File) -> int:
    if part.data is not None:
        return len(part.data)
    if part.url is not None:
        return len(part.url) * 3 // 4 if part.url.startswith("data:") else 0
    assert part.path is not None
    try:
        return int(UPath(part.path).stat().st_size)
    except (OSError, ValueError, ImportError):
        return 0


def _sniffed(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _SIGNATURES if data.startswith(mark)), None)


def _guessed(part: Image | File) -> str | None:
    address = part.url or (os.fspath(part.path) if part.path is not None else _name(part))
    return mimetypes.guess_type(PurePosixPath(address.partition("?")[0]).name)[0]


def _name(part: Image | File) -> str:
    if isinstance(part, File) and part.name:
        return part.name
    return repr(os.fspath(part.path)) if part.path is not None else "the given bytes"
