"""One bounded, re-runnable cycle over one run: the order of the steps, and nothing else."""

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa

from batchor_core.artifacts import ArtifactStore
from batchor_core.clock import Clock
from batchor_core.errors import (
    ArtifactAlteredError,
    ArtifactError,
    ArtifactMissingError,
    ArtifactUnavailableError,
    LeaseLostError,
)
from batchor_core.executor.cancel import cancel
from batchor_core.executor.collect import collect
from batchor_core.executor.cycle import (
    Attachment,
    Cycle,
    LeaseKeeper,
    LeaseOwner,
    Probe,
    Progress,
    no_probe,
)
from batchor_core.executor.due import HEAVY_STEPS, allowed_steps, due_steps
from batchor_core.executor.finish import finish
from batchor_core.executor.ingest import ingest
from batchor_core.executor.pack_retries import pack_retries
from batchor_core.executor.plan import RunPlan, check_host
from batchor_core.executor.poll import AccountFaultError, poll
from batchor_core.executor.recover import recover
from batchor_core.executor.submit import submit
from batchor_core.executor.sweep import sweep
from batchor_core.model.records import RunRecord, SubmissionRecord
from batchor_core.model.states import (
    UNCOLLECTED_SUBMISSION_STATES,
    RunControlState,
    RunState,
    SubmissionState,
)
from batchor_core.planning.tokens import TokenEstimator
from batchor_core.store.protocol import Store

logger = logging.getLogger(__name__)

_SWEEPS_AT_ONCE = 20

ARTIFACTS_LOST = "artifacts_lost"
"""Error code of a run that could not even be cancelled in order. Stored."""

_IS_LOST = (ArtifactMissingError, ArtifactAlteredError)
"""What no patience mends; a disk that is full has room again some day."""


class Executor:
    """Advances runs of one store and one artifact root.

    Args:
        store: The control plane.
        artifacts: The data plane.
        clock: Time.
        owner: Who takes the leases.
        probe: Called at each point where a crash would leave something behind.
    """

    def __init__(
        self,
        store: Store,
        artifacts: ArtifactStore,
        clock: Clock,
        owner: LeaseOwner,
        probe: Probe = no_probe,
    ) -> None:
        self._store = store
        self._artifacts = artifacts
        self._clock = clock
        self._owner = owner
        self._probe = probe
        self._tokens = TokenEstimator()

    def advance(
        self,
        run_id: str,
        plan: RunPlan,
        attachment: Attachment | None = None,
        deadline: float | None = None,
        only: frozenset[str] | None = None,
    ) -> Progress:
        """Do what is due for a run, and say when the next thing will be.

        Args:
            run_id: The run.
            plan: The run's bound job.
            attachment: Source and prompts, in the process that has them.
            deadline: Monotonic instant after which nothing new is begun.
            only: Names of the steps to do; None for all that the run's control allows.
        """
        run = self._store.get_run(run_id)
        if run.state.is_terminal:
            return Progress(run=run)
        check_host(run, plan.provider)
        self._sweep(run, plan)
        did = self._poll(run, plan, deadline)
        if not self._is_heavy_due(run_id, plan):
            return self._progress(run_id, plan, did)
        keeper = LeaseKeeper.acquire(
            self._store, self._clock, run_id, self._owner, plan.job.timing.lease_s
        )
        if keeper is None:
            return self._busy(run_id, did)
        cycle = Cycle(
            store=self._store,
            artifacts=self._artifacts,
            clock=self._clock,
            run=self._store.get_run(run_id),
            plan=plan,
            keeper=keeper,
            tokens=self._tokens,
            attachment=attachment,
            deadline=deadline,
            probe=self._probe,
        )
        outage = None
        try:
            did += self._work(cycle, only)
        except LeaseLostError:
            logger.warning("run %s: another process has taken over", run_id)
            return self._busy(run_id, did)
        except ArtifactUnavailableError as exc:  # the next cycle tries again
            logger.warning("run %s: %s", run_id, exc)
            outage = exc
        finally:
            keeper.release()
        return self._progress(run_id, plan, did, is_over=cycle.is_over, outage=outage)

    def _poll(self, run: RunRecord, plan: RunPlan, deadline: float | None) -> list[str]:
        now = self._clock.now()
        active = self._store.list_submissions(run.run_id, states=[SubmissionState.ACTIVE])
        due = [s for s in active if s.next_poll_at is None or s.next_poll_at <= now]
        if not due:
            return []
        try:
            ended = poll(
                self._store,
                plan.provider,
                self._clock,
                due,
                poll_s=plan.job.timing.poll_s,
                deadline=deadline,
            )
        except AccountFaultError as exc:
            self._store.set_control(run.run_id, RunControlState.PAUSE, str(exc))
            return []
        return ["poll"] if ended else []

    def _sweep(self, run: RunRecord, plan: RunPlan) -> None:
        """Look for late twins of this account, whatever run they are of."""
        due = self._store.due_sweeps(run.namespace, self._clock.now(), _SWEEPS_AT_ONCE)
        mine = [submission for submission in due if submission.account == run.account]
        sweep(self._store, plan.provider, self._clock, mine)

    def _work(self, cycle: Cycle, only: frozenset[str] | None) -> list[str]:
        try:
            with _heap_at_rest():
                return self._steps(cycle, only)
        except ArtifactUnavailableError:
            raise  # nothing that a person has to mend
        except ArtifactError as exc:
            _stop(cycle, exc)
            return []

    def _steps(self, cycle: Cycle, only: frozenset[str] | None) -> list[str]:
        """Run the steps that the run's control allows, in their one order."""
        did: list[str] = []
        for name, step in _STEPS:
            cycle.refresh()
            if cycle.run.state.is_terminal or (cycle.is_over and did):
                break
            if only is not None and name not in only:
                continue
            if name in allowed_steps(cycle.run) and step(cycle):
                did.append(name)
                pa.default_memory_pool().release_unused()  # Arrow keeps freed pages to itself
            cycle.keeper.keep()
        return did

    def _is_heavy_due(self, run_id: str, plan: RunPlan) -> bool:
        now = self._clock.now()
        work = self._store.open_work(run_id)
        return any(
            due.step in HEAVY_STEPS and (due.at <= now or due.step == "recover")  # look each time
            for due in due_steps(work, plan.job.timing, now)
        )

    def _progress(
        self,
        run_id: str,
        plan: RunPlan,
        did: list[str],
        *,
        is_over: bool = False,
        outage: ArtifactUnavailableError | None = None,
    ) -> Progress:
        now = self._clock.now()
        work = self._store.open_work(run_id)
        instants = [due.at for due in due_steps(work, plan.job.timing, now)]
        next_due = min(instants, default=None)
        is_idle = outage is not None or not (did or is_over)
        if next_due is not None and next_due <= now and is_idle:
            # What was due could not be done (a download that fails, say): not again at once.
            next_due = now + timedelta(seconds=plan.job.timing.poll_s)
        return Progress(run=work.run, did=did, next_due=next_due, outage=outage)

    def _busy(self, run_id: str, did: list[str]) -> Progress:
        lease = self._store.lease_of(run_id)
        return Progress(
            run=self._store.get_run(run_id),
            did=did,
            next_due=lease.expires_at if lease else self._clock.now(),
            busy=True,
        )


