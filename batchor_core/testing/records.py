"""Builders of the store's records, and shortcuts to a wanted state."""

from datetime import timedelta
from typing import Any

from batchor_core.clock import Clock
from batchor_core.ids import new_chunk_token, new_submission_id, new_waiter_id
from batchor_core.model.records import (
    ArtifactRef,
    ChunkRecord,
    Collected,
    Identity,
    Lease,
    NewChunk,
    NewRun,
    NewSubmission,
    RunRecord,
    ScopeLimits,
    SubmissionRecord,
    Usage,
)
from batchor_core.model.states import RunState, SubmissionState
from batchor_core.store.orchestration import MemberClaim, OrchestratorStore, WaiterRequest
from batchor_core.store.protocol import OverBudget, ScopeFull

LEASE_S = 120.0


def artifact(name: str = "file") -> ArtifactRef:
    """Return a pointer to a file that need not exist."""
    return ArtifactRef(path=f"runs/r/{name}", size_bytes=10, sha256="0" * 64)


def new_run(run_id: str = "run_a", **changes: Any) -> NewRun:
    """Return a run to be created."""
    values: dict[str, Any] = {
        "namespace": "default",
        "spec": {"model": "m"},
        "account": "openai/api.openai.com/1",
        "scope": "openai/api.openai.com/1/m",
        "declaration_digest": "digest",
    }
    return NewRun(run_id=run_id, **values | changes)


def new_chunk(item_count: int = 10, **changes: Any) -> NewChunk:
    """Return a chunk to be sealed."""
    values: dict[str, Any] = {
        "token": new_chunk_token(),
        "round": 0,
        "parent_seq": None,
        "first_row": 0,
        "last_row": item_count - 1,
        "items": artifact("items"),
        "requests": artifact("requests"),
        "input_tokens": 100,
        "output_tokens": 50,
        "cost_usd": 0.5,
    }
    return NewChunk(item_count=item_count, **values | changes)


def new_submission(run_id: str, chunk: ChunkRecord, **changes: Any) -> NewSubmission:
    """Return the intent to submit the chunk."""
    submission_id = new_submission_id()
    values: dict[str, Any] = {
        "submission_id": submission_id,
        "run_id": run_id,
        "chunk_seq": chunk.seq,
        "key": f"{run_id}/{chunk.seq}/{submission_id}",
        "account": "openai/api.openai.com/1",
        "credential": "key",
        "scope": "openai/api.openai.com/1/m",
        "reserved_requests": chunk.item_count,
        "reserved_tokens": chunk.input_tokens + chunk.output_tokens,
        "reserved_cost_usd": chunk.cost_usd,
    }
    return NewSubmission(**values | changes)


def outcomes(ok: int = 0, failed: int = 0, retry: int = 0, **changes: Any) -> Collected:
    """Return what a collection commits."""
    values: dict[str, Any] = {
        "outcomes": artifact("outcomes"),
        "retry_at": None,
        "usage": Usage(input_tokens=7, output_tokens=3, cost_usd=0.25),
        "quarantined": 0,
    }
    return Collected(ok_count=ok, failed_count=failed, retry_count=retry, **values | changes)


def identity(partition: str = "", asset: str = "a/b", namespace: str = "default") -> Identity:
    """Return an identity."""
    return Identity(namespace=namespace, asset=asset, partition=partition)


def member(partition: str = "", fingerprint: str = "f", item_count: int = 1) -> MemberClaim:
    """Return one member of a claim."""
    return MemberClaim(identity=identity(partition), fingerprint=fingerprint, item_count=item_count)


def waiter_request(
    *partitions: str, waiter_id: str | None = None, demand: str | None = None
) -> WaiterRequest:
    """Return a waiter to be recorded."""
    return WaiterRequest(
        waiter_id=waiter_id or new_waiter_id(),
        namespace="default",
        asset="a/b",
        partitions=partitions,
        payload={"root": "r"},
        demand=demand,
    )


