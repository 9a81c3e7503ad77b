"""Fingerprints of rows: the same in every process, however the rows are cut into blocks."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from batchor_core.errors import SourceError


def rows_fingerprint(shape: str, blocks: Iterable[Iterable[Any]], label: str) -> str:
    """Return the SHA-256, in hex, of all rows of all blocks.

    Args:
        shape: What else the rows depend on: names and types of the columns.
        blocks: The rows; where one block ends and the next begins makes no difference.
        label: What messages call the source.

    Raises:
        SourceError: A value has no form that another process would reproduce.
    """
    digest = hashlib.sha256(shape.encode())
    for block in blocks:
        try:
            digest.update(b"".join(map(_encode, block)))
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"{label}: a value cannot be fingerprinted ({error}); "
                "use text, numbers, dates, lists, mappings or dataclasses"
            ) from error
    return digest.hexdigest()


def _encode(row: Any) -> bytes:
    try:
        return _ENCODER.encode(row)
    except OverflowError:  # MessagePack ends at 64 bits
        return repr(row).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if callable(getattr(value, "model_dump", None)):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__}")


# MessagePack tells a null from a NaN and text from bytes, which JSON does not; a set's order
# differs from process to process unless it is sorted.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")
