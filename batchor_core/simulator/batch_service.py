"""What the batches of every protocol have in common: they live, execute once, and end."""

import random
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from batchor_core.simulator.batch_faults import BatchKind, Moment
from batchor_core.simulator.batch_plan import BatchPlan
from batchor_core.simulator.faults import Target
from batchor_core.simulator.list_faults import ListKind
from batchor_core.simulator.record_faults import RecordKind
from batchor_core.simulator.world import World

LIST_BUDGET_S = 5.0
"""How long a list call may execute batches; it leaves the rest to the next call."""

B = TypeVar("B", bound=BatchPlan)


class BatchService(ABC, Generic[B]):
    """The batches of one simulated account.

    Nothing runs in the background: each call first settles what has become due. A batch has not
    ended before its requests were executed, so a list call may stop executing after a few seconds.

    Safe to use from several threads; calls may block for as long as a batch takes to execute.

    Args:
        world: What all protocols share.

    Attributes:
        protocol: The protocol's name, as fault kinds know it.
        prefix: What precedes the names of its routes in fault rules.
    """

    protocol: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, world: World) -> None:
        self._world = world
        self._options = world.options
        self._clock = world.clock
        self._spool = world.spool
        self._ledger = world.ledger
        self._faults = world.faults.of(self.protocol)
        self._batches: dict[str, B] = {}
        self._live: dict[str, B] = {}
        self._lock = threading.RLock()

    def settle(self) -> None:
        """Execute everything that is due."""
        with self._lock:
            self._settle()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Status, run and creation time of every batch."""
        with self._lock:
            now = self._clock.now()
            return {
                batch.id: {
                    "status": batch.status(now),
                    "run": batch.run,
                    "endpoint": batch.endpoint,
                    "created_at": self._clock.unix(batch.created_at),
                    "total": batch.total,
                }
                for batch in self._batches.values()
            }

    def reset(self) -> None:
        """Forget every batch."""
        with self._lock:
            self._batches.clear()
            self._live.clear()

    def target(self, batch_id: str) -> Target:
        """What fault rules may match of a batch that is named in a call."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return Target()
        return Target(run=batch.run, batch=batch.number, endpoint=batch.endpoint)

    @abstractmethod
    def _execute(self, batch: B) -> None:
        """Execute a batch's requests; afterwards it is ``executed``."""

    @abstractmethod
    def _record(self, batch: B) -> dict[str, Any]:
        """Return a batch as JSON, as it is now."""

    def _prepare(self, now: float) -> None:
        """Do what is due before anything is executed."""

    def _open(self, batch: B) -> None:
        """Take a new batch in; faults may change its plan."""
        self._batches[batch.id] = self._live[batch.id] = batch
        self._apply_faults(batch, "create")

    def _settle(self, *, only: str | None = None, budget_s: float | None = None) -> None:
        now = self._clock.now()
        self._prepare(now)
        started = time.monotonic()
        for batch in sorted(self._live.values(), key=lambda batch: batch.execute_at):
            if not batch.is_due(now) or only not in (None, batch.id):
                continue
            if budget_s is not None and time.monotonic() - started > budget_s:
                break
            self._execute(batch)
        self._live = {
            batch.id: batch for batch in self._live.values() if not batch.is_terminal(now)
        }

    def _apply_faults(self, batch: B, moment: Moment) -> None:
        for rule, kind in self._faults.rules(BatchKind, self.target(batch.id)):
            if kind.moment == moment and rule.strike():
                kind.apply(rule, batch)

    def _render(self, batch: B, route: str) -> dict[str, Any]:
        record = self._record(batch)
        target = replace(self.target(batch.id), route=self.prefix + route)
        for rule, kind in self._faults.rules(RecordKind, target):
            if kind.concerns(record) and rule.strike(batch.id):
                kind.apply(rule, record)
        return record

    def _listed(self) -> tuple[list[B], list[ListKind]]:
        """Return the batches that a list call shows, in its order, and the faults that struck."""
        self._settle(budget_s=LIST_BUDGET_S)
        now = self._clock.now()
        batches = [batch for batch in self._batches.values() if batch.visible_at <= now]
        batches.reverse()
        rules = self._faults.rules(ListKind, Target(route=f"{self.prefix}batches.list"))
        struck = [kind for rule, kind in rules if rule.strike()]
        for kind in struck:
            batches = kind.order(batches)
        return batches, struck

    def _shuffler(self, batch: B) -> random.Random:
        return random.Random(f"{self._options.seed}:{batch.number}")  # noqa: S311 no secret
