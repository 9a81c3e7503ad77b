"""What all encoders of request lines share: what is the same for every row is encoded once."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from batchor_core.ids import CHUNK_TOKEN_CHARS
from batchor_core.model.items import PromptParts

encode_json = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="sorted").encode

_MOST_HEADS = 256


@dataclass(frozen=True, kw_only=True)
class LineFrame:
    """How a body becomes a line: ``prefix`` + custom id + ``middle`` + body + ``suffix``.

    Attributes:
        prefix: What stands before the custom id, the same in every line.
        middle: What stands between custom id and body.
        suffix: What stands behind the body, without the line's end.
        skipped: Bytes at the body's beginning that ``middle`` stands in for.
    """

    prefix: bytes
    middle: bytes
    suffix: bytes = b"}"
    skipped: int = 0

    def line(self, custom_id: str, body: bytes) -> bytes:
        r"""Return the line of a body, ending in ``\n``."""
        return b"".join(
            (self.prefix, custom_id.encode(), self.middle, body[self.skipped :], self.suffix, b"\n")
        )

    def relabel(self, line: bytes, token: str) -> bytes:
        """Return a line with its custom id moved to the chunk of ``token``."""
        start = len(self.prefix)
        return line[:start] + token.encode() + line[start + CHUNK_TOKEN_CHARS :]

    def body_offset(self, custom_id: str) -> int:
        """Return where in a line its body begins."""
        return len(self.prefix) + len(custom_id) + len(self.middle) - self.skipped


class _Head(NamedTuple):
    """The beginning of a body and the hash of all that precedes the prompt."""

    content: bytes
    hasher: Any


class BodyEncoder(ABC):
    """Encodes prompts; the prompt comes last in the body, so that a row costs its own text only.

    Args:
        identity: Provider, host and endpoint, as the first parts of every request key.
        frame: How a body becomes a line.
        system_prompt: The job's own; an item's ``PromptParts.system_prompt`` wins.
        opening: What stands in a body between its head and one plain text.
        closing: What stands behind that text.
    """

    inputs_per_request = 1

    def __init__(
        self,
        identity: tuple[str, str, str],
        *,
        frame: LineFrame,
        system_prompt: str | None,
        opening: bytes,
        closing: bytes,
    ) -> None:
        self._frame = frame
        self._system_prompt = system_prompt
        self._opening = opening
        self._closing = closing
        self._key_base = hashlib.blake2b(digest_size=16)
        self._key_base.update(("\0".join(identity) + "\0").encode())
        self._heads: dict[str | None, _Head] = {}

    def encode(self, prompt: str | PromptParts) -> tuple[bytes, bytes]:
        """Return (request key, canonical body)."""
        if isinstance(prompt, str):
            text, system = prompt, self._system_prompt
        elif prompt.is_plain and isinstance(prompt.prompt, str):
            text, system = prompt.prompt, prompt.system_prompt or self._system_prompt
        else:
            return self._encode_parts(prompt)
        head = self._heads.get(system) or self._new_head(system)
        tail = self._opening + encode_json(text) + self._closing
        key = head.hasher.copy()
        key.update(tail)
        return key.digest(), head.content + tail

    def line(self, custom_id: str, body: bytes) -> bytes:
        r"""Return the line of a body, ending in ``\n``."""
        return self._frame.line(custom_id, body)

    def relabel(self, line: bytes, token: str) -> bytes:
        """Return a sealed line with its custom id moved to the chunk of ``token``."""
        return self._frame.relabel(line, token)

    def body_offset(self, custom_id: str) -> int:
        """Return where in a line its body begins."""
        return self._frame.body_offset(custom_id)

    @abstractmethod
    def head(self, system: str | None, params: dict[str, Any]) -> bytes:
        """Return a body's beginning: all but the messages and the closing brace.

        Args:
            system: The instructions in force; None for none.
            params: The item's own parameters, over the config's.

        Raises:
            ValueError: A parameter is one of ours.
        """

    @abstractmethod
    def tail(self, parts: PromptParts) -> bytes:
        """Return a body's messages and its closing brace, as bytes that follow a head."""

    @abstractmethod
    def raw_body(self, body: dict[str, Any]) -> bytes:
        """Return a body that the user wrote, as it is sent.

        Raises:
            ValueError: It names something that is ours to decide.
        """

    def _encode_parts(self, parts: PromptParts) -> tuple[bytes, bytes]:
        if parts.body is not None:
            content = self.raw_body(dict(parts.body))
        else:
            system = parts.system_prompt or self._system_prompt
            content = self.head(system, dict(parts.params)) + self.tail(parts)
        key = self._key_base.copy()
        key.update(content)
        return key.digest(), content

    def _new_head(self, system: str | None) -> _Head:
        content = self.head(system, {})
        hasher = self._key_base.copy()
        hasher.update(content)
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[system] = _Head(content, hasher)
        return self._heads[system]
