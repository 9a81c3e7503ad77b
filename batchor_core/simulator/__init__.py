"""A simulated provider: batch APIs over real HTTP, without a model, a key or a bill.

It answers deterministically, keeps queue limits and its own time, can be told to misbehave, and
keeps a ledger of every request it ever executed, which shows whether anything was paid twice.
"""

from batchor_core.simulator.app import SimulatorApp, create_app
from batchor_core.simulator.clock import SimulatorClock
from batchor_core.simulator.faults import FaultError
from batchor_core.simulator.ledger import Ledger, PaidTwice
from batchor_core.simulator.options import SimulatorOptions
from batchor_core.simulator.scripted_answers import Question, Reply
from batchor_core.simulator.server import Simulator, environment_of, serve

__all__ = [
    "FaultError",
    "Ledger",
    "PaidTwice",
    "Question",
    "Reply",
    "Simulator",
    "SimulatorApp",
    "SimulatorClock",
    "SimulatorOptions",
    "create_app",
    "environment_of",
    "serve",
]