_STEPS: tuple[tuple[str, Callable[[Cycle], bool]], ...] = (
    ("recover", recover),
    ("cancel", cancel),
    ("collect", collect),
    ("retry", pack_retries),
    ("ingest", ingest),
    ("submit", submit),
    ("finish", finish),
)


@contextmanager
def _heap_at_rest() -> Iterator[None]:
    """Keep the garbage collector from all that exists already, for the time of the block.

    Millions of short-lived objects come and go in a cycle; each full collection that they cause
    would walk every object of the process: a quarter of a large run's CPU time.
    """
    if gc.get_freeze_count():  # by somebody else, who shall not find it undone
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _stop(cycle: Cycle, error: ArtifactError) -> None:
    """Pause a run whose files cannot be used; one under cancel is tried again, or fails.

    It fails where files of it are lost for good, and nothing is left that may still be collected.
    """
    run_id = cycle.run.run_id
    if cycle.refresh().control is not RunControlState.CANCEL:
        logger.warning("run %s: paused: %s", run_id, error)
        cycle.pause(f"artifacts: {error}")
    elif isinstance(error, _IS_LOST) and not _may_collect_more(cycle):
        logger.warning("run %s: failed: %s", run_id, error)
        cycle.store.close_run(
            cycle.lease, RunState.FAILED, error_code=ARTIFACTS_LOST, error_message=str(error)
        )
    else:
        logger.warning("run %s: is not cancelled yet: %s", run_id, error)


def _may_collect_more(cycle: Cycle) -> bool:
    """Whether something was paid for, or perhaps, whose answers can still be told apart."""
    uncollected = cycle.store.list_submissions(
        cycle.run.run_id, states=UNCOLLECTED_SUBMISSION_STATES
    )
    return any(
        submission.state is not SubmissionState.ENDED or _has_items(cycle, submission)
        for submission in uncollected
    )


def _has_items(cycle: Cycle, submission: SubmissionRecord) -> bool:
    """Whether the file that tells whose each answer is exists, or may exist."""
    chunk = cycle.store.get_chunk(cycle.run.run_id, submission.chunk_seq)
    cycle.keeper.keep()  # the file may be far away, and large
    try:
        with cycle.artifacts.local(chunk.items):
            return True
    except _IS_LOST:
        return False
    except ArtifactError:
        return True
