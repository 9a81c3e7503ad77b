"""What a user may decide about how a job is run; each field has a default that is safe.

These models are stored with the run, without secrets, and read back by any other process.
"""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt


class Policy(BaseModel):
    """Base of the policies: immutable, and strict about unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ChunkPolicy(Policy):
    """How large one provider batch may become; None leaves it to the provider's limits.

    Attributes:
        max_requests: Requests in a chunk.
        max_bytes: Bytes of its request file.
        max_tokens: Estimated input tokens in a chunk.
    """

    max_requests: PositiveInt | None = None
    max_bytes: PositiveInt | None = None
    max_tokens: PositiveInt | None = None


class RetryPolicy(Policy):
    """How often an item is sent again, and when.

    Attributes:
        max_attempts: Executed and paid requests per item that did not end ok, at most.
        max_invalid_attempts: The same bound for an item whose last answer was refused by the
            output model; usually narrower.
        max_rounds: Passes over the items, the first included; bounds re-sends that cost nothing.
        delay_s: Seconds before the first retry round; doubled for each further one.
        max_delay_s: Seconds that a delay never exceeds.
    """

    max_attempts: PositiveInt = 3
    max_invalid_attempts: PositiveInt = 2
    max_rounds: PositiveInt = 6
    delay_s: float = Field(default=30.0, ge=0)
    max_delay_s: PositiveFloat = 3600.0


class TimingPolicy(Policy):
    """The clockwork of the submission protocol and of polling; all in seconds.

    Attributes:
        lease_s: How long a process may be silent before another takes the run over.
        create_timeout_s: Time-out of the call that creates a provider batch; None takes the
            smaller of 60 and a third of the lease.
        settle_s: How long an unacknowledged batch is looked for before it is sent again.
        poll_s: How often a working batch is asked for its status.
    """

    lease_s: PositiveFloat = 120.0
    create_timeout_s: PositiveFloat | None = None
    settle_s: float = Field(default=180.0, ge=0)
    poll_s: PositiveFloat = 30.0

    @property
    def effective_create_timeout_s(self) -> float:
        """The create time-out in force; always shorter than the lease."""
        return min(self.create_timeout_s or 60.0, self.lease_s / 3)


Match: TypeAlias = Literal["request", "item"]


class ReusePolicy(Policy):
    """Whose answers are taken, at no cost, in place of asking again.

    An earlier answer has to satisfy today's output model.

    Attributes:
        match: ``request``: answers to the very same requests; a request is the same if provider,
            host, endpoint and the whole body are. ``item``: answers to items of the same id (and
            the same partition), whatever was asked about them, so that only what failed or is new
            is asked.
        source: ``predecessor``: those of the run that this one supersedes, and of ``run_ids``;
            ``namespace``: also those of the namespace's newest runs of the same model;
            ``off``: nobody's.
        run_ids: Further runs, the first one first.
        max_runs: How many runs of the namespace are looked through.
        within_run: Whether rows of the run that ask the very same are sent once: the others wait
            for the answer, and fail with ``duplicate_failed`` where there is none.
    """

    match: Match = "request"
    source: Literal["predecessor", "namespace", "off"] = "predecessor"
    run_ids: tuple[str, ...] = ()
    max_runs: PositiveInt = 50
    within_run: bool = False


class BudgetPolicy(Policy):
    """What a run may cost, in US dollars; None is no bound. Enforced on actual plus reserved cost.

    Not part of what a run is: it can be changed at any time (``Run.resume(budget=...)``, or by
    starting the run again).

    Attributes:
        run_usd: The whole run, its retries included.
        scope_day_usd: All that is sent to the run's scope (account and model) in one day, from
            midnight UTC, by every run that shares the store.
    """

    run_usd: PositiveFloat | None = Field(default=None, allow_inf_nan=False)
    scope_day_usd: PositiveFloat | None = Field(default=None, allow_inf_nan=False)

    @property
    def is_set(self) -> bool:
        """Whether anything is bounded."""
        return self.run_usd is not None or self.scope_day_usd is not None

    def over(self, earlier: "BudgetPolicy") -> "BudgetPolicy":
        """Return this budget, with the bounds of an earlier one where this names none."""
        return BudgetPolicy(
            run_usd=earlier.run_usd if self.run_usd is None else self.run_usd,
            scope_day_usd=(
                earlier.scope_day_usd if self.scope_day_usd is None else self.scope_day_usd
            ),
        )


class ArtifactPolicy(Policy):
    """What is kept of what was sent and received.

    Attributes:
        raw_results: ``keep`` stores the provider's answers byte for byte, compressed;
            ``drop`` stores the judged outcomes only.
        remote_files: ``delete`` removes our files at the provider after collection.
    """

    raw_results: Literal["keep", "drop"] = "keep"
    remote_files: Literal["delete", "keep"] = "delete"
