"""Whether an existing run is the one that a job asks for, and what to do if it is not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batchor_core.clock import Clock
from batchor_core.errors import FingerprintMismatchError, LeaseLostError
from batchor_core.executor.budget import budget_of
from batchor_core.executor.cycle import Attachment, LeaseKeeper, LeaseOwner
from batchor_core.executor.digests import RowsDigest, fingerprint
from batchor_core.executor.plan import RunPlan
from batchor_core.executor.requests import read_requests, source_mark
from batchor_core.job import BatchJob, OnChange, encode_declaration
from batchor_core.model.policies import BudgetPolicy
from batchor_core.model.records import NewRun, RunRecord
from batchor_core.model.states import RunState
from batchor_core.planning.prompts import PROMPT_COLUMN, PromptReader
from batchor_core.planning.templates import PromptTemplate
from batchor_core.sources.composite import CompositeItemSource
from batchor_core.sources.objects import source_of
from batchor_core.store.protocol import Store


def attachment_of(job: BatchJob) -> Attachment:
    """Return the source of a job and how its rows become prompts.

    Raises:
        ConfigurationError: ``items`` is nothing that rows can be read from, or lacks a column
            that prompts are made from.
    """
    template = PromptTemplate(job.prompt_template) if job.prompt_template is not None else None
    prompts = PromptReader(build=job.build_prompt, template=template)
    source = source_of(job.items, job.id_column)
    if isinstance(source, CompositeItemSource):
        source.require([*_columns_of_prompts(prompts), *job.keep])
    columns = source.columns
    if columns is not None:  # refused before a run is recorded
        prompts.check(columns, source.label)
    return Attachment(source=source, prompts=prompts)


@dataclass(frozen=True, kw_only=True)
class Reattachment:
    """A job that names a run that may exist.

    Attributes:
        owner: Who takes leases.
        new: What the job would open.
        on_change: What to do with a run that is another one.
    """

    store: Store
    clock: Clock
    owner: LeaseOwner
    new: NewRun
    plan: RunPlan
    attachment: Attachment
    on_change: OnChange

    def record(self) -> RunRecord:
        """Return the run to go on with: the named one, its latest successor, or a new one.

        Raises:
            FingerprintMismatchError: It is another one, and ``on_change`` is ``refuse``.
            LeaseLostError: It is being read by another process, from another input.
        """
        record = self.store.create_run(self.new)
        generation = 1
        while (successor := self.store.successor_of(record.run_id)) is not None:
            record = successor
            generation += 1
        if record.retry_of is not None:
            raise FingerprintMismatchError(
                f"run {record.run_id!r} asks failed items of run {record.retry_of!r} again: choose "
                "another run id"
            )
        if record.state is RunState.INGESTING:
            return self._half_read(record)
        difference = self._difference(record)
        if difference is None:
            return record
        if self.on_change == "refuse":
            raise FingerprintMismatchError(
                f"run {record.run_id!r} exists with {difference}: choose another run id, or let "
                "it be superseded"
            )
        new = replace(
            self.new, run_id=f"{self.new.run_id}.{generation + 1}", predecessor=record.run_id
        )
        return self.store.supersede_run(record.run_id, new)

    def _difference(self, record: RunRecord) -> str | None:
        """Return what differs from a run whose source was read to its end, or None."""
        if record.declaration_digest != self.new.declaration_digest:
            return "another model, other parameters, prompts or output schema"
        if record.fingerprint is None or record.fingerprint == self._fingerprint():
            return None
        return "other input rows or prompts"

    def _fingerprint(self) -> str:
        """Return the fingerprint that the job would have, by reading its source once."""
        digest = RowsDigest()
        for ids, keys, members in read_requests(self.plan, self.attachment):
            digest.add(ids, keys, members)
        declaration = encode_declaration(self.new.spec["declaration"])
        return fingerprint(declaration, digest.member_digests())

    def _half_read(self, record: RunRecord) -> RunRecord:
        """Go on with a half-read run; one whose declaration or source has changed begins again."""
        mark = source_mark(self.attachment.source)
        checkpoint = record.checkpoint or {}
        same_job = record.declaration_digest == self.new.declaration_digest
        same_source = not checkpoint or (mark is not None and checkpoint.get("source") == mark)
        if same_job and same_source:
            return record
        keeper = LeaseKeeper.acquire(
            self.store, self.clock, record.run_id, self.owner, self.plan.job.timing.lease_s
        )
        if keeper is None and same_job and mark is None:
            return record  # nobody can tell whether the rows are the same; their reader goes on
        if keeper is None:
            raise LeaseLostError(
                f"run {record.run_id!r} is being read by another process: wait for it, or choose "
                "another run id"
            )
        try:
            budget = BudgetPolicy(
                run_usd=self.new.budget_usd, scope_day_usd=self.new.budget_day_usd
            ).over(budget_of(record))
            new = replace(
                self.new,
                run_id=record.run_id,
                predecessor=record.predecessor,
                budget_usd=budget.run_usd,
                budget_day_usd=budget.scope_day_usd,
            )
            return self.store.restart_ingestion(keeper.lease, new)
        finally:
            keeper.release()


def _columns_of_prompts(prompts: PromptReader) -> Sequence[str]:
    if prompts.template is not None:
        return prompts.template.columns
    return () if prompts.build is not None else (PROMPT_COLUMN,)
