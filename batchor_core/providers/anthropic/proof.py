"""Whose results they are: Anthropic's batches carry nothing of ours but the custom ids."""

from collections.abc import Iterator

from batchor_core.ids import CHUNK_TOKEN_CHARS
from batchor_core.providers.anthropic.results import decode_line

PROOF_BLOCK_BYTES = 64 << 10
_PROOF_LINES = 100
_MOST_PROOF_BYTES = 16 << 20
"""How much of a batch's results is read to see whose they are."""


def names_chunk(blocks: Iterator[bytes], chunk_token: str) -> bool | None:
    """Return whether one of the first lines is for an item of a chunk; None if none can be read.

    Not the first line alone: one that is not ours may have strayed in.
    """
    ids = 0
    for line in _beginning(blocks):
        answer = decode_line(line)
        if answer is None:
            continue
        if answer.custom_id[:CHUNK_TOKEN_CHARS] == chunk_token:
            return True
        ids += 1
        if ids >= _PROOF_LINES:
            break
    return False if ids else None


def _beginning(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield complete lines, as far as we read at most, and a last one without an end."""
    rest, seen = b"", 0
    for block in blocks:
        seen += len(block)
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if seen > _MOST_PROOF_BYTES:
            return
    yield rest
