"""Test your own Dagster project without a key, a bill, a daemon or waiting.

``materialize_batch_assets`` runs the request, both sensors and the materialize runs in one process,
with the code of production and a simulated provider whose time it moves.
``batchor_dagster.testing.fixtures`` has the simulator as a pytest fixture.

This package does not import pytest, and the rest of ``batchor_dagster`` does not import it.
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
