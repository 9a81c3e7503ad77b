"""The stored states, each with one sentence that says what a crash leaves behind.

These strings are stored: they are never renamed.
"""

from enum import StrEnum


class RunState(StrEnum):
    """Where a batch run is.

    ``failed`` means stopped by something that neither retry nor operator can mend within the run.
    """

    INGESTING = "ingesting"
    """A crash leaves sealed chunks and a checkpoint; ingestion goes on behind the last chunk."""
    RUNNING = "running"
    """A crash leaves chunks and submissions; the next cycle goes on from their states."""
    SUCCEEDED = "succeeded"
    """Every item is ok; nothing is left to do."""
    COMPLETED_WITH_FAILURES = "completed_with_failures"
    """Every item has a final outcome and at least one failed; nothing is left to do."""
    CANCELLED = "cancelled"
    """Cancelled on request; what was paid is collected, the rest failed as ``run_cancelled``."""
    FAILED = "failed"
    """Stopped for good; unanswered items carry the run's error code."""

    @property
    def is_terminal(self) -> bool:
        """Whether no cycle can change the run any more."""
        return self in TERMINAL_RUN_STATES

    @property
    def is_complete(self) -> bool:
        """Whether every item has an outcome of its own: the run was not stopped before."""
        return self in (RunState.SUCCEEDED, RunState.COMPLETED_WITH_FAILURES)


TERMINAL_RUN_STATES = frozenset(
    {
        RunState.SUCCEEDED,
        RunState.COMPLETED_WITH_FAILURES,
        RunState.CANCELLED,
        RunState.FAILED,
    }
)


class RunControlState(StrEnum):
    """What somebody asked of a run, beside its state. Written without a lease."""

    RUN = "run"
    """Go on."""
    PAUSE = "pause"
    """Ingest, retry and submit nothing; polling and collecting go on, since results expire."""
    CANCEL = "cancel"
    """End: cancel provider batches, collect what was paid, fail the rest. Wins for good."""


class ChunkState(StrEnum):
    """Where a chunk is."""

    READY = "ready"
    """A crash leaves a sealed request file that nobody has sent; the next cycle submits it."""
    SUBMITTED = "submitted"
    """A crash leaves one live submission that owns the chunk; recovery settles that one."""
    DONE = "done"
    """Every item has an outcome of a collected submission; nothing is left to do."""
    SPLIT = "split"
    """Two children took its place; nothing is left to do."""
    ABANDONED = "abandoned"
    """It will never be sent; its items fail with the chunk's error code when the run closes."""


class SubmissionState(StrEnum):
    """Where one try to have a chunk executed is."""

    INTENDED = "intended"
    """A crash may leave a provider batch that we do not know of; recovery looks for it."""
    ACTIVE = "active"
    """A crash leaves a provider batch that works on; the next poll sees it."""
    ENDED = "ended"
    """A crash leaves results at the provider; the next cycle downloads them (again)."""
    COLLECTED = "collected"
    """Outcomes are committed; items to be retried wait here until they are packed."""
    VOID = "void"
    """No provider batch came of it, or it was refused for capacity; its chunk went back."""


QUEUED_SUBMISSION_STATES = frozenset({SubmissionState.INTENDED, SubmissionState.ACTIVE})
"""Queued at the provider, or perhaps: these reservations count against their scope's limits."""

UNCOLLECTED_SUBMISSION_STATES = QUEUED_SUBMISSION_STATES | {SubmissionState.ENDED}
"""Paid, or perhaps, and not collected: these reservations count against budgets, and a run goes on
for the sake of what they may still bring."""


class WaiterState(StrEnum):
    """The state of a waiter, who asked for a run's results."""

    OPEN = "open"
    """A crash leaves it waiting; the next materialize tick serves it."""
    SERVED = "served"
    """It has its results; nothing is left to do."""
    FAILED = "failed"
    """It has a reason why there are no (complete) results; nothing is left to do."""
    CANCELLED = "cancelled"
    """It no longer waits; without other waiters the run is cancelled too."""


class Verdict(StrEnum):
    """The judgement on one item of one submission."""

    OK = "ok"
    """Answered, and valid where a model was given. Final."""
    FAILED = "failed"
    """Final, with an error code."""
    RETRY = "retry"
    """To be sent again in a later round."""
