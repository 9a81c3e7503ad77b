"""Starting and finding batch runs: the one place that joins store, artifacts, provider and job."""

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from pydantic import BaseModel

from batchor_core.artifacts.kinds import SENT_AND_RECEIVED, ArtifactKind
from batchor_core.artifacts.layout import RunLayout
from batchor_core.clock import Clock
from batchor_core.errors import (
    ArtifactUnavailableError,
    BudgetExceededError,
    ConfigurationError,
    MissingCredentialsError,
    ModelNotImportableError,
    PruneRefusedError,
)
from batchor_core.executor.advance import Executor
from batchor_core.executor.budget import change_budget, check_enforceable
from batchor_core.executor.cycle import Attachment, LeaseOwner, Probe, no_probe
from batchor_core.executor.estimating import estimate_source
from batchor_core.executor.plan import RunPlan, bind, check_host
from batchor_core.executor.poll import AccountFaultError
from batchor_core.executor.poll_account import AccountPoll, Walk
from batchor_core.executor.reconcile import Reconciled, Reconciliation
from batchor_core.executor.sweep import sweep
from batchor_core.ids import LONGEST_RUN_ID, new_run_id
from batchor_core.job import (
    BatchJob,
    StoredJob,
    check_importable,
    declaration_of,
    encode_declaration,
)
from batchor_core.model.records import NewRun, RunRecord
from batchor_core.model.states import TERMINAL_RUN_STATES, RunControlState, RunState
from batchor_core.observability import EventListener, Notifier
from batchor_core.places import MEMORY, ArtifactPlace, StoragePlace, open_artifacts, open_store
from batchor_core.planning.estimate import Estimate
from batchor_core.planning.tokens import TokenEstimator
from batchor_core.providers.forked import ForkedApart
from batchor_core.providers.protocol import BatchProvider
from batchor_core.providers.registry import (
    ProviderConfig,
    ProviderFactory,
    connect,
    connect_without_key,
)
from batchor_core.reattach import Reattachment, attachment_of
from batchor_core.results.costs import CostKey, CostLine, cost_lines
from batchor_core.results.pruning import Pruned, prune_files
from batchor_core.run import Run

logger = logging.getLogger(__name__)

DEFAULT_NAMESPACE = "default"


