"""Everything that one simulator holds, joined."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from batchor_core.simulator.answers import AnswerWriter
from batchor_core.simulator.anthropic import AnthropicService
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.fault_kinds import FAULT_KINDS
from batchor_core.simulator.faults import FaultBook
from batchor_core.simulator.gemini import GeminiService, VertexService
from batchor_core.simulator.ledger import Ledger
from batchor_core.simulator.openai import OpenAIService
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.scripted_answers import AnswerScript
from batchor_core.simulator.spool import Spool
from batchor_core.simulator.world import World


class Service(Protocol):
    """What the simulator asks of the service of any protocol."""

    def settle(self) -> None:
        """Execute everything that is due."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """Tell of every batch, by id."""

    def reset(self) -> None:
        """Forget everything."""


class SimulatorState:
    """One simulated world: its time, files, batches, faults and ledger.

    Args:
        options: How it behaves.
        clock: Its time; tests may pass a frozen one.
    """

    def __init__(self, options: SimulatorOptions, clock: SimulatorClock | None = None) -> None:
        self.options = options
        self.clock = clock or SimulatorClock()
        self.spool = Spool(options.spool_dir)
        self.ledger = Ledger(self.spool.path("ledger.sqlite3"))
        self.faults = FaultBook(FAULT_KINDS)
        self.script = AnswerScript()
        world = World(
            options=options,
            clock=self.clock,
            spool=self.spool,
            faults=self.faults,
            ledger=self.ledger,
            writer=AnswerWriter(options.seed, self.script),
        )
        self.openai = OpenAIService(world)
        self.anthropic = AnthropicService(world)
        self.gemini = GeminiService(world)
        self.vertex = VertexService(world)
        self.services: tuple[Service, ...] = (
            self.openai,
            self.anthropic,
            self.gemini,
            self.vertex,
        )
        self._lock = threading.Lock()

    def add_faults(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Put fault rules in force, all or none.

        Raises:
            FaultError: A rule makes no sense.
        """
        with self._lock:
            self.faults.add(rules)
            self.clock.skew_s = self.faults.clock_skew_s()

    def clear_faults(self) -> None:
        """Put every fault rule out of force."""
        with self._lock:
            self.faults.clear()
            self.clock.skew_s = 0.0

    def settled_ledger(self) -> Ledger:
        """The ledger, with everything in it that was due by now."""
        for service in self.services:
            service.settle()
        return self.ledger

    def ledger_report(self, *, entries: bool = False) -> dict[str, Any]:
        """The ledger as JSON values; `entries` adds one for every execution."""
        ledger = self.settled_ledger()
        executed = ledger.executed_by_batch()
        report = ledger.summary()
        report["batches"] = {
            batch_id: {**batch, "executed": executed.get(batch_id, 0)}
            for service in self.services
            for batch_id, batch in service.describe().items()
        }
        if entries:
            report["entries"] = ledger.entries()
        return report

    def reset(self) -> None:
        """Forget files, batches, faults, scripted answers and the ledger; time goes on."""
        self.clear_faults()
        self.script.clear()
        for service in self.services:
            service.reset()
        self.ledger.clear()

    def close(self) -> None:
        """Remove everything from disk."""
        self.ledger.close()
        self.spool.close()
