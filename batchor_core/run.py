"""A handle on one batch run: its state, its control, its results."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from batchor_core.artifacts import ArtifactStore
from batchor_core.artifacts.kinds import ArtifactKind, check_not_pruned
from batchor_core.clock import Clock
from batchor_core.errors import (
    ArtifactMissingError,
    RunNotFinishedError,
    RunPausedError,
    WaitTimeoutError,
)
from batchor_core.executor.advance import Executor
from batchor_core.executor.budget import change_budget, check_affordable
from batchor_core.executor.cycle import Attachment, Progress
from batchor_core.executor.digests import member_fingerprints
from batchor_core.executor.estimating import estimate_chunks
from batchor_core.executor.fill_retry_run import open_retry_run
from batchor_core.executor.plan import RunPlan
from batchor_core.job import encode_declaration
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import ChunkRecord, RunCounts, RunRecord, Usage
from batchor_core.model.states import RunControlState, RunState
from batchor_core.planning.estimate import Estimate
from batchor_core.results.by_member import MemberResults
from batchor_core.results.combining import CombinedResults
from batchor_core.results.items import ItemResult, read_items
from batchor_core.run_files import RunFiles
from batchor_core.store.protocol import Store

_SHORTEST_SLEEP_S = 0.2
_LONGEST_SLEEP_FOR_LEASE_S = 5.0

_MOST_OUTAGES = 3
"""Tries in a row, a poll interval apart, until somebody who wants to go on is told: the libraries
of the object stores have repeated each call a few times already."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Where a run stands: what ``status --json`` prints and dashboards show.

    Attributes:
        cost_usd: Of what is collected so far; None where the model's price is unknown.
        saved_usd: What the same requests would have cost more outside of batch mode.
    """

    run_id: str
    status: RunState
    control_state: RunControlState
    control_reason: str | None
    counts: RunCounts
    usage: Usage
    cost_usd: float | None
    saved_usd: float | None


class Run(RunFiles):
    """One batch run. Made by ``BatchRunner``; cheap, and as fresh as the last ``refresh``."""

    def __init__(
        self,
        *,
        record: RunRecord,
        plan: RunPlan,
        store: Store,
        artifacts: ArtifactStore,
        clock: Clock,
        executor: Executor,
        attachment: Attachment | None = None,
        predecessor: "Run | None" = None,
        keeps: object = None,
    ) -> None:
        super().__init__(record=record, plan=plan, store=store, artifacts=artifacts, clock=clock)
        self._executor = executor
        self._attachment = attachment
        self._predecessor = predecessor
        self._keeps = keeps  # the folder of a runner in memory, which goes with its last reference

    def __repr__(self) -> str:
        return f"<Run {self.run_id!r}: {self.status}>"

    @property
    def record(self) -> RunRecord:
        """The control plane's record, as last read."""
        return self._record

    @property
    def plan(self) -> RunPlan:
        """The run's bound job."""
        return self._plan

    @property
    def status(self) -> RunState:
        """The run's state, as last read."""
        return self._record.state

    @property
    def control_state(self) -> RunControlState:
        """What was asked of the run, as last read."""
        return self._record.control

    @property
    def control_reason(self) -> str | None:
        """Why it was asked."""
        return self._record.control_reason

    @property
    def is_finished(self) -> bool:
        """Whether nothing can change the run any more, as last read."""
        return self._record.state.is_terminal

    def refresh(self) -> "Run":
        """Read the run again; no provider is asked."""
        self._record = self._store.get_run(self.run_id)
        return self

    def advance(self, deadline_s: float | None = None) -> Progress:
        """Do what is due now, in one bounded cycle.

        A run that this one supersedes is advanced with it, until it is over.

        Args:
            deadline_s: Seconds after which nothing new is begun; None for no bound.

        Raises:
            RunIngestionSourceRequiredError: Its source was not read to the end and is not here.
            SourceError: The source is unusable.
        """
        until = None if deadline_s is None else self._clock.monotonic() + deadline_s
        before: Sequence[str] = ()
        if self._predecessor is not None and not self._predecessor.is_finished:
            before = self._predecessor.advance(deadline_s).did
        progress = self._executor.advance(self.run_id, self._plan, self._attachment, until)
        self._record = progress.run
        return progress.with_did(*before)

    def ingest(self) -> "Run":
        """Read the source to its end and send nothing: ``send`` and ``advance`` do that.

        Waits for the lease of another process, also of one that died.

        Raises:
            RunIngestionSourceRequiredError: The source is not here.
            SourceError: The source is unusable.
            RunPausedError: It is paused: by hand, or since its files cannot be written.
            ArtifactUnavailableError: Its files are out of reach, at several tries; call it again.
        """

        def read() -> Progress:
            return self._executor.advance(
                self.run_id, self._plan, self._attachment, only=frozenset({"ingest"})
            )

        if self.refresh().status is RunState.INGESTING:
            self._repeat(read, until=lambda: self.status is not RunState.INGESTING)
        if self.status is RunState.INGESTING:
            self._check_not_paused()
        return self

    def send(self) -> "Run":
        """Read the source to its end and send what fits; does not wait for answers.

        Waits for the lease of another process, also of one that died: else a program that was
        killed and started again would end without having done anything.

        Raises:
            BudgetExceededError: Its estimate exceeds its budget; nothing was sent.
            RunIngestionSourceRequiredError: The source is not here.
            SourceError: The source is unusable.
            ArtifactUnavailableError: Its files are out of reach, at several tries; call it again.
        """
        if not self.is_finished:
            self._repeat(self.advance, until=lambda: self.is_finished)
        self.check_affordable()
        return self

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "Run":
        """Advance until the run is finished.

        Args:
            timeout_s: Seconds to wait at most; None waits for ever.
            on_progress: Called after each cycle, the last one included.

        Raises:
            RunPausedError: It is paused; ``advance`` still collects what is in flight.
            BudgetExceededError: Its estimate exceeds its budget; nothing was sent.
            WaitTimeoutError: It is not finished in time; it goes on when it is advanced again.
            RunIngestionSourceRequiredError: Its source was not read to the end and is not here.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            left = None if until is None else until - self._clock.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeoutError(
                    f"run {self.run_id!r} is not finished after {timeout_s:g} s; it goes on: wait "
                    "again, or look at its status"
                )
            progress = self.advance(left)
            if on_progress is not None:
                on_progress(progress)
            if self.is_finished:
                return self
            self._check_not_paused()
            if not progress.did:
                self._sleep(progress, left)

    def pause(self, reason: str = "paused by hand") -> "Run":
        """Stop ingesting, retrying and submitting; what is in flight is still collected."""
        return self._control(RunControlState.PAUSE, reason)

    def resume(self, budget: BudgetPolicy | None = None) -> "Run":
        """Go on after a pause.

        Args:
            budget: Another budget than before; a bound that it does not name stays as it is.

        Raises:
            BudgetError: The price of the model is not known.
        """
        if budget is not None:
            change_budget(self._store, self.refresh().record, budget)
        return self._control(RunControlState.RUN, None)

    def cancel(self, reason: str = "cancelled by hand") -> "Run":
        """End the run: the next cycles cancel its batches and collect what was paid."""
        return self._control(RunControlState.CANCEL, reason)

    def retry_failed(
        self, *, run_id: str | None = None, codes: Iterable[str] | None = None
    ) -> "Run":
        """Open a run that asks the failed items of this finished one again, and fill it.

        Its items are cut out of this run's request files: no source is needed, and they keep ids,
        row numbers, kept columns and metadata. It is a run of its own, with results of these items
        only; ``results_frame(combined=True)`` of this one puts them in their places. An item is
        taken once: what fails again is retried from the new run. It has the same budget, to itself.

        Args:
            run_id: The new run's id; default: this one's, with ``.retry-1`` and so on. A run of
                this id that was opened for the same is gone on with.
            codes: Only items that failed with one of these error codes; default: all but
                ``run_cancelled``.

        Returns:
            The new run, with nothing sent yet: ``advance`` or ``wait`` for it.

        Raises:
            RunNotFinishedError: This run is not finished.
            NothingToRetryError: No failed item is left that was not taken before.
            ArtifactPrunedError: Its requests, items or results were pruned.
            RunError: Another retry is still taking items, or the id is another run's.
        """
        self._parts()
        wanted = None if codes is None else sorted(set(codes))
        record = open_retry_run(self._store, self._artifacts, self._record, run_id, wanted)
        retry = Run(
            record=record,
            plan=self._plan,
            store=self._store,
            artifacts=self._artifacts,
            clock=self._clock,
            executor=self._executor,
        )
        return retry.ingest()

    def estimate(self) -> Estimate:
        """Return what the rows that were read so far come to, whatever was sent of them."""
        chunks = self._store.list_chunks(self.run_id)
        return estimate_chunks(self._plan, chunks, self._store.scope_limits(self._record.scope))

    def check_affordable(self) -> None:
        """Tell whether the run stands still because it is too much for its budget.

        Raises:
            BudgetExceededError: Its estimate exceeds its budget; nothing was sent.
        """
        check_affordable(self._store, self._record)

    def counts(self) -> RunCounts:
        """Return where the items are."""
        return self._store.counts(self.run_id)

    def summary(self) -> RunSummary:
        """Return state, counts, usage and cost, as they are now."""
        self.refresh()
        usage = self._store.usage(self.run_id)
        price = self._plan.price
        saved = None
        if price is not None and usage.cost_usd is not None:
            saved = usage.cost_usd * (price.realtime_factor - 1)
        return RunSummary(
            run_id=self.run_id,
            status=self.status,
            control_state=self.control_state,
            control_reason=self.control_reason,
            counts=self.counts(),
            usage=usage,
            cost_usd=usage.cost_usd,
            saved_usd=saved,
        )

    def provider_batch_ids(self) -> list[str]:
        """Return the ids of all provider batches that were created for the run, oldest first."""
        submissions = self._store.list_submissions(self.run_id)
        return [s.provider_batch_id for s in submissions if s.provider_batch_id]

    def results(self) -> list[ItemResult]:
        """Return every item's result, in input order. For large runs read ``results_frame``.

        Raises:
            RunNotFinishedError: The run is not finished.
        """
        return list(self.iter_results())

    def iter_results(self) -> Iterator[ItemResult]:
        """Yield every item's result, in input order, one part of the table in memory at a time."""
        self._require(ArtifactKind.ITEMS)
        for part in self._parts():
            yield from read_items(
                self._store,
                self._artifacts,
                part,
                self._plan.validator,
                has_vectors=self._plan.dimensions is not None,
            )

    def result_parts(self, *, combined: bool = False) -> Iterator[pa.Table]:
        """Yield the result table part by part, in input order.

        Args:
            combined: Whether what ``retry_failed`` has led to takes the place of the failures;
                attempts, tokens and cost are added up.

        Raises:
            RunNotFinishedError: The run is not finished, or a retry of it.
        """
        if combined:
            schema = self._plan.result_schema
            parts = self._parts()
            table = CombinedResults(self._store, self._artifacts, self.run_id, schema)
            yield from map(table.part, parts)
            return
        for chunk in self._parts():
            assert chunk.results is not None
            with self._artifacts.local(chunk.results) as path:
                table = pq.read_table(path)
            yield table.cast(self._plan.result_schema)

    def results_by_member(self) -> MemberResults:
        """Return the result table by partition: a context manager.

        Raises:
            RunNotFinishedError: The run is not finished.
        """
        members = self._store.list_members(self.run_id)
        return MemberResults(self._artifacts, self._parts(), members, self._plan.result_schema)

    def member_fingerprints(self, count: int) -> list[tuple[str, int]]:
        """Return (fingerprint, number of rows) of each of the ``count`` members of the input."""
        if count == 1:
            return [(self._record.fingerprint or "", self._record.total_items)]
        declaration = encode_declaration(self._record.spec["declaration"])
        chunks = self._store.list_chunks(self.run_id)
        return member_fingerprints(self._artifacts, chunks, declaration, count)

    def results_frame(self, *, combined: bool = False) -> pl.LazyFrame:
        """Return the result table, in input order; see ``docs/results.md`` for its columns.

        Local files are scanned lazily. Those of another place are read first.

        Args:
            combined: See ``result_parts``; read first, too.

        Raises:
            RunNotFinishedError: The run is not finished, or a retry of it.
        """
        parts = self._parts()
        if combined or not parts or not self._artifacts.is_local:
            tables = self.result_parts(combined=combined)
            table = pa.concat_tables([self._plan.result_schema.empty_table(), *tables])
            return pl.LazyFrame(pl.from_arrow(table))
        with ExitStack() as stack:
            refs = [chunk.results for chunk in parts if chunk.results is not None]
            paths = [stack.enter_context(self._artifacts.local(ref)) for ref in refs]
            return pl.scan_parquet(paths, glob=False)  # a folder may be named art[1]

    def export_terminal_results(self, path: str, *, combined: bool = False) -> int:
        """Write the result table to one Parquet, JSONL or CSV file; return its number of rows.

        Args:
            path: The file.
            combined: See ``result_parts``.

        Raises:
            RunNotFinishedError: The run is not finished, or a retry of it.
            ConfigurationError: The file's suffix is none of these, or it cannot be written.
        """
        from batchor_core.results.export import export  # noqa: PLC0415 - keeps start-up light

        parts = self.result_parts(combined=combined)
        return export(parts, self._plan.result_schema, path)

    def _parts(self) -> list[ChunkRecord]:
        self.refresh()
        if not self.is_finished:
            raise RunNotFinishedError(
                f"run {self.run_id!r} is {self.status}; results are complete once it is finished"
            )
        check_not_pruned(
            self._record, [ArtifactKind.RESULTS], "counts and cost are all that is left"
        )
        chunks = self._store.list_chunks(self.run_id)
        parts = [c for c in chunks if c.round == 0 and c.parent_seq is None]
        if any(part.results is None for part in parts):
            raise ArtifactMissingError(
                f"run {self.run_id!r} is {self.status} without a complete result table: "
                f"{self._record.error_message}"
            )
        return parts

    def _repeat(self, cycle: Callable[[], Progress], *, until: Callable[[], bool]) -> None:
        """Repeat a cycle until it has done nothing; wait for leases, and bear a short outage."""
        outages = 0
        while True:
            progress = cycle()
            self._record = progress.run
            if until():
                return
            outages = outages + 1 if progress.outage else 0
            if progress.outage and outages == _MOST_OUTAGES:
                raise progress.outage
            if progress.busy or progress.outage:
                self._sleep(progress, None)
            elif not progress.did:
                return

    def _check_not_paused(self) -> None:
        if self.control_state is RunControlState.PAUSE:
            self.check_affordable()
            raise RunPausedError(
                f"run {self.run_id!r} is paused: {self.control_reason}; resume it when that is "
                "mended"
            )

    def _control(self, control: RunControlState, reason: str | None) -> "Run":
        self._record = self._store.set_control(self.run_id, control, reason)
        return self

    def _sleep(self, progress: Progress, left: float | None) -> None:
        wait_s = self._plan.job.timing.poll_s
        if progress.next_due is not None:
            wait_s = (progress.next_due - self._clock.now()).total_seconds()
        longest_s = self._plan.job.timing.poll_s
        if progress.busy:  # who holds the lease may well give it back before it runs out
            longest_s = min(longest_s, _LONGEST_SLEEP_FOR_LEASE_S)
        wait_s = min(max(wait_s, _SHORTEST_SLEEP_S), longest_s)
        self._clock.sleep(wait_s if left is None else min(wait_s, max(left, 0.0)))
