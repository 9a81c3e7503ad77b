"""What an account is called, and what one gets in with; neither shows a key."""

import hashlib


def account_name(provider: str, host: str, *names: str | None) -> str:
    """Return the stable text of an account, which outlives its keys.

    Args:
        provider: ``openai``, ``anthropic`` or ``gemini``.
        host: The host that requests go to.
        names: What tells accounts at the host apart: organisation, project, the user's own name.
    """
    return f"{provider}:{host}:{_digest(names)}"


def credential_digest(*secrets: str | None) -> str:
    """Return what tells two keys apart, without revealing them."""
    return _digest(secrets)


def _digest(parts: tuple[str | None, ...]) -> str:
    text = "\0".join(part or "" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=6, person=b"batchor-account").hexdigest()
