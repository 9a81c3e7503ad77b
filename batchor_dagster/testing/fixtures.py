"""The simulator as a pytest fixture.

Switch it on in the ``conftest.py`` at the root of your tests::

    pytest_plugins = ["batchor_dagster.testing.fixtures"]

or import ``batchor_simulator`` and ``batchor_simulator_options`` in any ``conftest.py``. pytest
does not load it by itself: that would import Dagster in every run of pytest in the environment.
"""

from collections.abc import Iterator

import pytest

from batchor_core.simulator import Simulator, SimulatorOptions
from batchor_dagster.testing.environment import simulated_environment

__all__ = ["batchor_simulator", "batchor_simulator_options"]


@pytest.fixture
def batchor_simulator_options() -> SimulatorOptions:
    """The simulator's options; override this fixture in your module or conftest."""
    return SimulatorOptions()


@pytest.fixture
def batchor_simulator(batchor_simulator_options: SimulatorOptions) -> Iterator[Simulator]:
    """A simulated provider, which every SDK calls while the test runs.

    ``answer`` scripts answers, ``faults`` scripts faults, ``advance_time`` moves its time, and
    ``ledger`` reports what it has executed.
    """
    with Simulator(batchor_simulator_options) as simulator, simulated_environment(simulator):
        yield simulator