class RunDriver:
    """Holds the lease of a fresh run and takes its chunks where a test wants them."""

    def __init__(self, store: OrchestratorStore, clock: Clock, run_id: str = "run_a") -> None:
        self.store = store
        self.clock = clock
        self.run_id = run_id
        store.create_run(new_run(run_id))
        self.lease = self.take_lease()

    def take_lease(self, owner: str = "owner", seconds: float = LEASE_S) -> Lease:
        """Take the run's lease; it has to be free."""
        lease = self.store.acquire_lease(self.run_id, owner, seconds)
        assert lease is not None
        return lease

    def seal(self, item_count: int = 10, **changes: Any) -> ChunkRecord:
        """Seal a chunk of round 0."""
        chunk = new_chunk(item_count, **changes)
        return self.store.seal_chunk(self.lease, chunk, {"next": item_count})

    def try_intend(
        self, chunk: ChunkRecord, limits: ScopeLimits | None = None, **changes: Any
    ) -> SubmissionRecord | ScopeFull | OverBudget:
        """Intend a submission of the chunk; the scope may be full, or a budget used up."""
        submission = new_submission(self.run_id, chunk, **changes)
        return self.store.intend(self.lease, submission, limits or ScopeLimits())

    def intend(self, chunk: ChunkRecord, **changes: Any) -> SubmissionRecord:
        """Intend a submission of the chunk."""
        submission = self.try_intend(chunk, **changes)
        assert isinstance(submission, SubmissionRecord)
        return submission

    def activate(self, submission_id: str, poll_in_s: float = 30) -> SubmissionRecord:
        """Acknowledge the provider's batch."""
        return self.store.activate(
            self.lease,
            submission_id,
            provider_batch_id=f"batch_{submission_id}",
            provider_status="validating",
            next_poll_at=self.clock.now() + timedelta(seconds=poll_in_s),
            adopted=False,
        )

    def submit(self, chunk: ChunkRecord) -> SubmissionRecord:
        """Bring the chunk's submission to ``active``."""
        return self.activate(self.intend(chunk).submission_id)

    def end(self, submission_id: str) -> None:
        """Bring an active submission to ``ended``."""
        assert self.store.mark_ended(
            submission_id, provider_status="completed", provider_result={"output_file": "f"}
        )

    def bring(self, chunk: ChunkRecord, state: SubmissionState) -> SubmissionRecord:
        """Submit the chunk and bring its submission to a state.

        One that is collected has cost nothing; the chunk of one that is void is not sent again.
        """
        submission_id = self.intend(chunk).submission_id
        if state is SubmissionState.VOID:
            abandon = ("request_too_large", "m")
            self.store.void(
                self.lease, submission_id, reason="413", not_before=None, abandon=abandon
            )
        if state in (SubmissionState.ACTIVE, SubmissionState.ENDED, SubmissionState.COLLECTED):
            self.activate(submission_id)
        if state in (SubmissionState.ENDED, SubmissionState.COLLECTED):
            self.end(submission_id)
        if state is SubmissionState.COLLECTED:
            free = outcomes(ok=chunk.item_count, usage=Usage(cost_usd=0.0))
            self.store.collect(self.lease, submission_id, free)
        return submission_of(self.store, submission_id)

    def collect(self, chunk: ChunkRecord, collected: Collected) -> SubmissionRecord:
        """Bring a ready chunk all the way to ``done``."""
        submission = self.submit(chunk)
        self.end(submission.submission_id)
        return self.store.collect(self.lease, submission.submission_id, collected)

    def close(self, state: RunState = RunState.SUCCEEDED, **values: Any) -> RunRecord:
        """End ingestion and close the run."""
        self.store.finish_ingestion(self.lease, "fingerprint")
        return self.store.close_run(self.lease, state, **values)


def submission_of(store: OrchestratorStore, submission_id: str) -> SubmissionRecord:
    """Return one submission, whatever run it is of."""
    return next(
        submission
        for run in store.list_runs()
        for submission in store.list_submissions(run.run_id)
        if submission.submission_id == submission_id
    )
