"""One taxonomy of what can go wrong outside; every provider has one table that maps into it.

A fault is a value. Adapters make it, the executor acts on its fields and on nothing else: it
never looks at HTTP statuses or at provider messages.
"""

from dataclasses import dataclass
from enum import StrEnum


class FaultOwner(StrEnum):
    """Who has to do something about it."""

    USER = "user"
    ACCOUNT = "account"
    PROVIDER = "provider"
    NETWORK = "network"


class FaultKind(StrEnum):
    """What the executor does about it."""

    ACCOUNT = "account"
    """Pause the run with a reason (bad key, billing); ``resume`` goes on."""
    CAPACITY = "capacity"
    """Not a failure: wait, the chunk goes back to ready."""
    SIZE = "size"
    """The chunk is too large as a whole: split it."""
    REJECTED = "rejected"
    """The provider refuses what we sent: sending the same again is pointless."""
    TRANSIENT = "transient"
    """Try the same call again later."""
    UNKNOWN_OUTCOME = "unknown_outcome"
    """The call may have taken effect. For a create: look before anything is sent again."""
    MISSING = "missing"
    """The provider says that it does not exist (which is not proof, soon after a create)."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One failed call, or one failed provider batch, classified.

    Attributes:
        kind: What to do.
        owner: Who has to act.
        code: The provider's own code where it has one, else ours; stored and shown.
        message: One line for people; never holds a key or a prompt.
        retry_after_s: Seconds that the provider asks to wait, capped at an hour; None if unsaid.
        limit: The queue limit that a capacity message names, in ``limit_unit``.
        limit_unit: ``tokens`` or ``requests``.
    """

    kind: FaultKind
    owner: FaultOwner
    code: str
    message: str
    retry_after_s: float | None = None
    limit: int | None = None
    limit_unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class ItemFault:
    """Why one item has no usable answer.

    Attributes:
        code: Stored as ``batch_error_code``.
        message: Stored as ``batch_error_message``; the provider's words, at most 2,000 characters.
        retryable: Whether the same request may succeed later.
        consumes_attempt: Whether the request was executed and paid for, so that a retry counts
            against ``max_attempts``.
    """

    code: str
    message: str
    retryable: bool
    consumes_attempt: bool


class ItemErrorCode(StrEnum):
    """Our own error codes of items; a provider's codes stand beside them. Never renamed."""

    INVALID_OUTPUT = "invalid_output"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    CONTENT_FILTERED = "content_filtered"
    EMPTY_ANSWER = "empty_answer"
    BATCH_EXPIRED = "batch_expired"
    BATCH_CANCELLED = "batch_cancelled"
    MISSING_RESULT = "missing_result"
    UNREADABLE_RESULT = "unreadable_result"
    TRANSPORT = "provider_transport"
    REJECTED_BATCH = "batch_rejected"
    REQUEST_TOO_LARGE = "request_too_large"
    RUN_CANCELLED = "run_cancelled"
    RUN_FAILED = "run_failed"
    UNRESOLVED = "unresolved_submission"
    RESULTS_LOST = "results_lost"
    DUPLICATE_FAILED = "duplicate_failed"