class BatchRunner:
    """Starts, finds and drives batch runs.

    Args:
        storage: The control plane: a store, the path of a SQLite file, a ``postgresql://`` URL,
            or ``"memory"``; default: ``$BATCHOR_HOME/state.sqlite3``.
        artifacts: The data plane: a store, a folder or any fsspec URL; default: the folder
            ``artifacts`` beside the SQLite file.
        namespace: Whose runs these are.
        connect: Makes the adapter of a provider's config; programs that keep credentials
            themselves put them in here.
        clock: Time; tests pass a manual one.
        probe: Called at each point where a crash would leave something behind; for tests.
        listeners: Told of each event that this runner's store commits; see ``observability``.

    Close it, or use it as a context manager, to give connections back.
    """

    def __init__(
        self,
        storage: StoragePlace = None,
        artifacts: ArtifactPlace = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        connect: ProviderFactory = connect,
        clock: Clock | None = None,
        probe: Probe = no_probe,
        listeners: Iterable[EventListener] = (),
    ) -> None:
        self.in_memory = storage == MEMORY
        self._scratch = tempfile.TemporaryDirectory(prefix="batchor-") if self.in_memory else None
        self.store = open_store(storage, clock)
        self.clock = clock or self.store.clock
        if told := tuple(listeners):
            self.store.subscribe(Notifier(told))
        scratch = self._scratch.name if self._scratch else ""
        self.artifacts = open_artifacts(artifacts, storage, scratch)
        self.namespace = namespace
        self._owner = LeaseOwner()
        self._probe = probe
        self._executor = Executor(self.store, self.artifacts, self.clock, self._owner, probe)
        self._connect = connect
        self._adapters: list[tuple[ProviderConfig, BatchProvider]] = []
        self._models: dict[str, type[BaseModel]] = {}
        self._plans: dict[str, RunPlan] = {}

    def start(self, job: BatchJob, *, run_id: str | None = None) -> Run:
        """Open a batch run, or go on with the one of this id.

        Reads the source to its end first; nothing is sent before that. Sends what fits, and
        returns: drive the run with ``wait`` or ``advance``, here or in any other process. While
        another process holds the run, or died holding it, its lease is waited for.

        Args:
            job: What to do.
            run_id: The run's id; a fresh one by default.

        Raises:
            ConfigurationError: The job cannot work; nothing was sent.
            BudgetExceededError: Its estimate exceeds its budget; nothing was sent.
            FingerprintMismatchError: A run of this id exists with other input or another job.
            ModelNotImportableError: Another process could not find the output model.
            ArtifactUnavailableError: Files are out of reach, at several tries; start it again.
        """
        if isinstance(job.structured_output, type) and not self.in_memory:
            check_importable(job.structured_output)
        run = self.open(job, run_id=run_id)
        with self.dropping_if_unusable(run, is_new=run_id is None):
            return run.send()

    def run_and_wait(
        self, job: BatchJob, *, run_id: str | None = None, timeout_s: float | None = None
    ) -> Run:
        """Open a batch run and drive it in this process until it is finished.

        Raises:
            WaitTimeoutError: It is not finished in time.
            RunPausedError: It was paused.
            ConfigurationError: The job cannot work; nothing was sent.
            BudgetExceededError: Its estimate exceeds its budget; nothing was sent.
        """
        run = self.open(job, run_id=run_id)
        with self.dropping_if_unusable(run, is_new=run_id is None):
            return run.wait(timeout_s)

    def open(self, job: BatchJob, *, run_id: str | None = None) -> Run:
        """Record a batch run and attach this process to its source; nothing is read or sent yet.

        Raises:
            BudgetError: It has a budget, and the price of its model is not known.
            ConfigurationError: The run's files are there, but the store does not know it.
            FingerprintMismatchError: A run of this id exists with other input or another job.
        """
        if run_id is not None and not 0 < len(run_id) <= LONGEST_RUN_ID:
            raise ConfigurationError(
                f"a run id of {len(run_id)} characters: give 1 to {LONGEST_RUN_ID}"
            )
        stored = StoredJob.of(job)
        output = job.output_model
        check_enforceable(job.whole_budget, job.provider_config)
        plan = bind(stored, output, self._adapter)
        attachment = attachment_of(job)
        declaration = declaration_of(
            job, host=plan.provider.host, schema=plan.schema.schema if plan.schema else None
        )
        encoded = encode_declaration(declaration)
        new = NewRun(
            run_id=run_id or new_run_id(),
            namespace=self.namespace,
            spec={**stored.spec(), "declaration": declaration},
            account=plan.provider.account,
            scope=plan.scope,
            declaration_digest=hashlib.blake2b(encoded, digest_size=16).hexdigest(),
            budget_usd=job.whole_budget.run_usd,
            budget_day_usd=job.whole_budget.scope_day_usd,
        )
        if output is not None and stored.output is not None:
            self._models[stored.output] = output
        if run_id is None:
            record = self.store.create_run(new)
        else:
            self._check_not_lost(run_id)
            record = Reattachment(
                store=self.store,
                clock=self.clock,
                owner=self._owner,
                new=new,
                plan=plan,
                attachment=attachment,
                on_change=job.on_change,
            ).record()
            record = change_budget(self.store, record, job.whole_budget)
        self._plans[record.run_id] = plan
        return self._handle(record, plan, attachment)

    def _check_not_lost(self, run_id: str) -> None:
        """Refuse to begin a run anew whose files are there: it would be paid again."""
        try:
            has_files = self.artifacts.has_folder(RunLayout(run_id=run_id).folder)
        except ArtifactUnavailableError:
            return  # nobody can tell; the steps wait for the files, and say so
        if has_files and not self.store.get_runs([run_id]):
            raise ConfigurationError(
                f"run {run_id!r} is not in this store, but has files under "
                f"{self.artifacts.root!r}: the store was lost, or the run is another store's, and "
                "what it has sent would be paid again. Restore the store from a backup and run "
                "`batchor reconcile`, or begin under another run id"
            )

    def estimate(self, job: BatchJob) -> Estimate:
        """Read a job's input to its end and return what it comes to; nothing is recorded or sent.

        Needs no key. Item ids are not compared: ``start`` finds those that are there twice.

        Raises:
            ConfigurationError: The job cannot work, or its items can be read only once.
        """
        if isinstance(job.items, Iterator):
            raise ConfigurationError(
                "the job's items can be read only once, and an estimate would use them up: give a "
                "list, a frame or a source"
            )
        borrowed: list[BatchProvider] = []

        def connect(config: ProviderConfig) -> BatchProvider:
            try:
                return self._adapter(config)
            except MissingCredentialsError:
                borrowed.append(connect_without_key(config))
                return borrowed[-1]

        plan = bind(StoredJob.of(job), job.output_model, connect)
        try:
            remembered = self.store.scope_limits(plan.scope)
            return estimate_source(plan, attachment_of(job), TokenEstimator(), remembered)
        finally:
            for adapter in borrowed:
                adapter.close()

    def costs(self, by: CostKey = "run", *, since: datetime | None = None) -> list[CostLine]:
        """Return what was paid in this namespace, and what batch mode has saved.

        Args:
            by: What to group by.
            since: Only what was collected at this instant or later.
        """
        return cost_lines(self.store.costs(namespace=self.namespace, since=since), by)

    def get_run(self, run_id: str) -> Run:
        """Return a handle on a run that any process has started.

        Raises:
            RunNotFoundError: There is none.
            ModelNotImportableError: Its output model is not importable here.
            MissingCredentialsError: The provider's key is not in the environment.
        """
        record = self.store.get_run(run_id)
        plan = self._plans.get(run_id)
        if plan is None:
            plan = self._rehydrate(record)
            self._plans[run_id] = plan
        return self._handle(record, plan, None)

    def list_runs(
        self, *, states: Iterable[RunState] | None = None, limit: int | None = None
    ) -> list[RunRecord]:
        """Return the records of this namespace's runs, newest first."""
        return self.store.list_runs(namespace=self.namespace, states=states, limit=limit)

    def poll_due(self, deadline_s: float, walks: MutableMapping[str, Walk] | None = None) -> int:
        """Poll what is in flight and due, over all runs of the namespace; no lease, no file.

        List calls stand in for many gets.

        Args:
            deadline_s: Seconds after which nothing further is asked.
            walks: By account, where the last call was cut off; holds where this one was, after it.

        Returns:
            How many batches have ended.
        """
        until = self.clock.monotonic() + deadline_s
        accounts = self.store.accounts_to_poll(self.namespace, self.clock.now())
        self._sweep_due(accounts)
        before = dict(walks or {})
        ended = 0
        for account, run_id in accounts.items():
            walk = before.pop(account, None)
            if self.clock.monotonic() < until:
                interrupted, walk = walk, None
                with _apart(account):
                    count, walk = self._poll_account(run_id, until, interrupted)
                    ended += count
            if walk is not None:
                before[account] = walk
        if walks is not None:
            walks.clear()
            walks.update((account, before[account]) for account in accounts if account in before)
        return ended

    def reconcile(
        self, *, since: datetime | None = None, is_dry: bool = False
    ) -> Iterator[Reconciled]:
        """Put every provider batch of ours back in its place, after a store was restored.

        Covers the runs of all namespaces.
        Run it before anything else advances a run on the restored store.

        Args:
            since: Only batches created after this instant by the provider's clock; None for all
                that it lists.
            is_dry: Only tell what would be done.

        Raises:
            ProviderError: A provider's list cannot be read.
            MissingCredentialsError: An account's key is not in the environment.
        """
        accounts = {run.account: run for run in self.store.list_runs()}
        for run in accounts.values():
            stored = StoredJob.model_validate(run.spec)
            try:
                check_host(run, self._provider_of(run.run_id))
            except ConfigurationError as exc:
                logger.warning("not reconciled: %s", exc)
                continue
            yield from Reconciliation(
                store=self.store,
                provider=self._provider_of(run.run_id),
                clock=self.clock,
                owner=self._owner,
                lease_s=stored.timing.lease_s,
                is_dry=is_dry,
                probe=self._probe,
            ).run(since)

    def prune_artifacts(
        self,
        older_than: timedelta,
        kinds: Iterable[ArtifactKind | str] = SENT_AND_RECEIVED,
        *,
        is_dry: bool = False,
    ) -> list[Pruned]:
        """Remove files of all runs of the namespace that have been finished for so long.

        A run whose files may not go is left as it is, with the reason. What killed processes were
        downloading goes too.

        Args:
            older_than: Age since the run was finished.
            kinds: Which files; default: what was sent and received.
            is_dry: Only tell what would be removed.
        """
        named = [ArtifactKind(kind) for kind in kinds]
        before = self.clock.now() - older_than
        if not is_dry:
            self.artifacts.remove_leftovers()
        done: list[Pruned] = []
        for run in self.list_runs(states=TERMINAL_RUN_STATES):
            if run.finished_at is None or run.finished_at > before:
                continue
            try:
                pruned = prune_files(self.store, self.artifacts, run.run_id, named, is_dry=is_dry)
            except PruneRefusedError as exc:
                pruned = Pruned(
                    run_id=run.run_id, kinds=[], files=0, size_bytes=0, refused=str(exc)
                )
            if pruned.kinds or pruned.refused:
                done.append(pruned)
        return done

    def close(self) -> None:
        """Give back connections, and the scratch folder of an in-memory runner. Idempotent."""
        for _, adapter in self._adapters:
            adapter.close()
        self._adapters.clear()
        self._plans.clear()
        self.store.close()
        self.artifacts.close()
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def __enter__(self) -> "BatchRunner":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _adapter(self, config: ProviderConfig) -> BatchProvider:
        """Return the one adapter of all runs with this config: each holds its own connections."""
        for known, adapter in self._adapters:
            if known == config:
                return adapter
        adapter = cast("BatchProvider", ForkedApart(partial(self._connect, config)))
        self._adapters.append((config, adapter))
        return adapter

    @contextmanager
    def dropping_if_unusable(self, run: Run, *, is_new: bool) -> Iterator[None]:
        """Close a run whose input turns out to be unusable, or too much for its budget.

        Only one that is new and whose id nobody has chosen: any other goes on with a mended input.
        """
        try:
            yield
        except BudgetExceededError:
            if is_new:
                run.cancel("its estimate exceeds its budget").advance()
            raise
        except ConfigurationError:
            if is_new and run.refresh().status is RunState.INGESTING:
                run.cancel("its input is unusable").advance()
            raise

    def _sweep_due(self, accounts: Mapping[str, str]) -> None:
        """Look for late twins in the name of runs that still go on, or that are over."""
        due = self.store.due_sweeps(self.namespace, self.clock.now(), 100)
        for account in {submission.account for submission in due}:
            mine = [submission for submission in due if submission.account == account]
            run_id = accounts.get(account, mine[0].run_id)
            with _apart(account):
                sweep(self.store, self._provider_of(run_id), self.clock, mine)

    def _provider_of(self, run_id: str) -> BatchProvider:
        """Return the account of a run, with the key that this process may have been given."""
        plan = self._plans.get(run_id)
        if plan is not None:
            config = plan.job.provider_config
        else:
            config = StoredJob.model_validate(self.store.get_run(run_id).spec).provider_config
        return self._adapter(config)

    def _poll_account(
        self, run_id: str, until: float, walk: Walk | None
    ) -> tuple[int, Walk | None]:
        """Poll the account of a run; how many batches have ended, and where it was cut off."""
        # Not by the run's handle: without its output model it cannot be had, but be polled.
        run = self.store.get_run(run_id)
        stored = StoredJob.model_validate(run.spec)
        provider = self._provider_of(run_id)
        check_host(run, provider)
        poll = AccountPoll(
            self.store,
            provider,
            self.clock,
            account=run.account,
            poll_s=stored.timing.poll_s,
            deadline=until,
        )
        try:
            walk = poll.run(walk)
        except AccountFaultError as exc:
            self._pause(poll.runs, str(exc), until)
            walk = None
        return poll.ended, walk

    def _pause(self, run_ids: Iterable[str], reason: str, until: float) -> None:
        """Pause runs; those for which there is no time are found again with the next poll."""
        for run in self.store.get_runs(run_ids).values():
            if self.clock.monotonic() >= until:
                return
            if (run.control, run.control_reason) != (RunControlState.PAUSE, reason):
                self.store.set_control(run.run_id, RunControlState.PAUSE, reason)

    def _handle(self, record: RunRecord, plan: RunPlan, attachment: Attachment | None) -> Run:
        return Run(
            record=record,
            plan=plan,
            store=self.store,
            artifacts=self.artifacts,
            clock=self.clock,
            executor=self._executor,
            attachment=attachment,
            predecessor=self._predecessor_of(record),
            keeps=self._scratch,
        )

    def _predecessor_of(self, record: RunRecord) -> Run | None:
        """Return the run that this one waits for, where there is one that is not over."""
        if record.predecessor is None or record.state.is_terminal:
            return None
        if self.store.get_run(record.predecessor).state.is_terminal:
            return None
        return self.get_run(record.predecessor)

    def _rehydrate(self, record: RunRecord) -> RunPlan:
        stored = StoredJob.model_validate(record.spec)
        output = self._models.get(stored.output or "") or _output_of(stored, record)
        return bind(stored, output, self._adapter)


@contextmanager
def _apart(account: str) -> Iterator[None]:
    """Let nothing that is wrong with one account keep the others from being polled."""
    try:
        yield
    except ConfigurationError as exc:
        logger.warning("account %s cannot be reached from here: %s", account, exc)
    except Exception:
        logger.exception("account %s cannot be polled", account)


def _output_of(stored: StoredJob, record: RunRecord) -> type[BaseModel] | None:
    """Return a run's output model; a run under cancel ends without it, its answers as text."""
    try:
        return stored.load_output()
    except ModelNotImportableError:
        if record.control is not RunControlState.CANCEL:
            raise
        logger.warning("run %s: ends without its output model %s", record.run_id, stored.output)
        return None
