"""For tests of your own Dagster project: no key, no bill, no waiting, no daemon.

``materialize_batch_assets`` does in one process what takes a backfill, two sensors and a provider
some hours: it goes through the very same code, with a simulated provider whose time is moved.
``batchor_dagster.testing.fixtures`` has the simulator as a pytest fixture.

This package imports nothing of pytest, and nothing else of ``batchor_dagster`` imports it.
"""

from batchor_dagster.testing.clock import MovedClock
from batchor_dagster.testing.daemon import InProcessDaemon, QueuedRun
from batchor_dagster.testing.environment import simulated_environment
from batchor_dagster.testing.materialize import materialize_batch_assets
from batchor_dagster.testing.result import BatchMaterializeResult
from batchor_dagster.testing.row_function import row_function

__all__ = [
    "BatchMaterializeResult",
    "InProcessDaemon",
    "MovedClock",
    "QueuedRun",
    "materialize_batch_assets",
    "row_function",
    "simulated_environment",
]
