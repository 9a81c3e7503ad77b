"""The simulated provider of the tests."""

from batchor_dagster.testing.fixtures import batchor_simulator, batchor_simulator_options

__all__ = ["batchor_simulator", "batchor_simulator_options"]
