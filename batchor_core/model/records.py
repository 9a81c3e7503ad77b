"""The control plane's records as values: what the store hands out and takes in.

One record per batch run, chunk, submission, member, waiter and event. Never one per item.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from batchor_core.model.states import (
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
    WaiterState,
)

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ArtifactRef:
    """A file of the data plane: it counts only because a record points at it.

    Attributes:
        path: Relative to the artifact root, with ``/`` between segments.
        size_bytes: Its exact size.
        sha256: Its SHA-256, 64 hexadecimal digits.
    """

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens, and what they cost. ``cost_usd`` is None as long as any part's price is unknown."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One batch run.

    Attributes:
        namespace: Who owns it; in Dagster the code location, else ``default``.
        spec: The stored job without secrets and without its source.
        account: Provider, host, and what tells accounts apart: its runs are polled together.
        scope: ``quota_scope``: the account and model whose queue limits are shared.
        declaration_digest: Hash of all that changes an answer, but for the rows.
        fingerprint: Hash of the declaration and of all rows; None while ingesting.
        checkpoint: Where to go on in the source; None before the first sealed chunk.
        total_items: Items sealed so far.
        predecessor: The run that this one supersedes: nothing is sent before that is terminal.
        reuse_done: Whether earlier answers were looked for: nothing is sent before that.
        retry_of: The finished run whose failed items this one asks again.
        exported_at: When the raw answers of the finished run were last exported.
        pruned: Kinds of its files that were removed: ``begun`` or ``done``, by kind.
        budget_usd: What the run may cost; None is no bound.
        budget_day_usd: What its scope may cost in one day (UTC); None is no bound.
    """

    run_id: str
    namespace: str
    spec: JsonObject
    account: str
    scope: str
    state: RunState
    control: RunControlState
    control_reason: str | None
    declaration_digest: str
    fingerprint: str | None
    checkpoint: JsonObject | None
    total_items: int
    error_code: str | None
    error_message: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    predecessor: str | None = None
    reuse_done: bool = False
    retry_of: str | None = None
    exported_at: datetime | None = None
    pruned: JsonObject = field(default_factory=dict)
    budget_usd: float | None = None
    budget_day_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """What opens a batch run in ``ingesting``."""

    run_id: str
    namespace: str
    spec: JsonObject
    account: str
    scope: str
    declaration_digest: str
    predecessor: str | None = None
    retry_of: str | None = None
    budget_usd: float | None = None
    budget_day_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class NewChunk:
    """A sealed chunk, before the store numbers it.

    Attributes:
        token: Ties the custom ids of its request file to it.
        round: 0 for the first pass, n for the n-th retry pass.
        parent_seq: The chunk that it was split from; None otherwise.
        first_row: Smallest row in it.
        last_row: Largest row in it (rows of a retry chunk need not be contiguous).
        items: The items file; of a chunk of round 0 without parent it holds the kept columns.
        requests: The request file.
        input_tokens: Estimate.
        output_tokens: Upper estimate, reserved.
        cost_usd: Estimated cost of both; None where a price is unknown.
        not_before: Backoff: not submitted earlier.
        is_duplicate: Whether its items ask what others of the run ask as well: it is not sent, but
            gets their answers.
    """

    token: str
    round: int
    parent_seq: int | None
    item_count: int
    first_row: int
    last_row: int
    items: ArtifactRef
    requests: ArtifactRef
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    not_before: datetime | None = None
    is_duplicate: bool = False


@dataclass(frozen=True, kw_only=True)
class ChunkRecord(NewChunk):
    """One chunk, in the store.

    Attributes:
        seq: Its number in the run, from 0, in order of creation.
        refusals: How often it went back to ready since it was created.
        results: Its part of the result table; only for chunks of round 0 without parent.
        error_code: Why it was abandoned; its items fail with it.
        is_unwanted: Whether all its items belong to members that nobody wants any more: it is
            given up, or cancelled where it is in flight.
    """

    run_id: str
    seq: int
    is_unwanted: bool
    state: ChunkState
    refusals: int
    results: ArtifactRef | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, kw_only=True)
class NewSubmission:
    """The intent to have one chunk executed, with its reservation.

    Attributes:
        credential: With which it is sent (``BatchProvider.credential``).
    """

    submission_id: str
    run_id: str
    chunk_seq: int
    key: str
    account: str
    credential: str
    scope: str
    reserved_requests: int
    reserved_tokens: int
    reserved_cost_usd: float | None


