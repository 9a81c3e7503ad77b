"""What a user hands in, row by row."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class BatchItem:
    """One input row.

    Attributes:
        item_id: The user's key, unique in the run.
        payload: What the prompt is built from: the prompt itself, or a mapping of columns.
        metadata: JSON values that are handed back with the result.
    """

    item_id: str
    payload: Any
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Media:
    """Something that is no text; exactly one of ``url``, ``data`` and ``path`` says where it is.

    Attributes:
        url: Where the provider fetches it, or a ``data:`` URL.
        data: Its bytes.
        path: A local file, or an fsspec URL, read when the row is ingested.
        media_type: As ``image/png``; default: what its first bytes or its name tell.
    """

    url: str | None = None
    data: bytes | None = None
    path: str | os.PathLike[str] | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("url", "data", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{type(self).__name__} needs one of url, data and path, not "
                f"{' and '.join(given) or 'none'}"
            )


@dataclass(frozen=True, kw_only=True)
class Image(_Media):
    """A picture in a prompt.

    Attributes:
        detail: How closely OpenAI's models look at it (``low``, ``high``, ``auto``); others
            take no notice.
    """

    detail: Literal["low", "high", "auto"] | None = None


@dataclass(frozen=True, kw_only=True)
class File(_Media):
    """A document in a prompt; PDF is what all providers read.

    Attributes:
        name: What the model is told it is called.
    """

    name: str | None = None


Part: TypeAlias = str | Image | File
"""A piece of a message; a text stands for itself."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: Who says it.
        content: A text, or texts and media in their order.
    """

    role: Literal["user", "assistant"]
    content: str | Sequence[Part]


@dataclass(frozen=True, kw_only=True)
class PromptParts:
    """What the model is asked for one item.

    Attributes:
        prompt: The user's message: a text, or texts and media in their order.
        system_prompt: Instructions that precede it; None for the job's own.
        messages: Turns before ``prompt``, as examples of what is wanted (few-shot).
        params: Fields of the request's body for this item alone, over the config's.
        body: The whole body as the provider takes it, in place of everything else here; of the
            config only the model is added, where the body names none.
    """

    prompt: str | Sequence[Part] = ""
    system_prompt: str | None = None
    messages: Sequence[Message] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is one text, perhaps with a system prompt."""
        return (
            isinstance(self.prompt, str)
            and not self.messages
            and not self.params
            and self.body is None
        )

    @property
    def media(self) -> list[Image | File]:
        """Everything in it that is no text."""
        contents = [message.content for message in self.messages] + [self.prompt]
        return [
            part
            for content in contents
            if not isinstance(content, str)
            for part in content
            if isinstance(part, _Media)
        ]
