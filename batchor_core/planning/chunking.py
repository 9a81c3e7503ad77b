"""When a chunk is full: pure counting of requests, bytes and tokens."""

from dataclasses import dataclass

from batchor_core.model.limits import ProviderLimits
from batchor_core.model.policies import ChunkPolicy


@dataclass(frozen=True, kw_only=True)
class ChunkLimits:
    """The bounds in force: the narrower of the user's and the provider's; None is unbounded."""

    max_requests: int
    max_bytes: int
    max_tokens: int | None

    @classmethod
    def of(cls, policy: ChunkPolicy, limits: ProviderLimits) -> "ChunkLimits":
        """Combine a policy with a provider's limits."""
        return cls(
            max_requests=min(policy.max_requests or limits.max_requests, limits.max_requests),
            max_bytes=min(policy.max_bytes or limits.max_bytes, limits.max_bytes),
            max_tokens=_narrower(policy.max_tokens, limits.max_tokens),
        )


class ChunkMeter:
    """Counts what is in the open chunk.

    A request that alone exceeds a bound still gets a chunk of its own: the provider decides.
    """

    def __init__(self, limits: ChunkLimits) -> None:
        self._limits = limits
        self.requests = 0
        self.size_bytes = 0
        self.tokens = 0.0

    def fits(self, size_bytes: int, tokens: float) -> bool:
        """Return whether one more request may join the open chunk."""
        limits = self._limits
        if not self.requests:
            return True
        return (
            self.requests < limits.max_requests
            and self.size_bytes + size_bytes <= limits.max_bytes
            and (limits.max_tokens is None or self.tokens + tokens <= limits.max_tokens)
        )

    def add(self, size_bytes: int, tokens: float) -> None:
        """Count one request in."""
        self.requests += 1
        self.size_bytes += size_bytes
        self.tokens += tokens

    def reset(self) -> None:
        """Start the next chunk."""
        self.requests = 0
        self.size_bytes = 0
        self.tokens = 0.0


def _narrower(first: int | None, second: int | None) -> int | None:
    bounds = [bound for bound in (first, second) if bound is not None]
    return min(bounds) if bounds else None
