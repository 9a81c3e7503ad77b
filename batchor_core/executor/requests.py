"""From blocks of rows to encoded requests: what ingestion seals and a fingerprint is made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from batchor_core.errors import SourceError
from batchor_core.executor.cycle import Attachment
from batchor_core.executor.plan import RunPlan
from batchor_core.model.items import File, Image, PromptParts
from batchor_core.planning.media import MediaSize, media_size
from batchor_core.planning.prompts import Prompt
from batchor_core.sources.protocol import CheckpointedItemSource, ItemBlock, ItemSource
from batchor_core.sources.rows import items_of

Encoded = tuple[bytes, bytes]
"""(request key, canonical body)."""

_LINE_OVERHEAD_BYTES = 96
"""Custom id, method and URL of a request line, rounded up."""


@dataclass(frozen=True, kw_only=True)
class RequestBlock:
    """A block of rows as requests.

    Attributes:
        media: What is no text in the requests that have such, by their place in the block.
    """

    ids: Sequence[str]
    members: Sequence[int]
    encoded: list[Encoded]
    media: Mapping[int, MediaSize]

    @property
    def keys(self) -> list[bytes]:
        """The requests' keys."""
        return [key for key, _ in self.encoded]

    def weights(self, tokens_per_byte: float) -> list[tuple[int, float]]:
        """Return (bytes of its line, input tokens) of each request: what chunks are packed by."""
        weights = [
            (len(body) + _LINE_OVERHEAD_BYTES, len(body) * tokens_per_byte)
            for _, body in self.encoded
        ]
        for i, media in self.media.items():
            text_bytes = max(0, len(self.encoded[i][1]) - media.sent_bytes)
            weights[i] = (weights[i][0], text_bytes * tokens_per_byte + media.tokens)
        return weights


class RequestReader:
    """Encodes the rows of a run's source.

    Args:
        plan: The run's encoder.
        attachment: The source and how its rows become prompts.
    """

    def __init__(self, plan: RunPlan, attachment: Attachment) -> None:
        self._encode = plan.encoder.encode
        self._source = attachment.source
        self._prompts = attachment.prompts

    def read(self, block: ItemBlock, first_row: int) -> RequestBlock:
        """Return a block's requests.

        Args:
            block: The rows.
            first_row: Number in the run of the block's first row.

        Raises:
            SourceError: A prompt cannot be made or sent; the message names where it is.
        """
        ids = _ids_of(block, first_row)
        members = block.partitions if block.partitions is not None else [0] * len(block)
        prompts = self._prompts_of(block, first_row)
        encoded: list[Encoded] = []
        media: dict[int, MediaSize] = {}
        try:
            for prompt in prompts:
                if not isinstance(prompt, str):
                    _check_parts(prompt)
                    if not prompt.is_plain:
                        media[len(encoded)] = media_size(prompt)
                encoded.append(self._encode(prompt))  # its length names the row that fails
        except (ValueError, TypeError, AttributeError) as exc:
            row = len(encoded)
            raise SourceError(
                f"the prompt of row {first_row + row} (counted from 0) of {self._source.label}, "
                f"item {ids[row]!r}, cannot be sent: {_why(exc)}"
            ) from exc
        return RequestBlock(ids=ids, members=members, encoded=encoded, media=media)

    def _prompts_of(self, block: ItemBlock, first_row: int) -> list[Prompt]:
        if block.frame is None:
            return self._prompts.of_items(block.items or (), first_row)
        return self._prompts.of_frame(block.frame, lambda: items_of(block, first_row), first_row)


def _check_parts(prompt: Any) -> None:
    """Refuse what a user's function made of a row before it becomes a ``null`` in a request."""
    if not isinstance(prompt, PromptParts):
        raise TypeError(f"it is a {type(prompt).__name__}, not a text")
    system = prompt.system_prompt
    if not (system is None or isinstance(system, str)):
        raise TypeError(f"its system prompt is a {type(system).__name__}, not a text")
    for content in (prompt.prompt, *(message.content for message in prompt.messages)):
        parts = content if isinstance(content, (list, tuple)) else [content]
        for part in parts:
            if not isinstance(part, (str, Image, File)):
                raise TypeError(f"it is a {type(part).__name__}, not a text")
        if not parts:
            raise ValueError("it has no parts")


def _why(error: Exception) -> str:
    if isinstance(error, (UnicodeError, AttributeError)):
        return f"it cannot be encoded ({type(error).__name__})"
    return str(error)


def _ids_of(block: ItemBlock, first_row: int) -> Sequence[str]:
    if block.item_ids is not None:
        return block.item_ids
    if block.items is not None:
        return [item.item_id for item in block.items]
    return [str(row) for row in range(first_row, first_row + len(block))]


def read_requests(
    plan: RunPlan, attachment: Attachment
) -> Iterator[tuple[Sequence[str], Sequence[bytes], Sequence[int]]]:
    """Yield (item ids, request keys, members) of a whole source, a block at a time."""
    reader = RequestReader(plan, attachment)
    row = 0
    for block in attachment.source.blocks():
        read = reader.read(block, row)
        row += len(block)
        yield read.ids, read.keys, read.members


def source_mark(source: ItemSource) -> str | None:
    """Return what tells that a source was not changed; None for one that is read only once."""
    if not hasattr(type(source), "fingerprint") or not getattr(source, "reopenable", True):
        return None
    return cast("CheckpointedItemSource", source).fingerprint()
