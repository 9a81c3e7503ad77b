"""Identifiers: how each is made, and what may be read from it.

Stored identifiers are never reinterpreted: their formats are part of the stored data.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from urllib.parse import quote

LONGEST_RUN_ID = 200
"""It is part of what the provider keeps with each batch, 512 characters in all (OpenAI)."""

_SEGMENT_LIMIT_BYTES = 200
_HASH_CHARS = 16
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no l, o, 0, 1: read aloud without doubt
CHUNK_TOKEN_CHARS = 8
_SUBMISSION_KEY = re.compile(
    r"(.+)/(\d{1,9})-([a-z0-9]+)/(sub_[a-z0-9]+)/(store_[a-z0-9]+)", re.DOTALL
)


def new_store_id() -> str:
    """Return a fresh identity of a store: ``store_`` and 12 characters."""
    return f"store_{_random_text(12)}"


def new_run_id() -> str:
    """Return a fresh run id: ``run_`` and 16 characters."""
    return f"run_{_random_text(16)}"


def new_submission_id() -> str:
    """Return a fresh submission id: ``sub_`` and 16 characters; unique over all runs."""
    return f"sub_{_random_text(16)}"


def new_waiter_id() -> str:
    """Return a fresh waiter id: ``wait_`` and 16 characters."""
    return f"wait_{_random_text(16)}"


def new_chunk_token() -> str:
    """Return the token that ties every custom id in a request file to its chunk."""
    return _random_text(CHUNK_TOKEN_CHARS)


def custom_id(chunk_token: str, row: int) -> str:
    """Return the id under which a provider answers ``row`` of the chunk with this token.

    It matches ``^[a-zA-Z0-9_-]{1,64}$``, the narrowest rule of all providers (Anthropic's).
    """
    return f"{chunk_token}-{row}"


@dataclass(frozen=True, kw_only=True)
class SubmissionKey:
    """What a provider batch of ours carries, so that it can be put back in its place."""

    run_id: str
    chunk_seq: int
    chunk_token: str
    submission_id: str
    store_id: str

    def __str__(self) -> str:
        chunk = f"{self.chunk_seq}-{self.chunk_token}"
        return f"{self.run_id}/{chunk}/{self.submission_id}/{self.store_id}"


def parse_submission_key(text: str | None) -> SubmissionKey | None:
    """Read a key as the provider returned it; None for what is none of ours."""
    found = _SUBMISSION_KEY.fullmatch(text or "")
    if found is None:
        return None
    run_id, seq, token, submission_id, store_id = found.groups()
    return SubmissionKey(
        run_id=run_id,
        chunk_seq=int(seq),
        chunk_token=token,
        submission_id=submission_id,
        store_id=store_id,
    )


def path_segment(text: str) -> str:
    """Return ``text`` as one path segment that every file system and object store takes.

    Everything but letters, digits, ``-``, ``_`` and ``.`` is percent-encoded (a leading dot
    too); a segment of over 200 bytes becomes a prefix and a hash of the whole, so that two
    different texts never share one.
    """
    encoded = quote(text, safe="").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= _SEGMENT_LIMIT_BYTES and encoded:
        return encoded
    digest = hashlib.blake2b(text.encode(), digest_size=_HASH_CHARS // 2).hexdigest()
    return f"{encoded[: _SEGMENT_LIMIT_BYTES - _HASH_CHARS - 1]}-{digest}"


def _random_text(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