@dataclass(frozen=True, kw_only=True)
class SubmissionRecord(NewSubmission):
    """One try to have one chunk executed.

    Attributes:
        fencing_token: Of the process that intended it.
        intended_at: When the intent was committed, by our clock.
        create_allowed_until: End of the lease under which the create may be under way; None
            before the upload was committed, and then no create can have happened.
        create_ended_at: When the create call came back with an unknown outcome.
        create_server_time: The provider's own clock (``Date`` header) near the create.
        upload_ref: The provider's id of the uploaded request file.
        provider_batch_id: What the provider calls the batch; None before it is known.
        provider_status: The provider's own word at the last poll.
        provider_counts: Its own counts at the last poll; shown, never trusted.
        provider_result: What ``get`` said when it ended: the ids of its result files and errors.
        is_provisional: Whether the batch was adopted on suspicion: its results have to prove it.
        next_poll_at: When it is polled next, or, once it has ended, collected at the earliest.
        missing_polls: Consecutive answers "no such batch" or, once it has ended, "no such file".
        next_cancel_at: When the provider may be asked again to cancel it, where nobody wants it;
            None: it was not asked yet. No poll changes it.
        outcomes: The outcome file.
        raw: What the provider answered, byte for byte, where that is kept.
        retry_at: When the items to be retried may be packed.
        retries_packed: Whether they are in chunks of the next round already.
        usage: What the provider counted, summed over the outcomes.
        quarantined: Result lines that could not be matched to an item, or not be read.
        void_reason: Why no batch came of it.
        voided_at: When it was given up.
        sweep_at: When a late twin of it is looked for next; None: none can come any more.
    """

    state: SubmissionState
    fencing_token: int
    intended_at: datetime
    create_allowed_until: datetime | None
    create_ended_at: datetime | None
    create_server_time: datetime | None
    upload_ref: str | None
    provider_batch_id: str | None
    provider_status: str | None
    provider_counts: JsonObject | None
    provider_result: JsonObject | None
    next_poll_at: datetime | None
    missing_polls: int
    next_cancel_at: datetime | None
    activated_at: datetime | None
    is_provisional: bool
    ended_at: datetime | None
    collected_at: datetime | None
    outcomes: ArtifactRef | None
    ok_count: int
    failed_count: int
    retry_count: int
    reused_count: int
    retry_at: datetime | None
    retries_packed: bool
    usage: Usage
    quarantined: int
    void_reason: str | None
    voided_at: datetime | None
    sweep_at: datetime | None
    raw: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What collecting one submission commits, in one transaction.

    Attributes:
        reused_count: How many of ``ok_count`` were answered by an earlier run, at no cost.
        raw: What the provider answered, byte for byte, where that is kept.
    """

    outcomes: ArtifactRef
    ok_count: int
    failed_count: int
    retry_count: int
    retry_at: datetime | None
    usage: Usage
    quarantined: int
    reused_count: int = 0
    raw: tuple[ArtifactRef, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """Where a run's items are. ``total`` is counted apart, so that the sum proves something."""

    total: int = 0
    ok: int = 0
    failed: int = 0
    retrying: int = 0
    in_flight: int = 0
    ready: int = 0
    reused: int = 0

    @property
    def accounted(self) -> int:
        """Items that are somewhere; equals ``total`` as long as no row is lost."""
        return self.ok + self.failed + self.retrying + self.in_flight + self.ready


@dataclass(frozen=True, kw_only=True)
class RunDayCosts:
    """What was collected of one run on one day.

    Attributes:
        day: Of collection, in UTC.
        provider_config: The run's, as it is stored; its price may be stated in it.
        assets: Dagster's asset keys that the run stands for; none without Dagster.
        batches: Provider batches; reused answers are in none.
        items: Items that got a final outcome.
        usage: Tokens, and the part of their cost that is known.
        unpriced_batches: Batches whose cost is unknown.
        unpriced_tokens: Tokens in them, of input and output.
    """

    run_id: str
    day: date
    provider_config: JsonObject
    assets: tuple[str, ...]
    batches: int
    items: int
    usage: Usage
    unpriced_batches: int
    unpriced_tokens: int


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """What providers are at work on, over many runs."""

    batches: int
    items: int


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to advance one run until ``expires_at``; ``token`` fences every write."""

    run_id: str
    owner: str
    token: int
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class ScopeLimits:
    """What may be in flight in one scope at once; None is unlimited."""

    max_requests: int | None = None
    max_tokens: int | None = None
    max_batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a batch run is for: at most one *open* run per identity.

    Attributes:
        namespace: In Dagster the code location.
        asset: The asset key, ``/`` between its parts.
        partition: The partition key; empty for an unpartitioned asset.
    """

    namespace: str
    asset: str
    partition: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """The part of a batch run that stands for one identity.

    Attributes:
        seq: 0-based; the ``member`` column of items files.
        fingerprint: Of the declaration and of this member's rows.
        item_count: Its rows: the members' rows follow each other in order of ``seq``.
        is_open: Whether the identity is taken: not delivered and not ended yet.
        is_wanted: Whether its rows are to be asked. Of an unwanted member what was sent is still
            collected; its identity is taken until another run takes it over.
        ok_count: How many of its rows were answered; None until the run is closed.
    """

    run_id: str
    seq: int
    identity: Identity
    fingerprint: str
    item_count: int
    is_open: bool
    is_wanted: bool = True
    ok_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Waiter:
    """Somebody who asked for a run's results.

    Attributes:
        partitions: The partition keys it asked for, in order.
        payload: What the asking side needs to serve it; opaque to the core.
        progress: What serving it has led to so far; opaque to the core.
        version: Grows with each change; updates are guarded by it.
    """

    waiter_id: str
    run_id: str
    namespace: str
    asset: str
    partitions: tuple[str, ...]
    payload: JsonObject
    progress: JsonObject
    state: WaiterState
    reason: str | None
    version: int
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The last sign of life of something that drives a namespace's runs again and again.

    Attributes:
        at: When it gave it.
        every_s: Seconds after which it meant to give the next.
    """

    name: str
    at: datetime
    every_s: float


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of the journal; ``sequence`` grows over the whole store."""

    sequence: int
    run_id: str
    at: datetime
    kind: str
    data: JsonObject = field(default_factory=dict)
