"""The simulator as a pytest fixture.

Switch it on in the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["batchor_dagster.testing.fixtures"]

or import ``batchor_simulator`` and ``batchor_simulator_options`` in any ``conftest.py``. It is no
plugin that pytest finds by itself: that would import Dagster in every run of pytest, also in
projects that share the environment and have nothing to do with it.
"""

from collections.abc import Iterator

import pytest

from batchor_core.simulator import Simulator, SimulatorOptions
from batchor_dagster.testing.environment import simulated_environment

__all__ = ["batchor_simulator", "batchor_simulator_options"]


@pytest.fixture
def batchor_simulator_options() -> SimulatorOptions:
    """How the simulator behaves; override it in your module or conftest."""
    return SimulatorOptions()


@pytest.fixture
def batchor_simulator(batchor_simulator_options: SimulatorOptions) -> Iterator[Simulator]:
    """A simulated provider, to which the environment leads every SDK as long as the test runs.

    ``answer`` gives it answers, ``faults`` lets things go wrong, ``advance_time`` lets time pass,
    ``ledger`` tells what was executed.
    """
    with Simulator(batchor_simulator_options) as simulator, simulated_environment(simulator):
        yield simulator
