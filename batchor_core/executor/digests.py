"""Hashes of rows: what makes a run's fingerprint, and whether its item ids are unique."""

import hashlib
from collections.abc import Iterator, Sequence

import polars as pl
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.errors import DuplicateItemIdError
from batchor_core.model.records import ChunkRecord

_IDS_PER_PASS = 2_000_000
_HASH_BITS = 64
_NO_HASHES = pl.Series(dtype=pl.UInt64)


class RowsDigest:
    """Hashes (item id, request key) of rows in order, per member.

    The result depends on the rows alone, not on how they are cut into chunks; a digest that was
    interrupted is rebuilt from the sealed items files.
    """

    def __init__(self) -> None:
        self._members: dict[int, tuple[hashlib.blake2b, hashlib.blake2b, list[int]]] = {}

    def add(self, ids: Sequence[str], keys: Sequence[bytes], members: Sequence[int]) -> None:
        """Feed further rows; those of one member are usually contiguous."""
        start = 0
        while start < len(ids):
            member = members[start]
            end = len(ids)
            if members[-1] != member or start:
                end = next((i for i in range(start, len(ids)) if members[i] != member), end)
            self._add(member, ids[start:end], keys[start:end])
            start = end

    def add_chunk(self, artifacts: ArtifactStore, chunk: ChunkRecord) -> None:
        """Feed the rows of a sealed chunk."""
        with artifacts.local(chunk.items) as path:
            table = pq.read_table(path, columns=["item_id", "request_key", "member"])
        self.add(
            table["item_id"].to_pylist(),
            table["request_key"].to_pylist(),
            table["member"].to_pylist(),
        )

    def member_digests(self) -> dict[int, tuple[str, int]]:
        """Return (digest, number of rows) by member."""
        return {
            member: (
                hashlib.blake2b(ids.digest() + keys.digest(), digest_size=16).hexdigest(),
                count[0],
            )
            for member, (ids, keys, count) in sorted(self._members.items())
        }

    def _add(self, member: int, ids: Sequence[str], keys: Sequence[bytes]) -> None:
        state = self._members.get(member)
        if state is None:
            state = (hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16), [0])
            self._members[member] = state
        state[0].update(("\0".join(ids) + "\0").encode())
        state[1].update(b"".join(keys))
        state[2][0] += len(ids)


def member_fingerprints(
    artifacts: ArtifactStore, chunks: Sequence[ChunkRecord], declaration: bytes, count: int
) -> list[tuple[str, int]]:
    """Return (fingerprint, number of rows) of each of a run's members, read from its items files.

    A member's fingerprint does not depend on which others it shares the run with.
    """
    digest = RowsDigest()
    for chunk in chunks:
        digest.add_chunk(artifacts, chunk)
    found = digest.member_digests()
    own = [{member: found[member]} if member in found else {} for member in range(count)]
    return [(fingerprint(declaration, one), sum(rows for _, rows in one.values())) for one in own]


def fingerprint(declaration: bytes, digests: dict[int, tuple[str, int]]) -> str:
    """Return the fingerprint of a declaration and of its rows, or of one member's rows."""
    hasher = hashlib.blake2b(declaration, digest_size=16)
    for digest, _ in digests.values():
        hasher.update(digest.encode())
    return hasher.hexdigest()


def check_unique_ids(artifacts: ArtifactStore, chunks: Sequence[ChunkRecord]) -> None:
    """Make sure that no two rows of a member carry the same item id.

    Memory is bounded: 64-bit hashes of the ids are compared, a slice of the hash range at a time,
    and the files are read once a slice.

    Raises:
        DuplicateItemIdError: Two do; the message names the id.
    """
    total = sum(chunk.item_count for chunk in chunks)
    passes = 1 + total // _IDS_PER_PASS
    width = 2**_HASH_BITS // passes + 1
    for number in range(passes):
        low, high = number * width, min((number + 1) * width, 2**_HASH_BITS) - 1
        hashes = pl.concat([_NO_HASHES, *_hashes(artifacts, chunks, low, high)])
        ordered = hashes.sort()
        doubled = ordered.filter(ordered == ordered.shift(1)).unique()
        if doubled.len():
            _refuse(artifacts, chunks, doubled)


def _hashes(
    artifacts: ArtifactStore, chunks: Sequence[ChunkRecord], low: int, high: int
) -> Iterator[pl.Series]:
    for chunk in chunks:
        hashed = _identities(artifacts, chunk).hash_rows()
        yield hashed.filter(hashed.is_between(low, high))


def _refuse(artifacts: ArtifactStore, chunks: Sequence[ChunkRecord], doubled: pl.Series) -> None:
    suspects = [
        ids.filter(ids.hash_rows().is_in(doubled.implode()))
        for ids in (_identities(artifacts, chunk) for chunk in chunks)
    ]
    frame = pl.concat(suspects)
    again = frame.filter(frame.is_duplicated())["item_id"].unique(maintain_order=True)
    if again.len():
        shown = ", ".join(repr(item_id) for item_id in again.head(3))
        raise DuplicateItemIdError(
            f"{again.len()} item id(s) stand in more than one row: {shown}"
            f"{', …' if again.len() > 3 else ''}; choose an id column that is unique"
        )


def _identities(artifacts: ArtifactStore, chunk: ChunkRecord) -> pl.DataFrame:
    with artifacts.local(chunk.items) as path:
        table = pq.read_table(path, columns=["item_id", "member"])
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
