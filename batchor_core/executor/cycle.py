"""What the steps of one cycle share: the parts, the lease, the deadline, the probes."""

import dataclasses
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchor_core.artifacts import ArtifactStore, RunLayout
from batchor_core.clock import Clock
from batchor_core.errors import ArtifactUnavailableError
from batchor_core.executor.plan import RunPlan
from batchor_core.model.records import Lease, RunRecord
from batchor_core.model.states import RunControlState
from batchor_core.planning.prompts import PromptReader
from batchor_core.planning.tokens import TokenEstimator
from batchor_core.sources.protocol import ItemSource
from batchor_core.store.protocol import Store

Probe = Callable[[str], None]
"""Called with the name of each point where a crash would leave something behind."""

_RENEW_BELOW = 2 / 3


def no_probe(name: str) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """What only the process that started the run has.

    Attributes:
        source: The rows.
        prompts: Makes their prompts.
    """

    source: ItemSource
    prompts: PromptReader


class LeaseOwner:
    """Names who takes leases: one object, in one process, in one thread.

    An owner may take its own lease again. So the name is made when it is asked for: two threads
    are two owners, and so are a process and the child that it forks.
    """

    def __init__(self) -> None:
        self._object = uuid.uuid4().hex[:8]

    def __str__(self) -> str:
        process = f"{socket.gethostname()}:{os.getpid()}"
        return f"{process}:{self._object}:{threading.get_ident()}"


class LeaseKeeper:
    """Holds the lease of one run during one cycle and extends it in time.

    The remaining time is measured on the monotonic clock from before the store was asked, so
    that it is never overestimated, whatever the wall clock does.
    """

    def __init__(self, store: Store, clock: Clock, lease: Lease, seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._seconds = seconds
        self._until = clock.monotonic() + seconds
        self._pid = os.getpid()
        self.lease = lease

    @classmethod
    def acquire(
        cls, store: Store, clock: Clock, run_id: str, owner: LeaseOwner, seconds: float
    ) -> "LeaseKeeper | None":
        """Take the run's lease, or return None while another owner has it."""
        before = clock.monotonic()
        lease = store.acquire_lease(run_id, str(owner), seconds)
        if lease is None:
            return None
        keeper = cls(store, clock, lease, seconds)
        keeper._until = before + seconds
        return keeper

    @property
    def remaining_s(self) -> float:
        """Seconds for which nobody else can take the run over."""
        return self._until - self._clock.monotonic()

    def keep(self) -> None:
        """Extend the lease if a third of it is used up.

        Raises:
            LeaseLostError: Another process has it.
        """
        if self.remaining_s < self._seconds * _RENEW_BELOW:
            self.renew()

    def renew(self) -> None:
        """Extend the lease to its full length from now."""
        before = self._clock.monotonic()
        self.lease = self._store.renew_lease(self.lease, self._seconds)
        self._until = before + self._seconds

    def release(self) -> None:
        """Give the lease back; a child that was forked on the way has none to give."""
        if self._pid == os.getpid():
            self._store.release_lease(self.lease)


@dataclass(kw_only=True)
class Cycle:
    """One cycle over one run; made by ``executor.advance`` and passed to every step.

    Attributes:
        run: The record as last read; steps that change it refresh it.
        deadline: Monotonic instant after which no new work is begun; None for none.
        attachment: None in a process that did not start the run.
    """

    store: Store
    artifacts: ArtifactStore
    clock: Clock
    run: RunRecord
    plan: RunPlan
    keeper: LeaseKeeper
    tokens: TokenEstimator
    attachment: Attachment | None
    deadline: float | None
    probe: Probe = no_probe

    @property
    def lease(self) -> Lease:
        """The lease in force."""
        return self.keeper.lease

    @property
    def layout(self) -> RunLayout:
        """Where the run's files lie."""
        return RunLayout(run_id=self.run.run_id)

    @property
    def is_over(self) -> bool:
        """Whether the cycle's time is used up."""
        return self.deadline is not None and self.clock.monotonic() >= self.deadline

    def refresh(self) -> RunRecord:
        """Read the run again: control may have changed meanwhile."""
        self.run = self.store.get_run(self.run.run_id)
        return self.run

    def pause(self, reason: str) -> None:
        """Pause the run, unless it is being cancelled."""
        self.run = self.store.set_control(self.run.run_id, RunControlState.PAUSE, reason)

    def in_seconds(self, seconds: float) -> datetime:
        """Return the instant ``seconds`` from now."""
        return self.clock.now() + timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What one cycle did.

    Attributes:
        run: The run afterwards.
        did: Names of the steps that changed something, in order.
        next_due: When the next cycle can do something; None for a run that is over or paused.
        busy: Whether another process holds the run's lease.
        outage: Why files could not be reached; the next cycle tries again.
    """

    run: RunRecord
    did: Sequence[str] = ()
    next_due: datetime | None = None
    busy: bool = False
    outage: ArtifactUnavailableError | None = None

    def with_did(self, *names: str) -> "Progress":
        """Return a copy with further steps."""
        return dataclasses.replace(self, did=[*self.did, *names])
