"""Bringing a restored store back in line with what the provider has.

A store that was restored from a backup does not know what was sent after it. Every provider batch
of ours carries the run, the chunk and the chunk's token in its key, so that it can be put back in
its place: before anything is sent again.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from batchor_core.clock import Clock
from batchor_core.errors import RunNotFoundError, StoreError
from batchor_core.executor.cycle import LeaseKeeper, LeaseOwner, Probe, no_probe
from batchor_core.ids import SubmissionKey, parse_submission_key
from batchor_core.model.records import (
    ChunkRecord,
    NewSubmission,
    RunRecord,
)
from batchor_core.model.states import ChunkState, SubmissionState
from batchor_core.providers.protocol import BatchPhase, BatchProvider, ProviderBatch
from batchor_core.store.protocol import Store

logger = logging.getLogger(__name__)


class Finding(StrEnum):
    """What reconciling made of one provider batch."""

    KNOWN = "known"
    """The store has its submission: nothing to do."""
    ADOPTED = "adopted"
    """Its chunk was ready to be sent: it takes the batch, and collects what it answers."""
    CANCELLED = "cancelled"
    """Its chunk is being answered, was answered, or does not exist any more: it is a twin."""
    ENDED = "ended"
    """The same, but it had ended already: what it answered was paid for and is not used."""
    FOREIGN = "foreign"
    """It carries no key of ours, or that of another store or of a run unknown here: left alone."""
    BUSY = "busy"
    """Its run is being advanced: reconcile again."""


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """One provider batch and what was made of it."""

    batch_id: str
    status: str
    key: str | None
    run_id: str | None
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """One look at all batches of one account.

    Attributes:
        owner: Who takes leases.
        lease_s: Seconds of the leases under which batches are adopted.
        is_dry: Only tell what would be done.
        probe: Called at each point where a crash would leave something behind; for tests.
    """

    store: Store
    provider: BatchProvider
    clock: Clock
    owner: LeaseOwner
    lease_s: float
    is_dry: bool
    probe: Probe = no_probe

    def run(self, since: datetime | None) -> Iterator[Reconciled]:
        """Yield what became of each batch that was created after ``since``, newest first.

        A crash leaves some batches unreconciled; what was done is not done again.

        Raises:
            ProviderError: The list cannot be read.
        """
        for batch in self.provider.list_batches(since=since):
            key = parse_submission_key(batch.key)
            finding = self._without_key(batch) if key is None else self._reconcile(batch, key)
            yield Reconciled(
                batch_id=batch.batch_id,
                status=batch.status,
                key=batch.key,
                run_id=key.run_id if key else None,
                finding=finding,
            )

    def _without_key(self, batch: ProviderBatch) -> Finding:
        """Tell of a batch that carries nothing of ours whether a submission owns it."""
        known = self.store.known_batches(self.provider.account, [batch.batch_id])
        return Finding.KNOWN if known else Finding.FOREIGN

    def _reconcile(self, batch: ProviderBatch, key: SubmissionKey) -> Finding:
        if key.store_id != self.store.store_id:
            return Finding.FOREIGN
        try:
            run = self.store.get_run(key.run_id)
        except RunNotFoundError:
            return Finding.FOREIGN
        known = {s.submission_id: s for s in self.store.list_submissions(run.run_id)}
        submission = known.get(key.submission_id)
        if submission is not None and submission.state is not SubmissionState.VOID:
            return Finding.KNOWN
        chunk = self._chunk(run, key)
        if submission is None and chunk is not None and chunk.state is ChunkState.READY:
            return self._adopt(batch, key, run, chunk)
        if batch.phase is not BatchPhase.WORKING:
            return Finding.ENDED
        if not self.is_dry:
            logger.warning("run %s: cancelling twin batch %s", run.run_id, batch.batch_id)
            self.provider.cancel(batch.batch_id)
            self.probe("reconcile.cancelled")
        return Finding.CANCELLED

    def _chunk(self, run: RunRecord, key: SubmissionKey) -> ChunkRecord | None:
        """Return the chunk that the batch was made from, if it is still the same one."""
        chunks = self.store.list_chunks(run.run_id)
        found = next((chunk for chunk in chunks if chunk.seq == key.chunk_seq), None)
        return found if found is not None and found.token == key.chunk_token else None

    def _adopt(
        self, batch: ProviderBatch, key: SubmissionKey, run: RunRecord, chunk: ChunkRecord
    ) -> Finding:
        if self.is_dry:
            return Finding.ADOPTED
        keeper = LeaseKeeper.acquire(self.store, self.clock, run.run_id, self.owner, self.lease_s)
        if keeper is None:
            return Finding.BUSY
        try:
            self.store.adopt(
                keeper.lease,
                self._intent(batch, key, run, chunk),
                upload_ref=batch.upload_ref,
                created_at=batch.created_at,
                provider_batch_id=batch.batch_id,
                provider_status=batch.status,
                next_poll_at=self.clock.now(),
            )
            self.probe("reconcile.adopted")
        except StoreError:
            logger.exception("run %s: batch %s is not adopted", run.run_id, batch.batch_id)
            return Finding.BUSY
        finally:
            keeper.release()
        return Finding.ADOPTED

    def _intent(
        self, batch: ProviderBatch, key: SubmissionKey, run: RunRecord, chunk: ChunkRecord
    ) -> NewSubmission:
        return NewSubmission(
            submission_id=key.submission_id,
            run_id=run.run_id,
            chunk_seq=chunk.seq,
            key=batch.key or "",
            account=run.account,
            credential=self.provider.credential,
            scope=run.scope,
            reserved_requests=chunk.item_count,
            reserved_tokens=chunk.input_tokens,
            reserved_cost_usd=chunk.cost_usd,
        )
