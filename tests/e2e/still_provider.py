"""A simulated provider that works for exactly as long as a test says."""

from collections.abc import Iterator
from contextlib import contextmanager

from batchor_core.simulator import Simulator, SimulatorClock, SimulatorOptions

KEY = "sk-e2e-7f3b1c9d5a"
"""The only API key that it accepts."""


@contextmanager
def still_provider(batch_seconds: float) -> Iterator[Simulator]:
    """Start a provider whose clock stands still until it is moved.

    Args:
        batch_seconds: How far it must be moved for a batch to end.
    """
    options = SimulatorOptions(
        batch_seconds=batch_seconds, validating_seconds=0, finalizing_seconds=0, api_key=KEY
    )
    with Simulator(options, clock=SimulatorClock(monotonic=lambda: 0.0)) as simulator:
        yield simulator


def provider_env(simulator: Simulator) -> dict[str, str]:
    """Return the variables by which a project finds the provider."""
    return {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": simulator.openai_base_url}
