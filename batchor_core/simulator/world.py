"""What the services of all protocols share."""

from dataclasses import dataclass

from batchor_core.simulator.answers import AnswerWriter
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.faults import FaultBook
from batchor_core.simulator.ledger import Ledger
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.spool import Spool


@dataclass(frozen=True, kw_only=True)
class World:
    """One simulated world: its time, its disk, its faults, its ledger and its model."""

    options: SimulatorOptions
    clock: SimulatorClock
    spool: Spool
    faults: FaultBook
    ledger: Ledger
    writer: AnswerWriter
