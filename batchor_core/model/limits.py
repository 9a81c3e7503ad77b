"""The bounds that a provider sets."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProviderLimits:
    """The provider's own bounds on one batch, with slack taken off."""

    max_requests: int
    max_bytes: int
    max_tokens: int | None = None
