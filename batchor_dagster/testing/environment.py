"""Environment variables by which the SDKs of all providers call the simulator."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from batchor_core.simulator import Simulator

_TAKEN_AWAY = (
    "ANTHROPIC_AUTH_TOKEN",
    "AZURE_OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
)
"""Variables by which the SDKs would call a real account, or Vertex AI."""


@contextmanager
def simulated_environment(simulator: Simulator) -> Iterator[None]:
    """Make the SDKs of all providers call a simulator; restore the environment afterwards.

    Sets their variables for base URL and key, removes those that name other accounts, bypasses
    proxies, and has tokens estimated from bytes, so that no vocabulary is downloaded.
    """
    hosts = {name: _with_loopback(os.environ.get(name)) for name in ("NO_PROXY", "no_proxy")}
    settings = {**simulator.environment, **hosts, "BATCHOR_VOCABULARY": "off"}
    names = [*settings, *_TAKEN_AWAY]
    before = {name: os.environ[name] for name in names if name in os.environ}
    try:
        for name in _TAKEN_AWAY:
            os.environ.pop(name, None)
        os.environ.update(settings)
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


def _with_loopback(hosts: str | None) -> str:
    return ",".join(filter(None, [hosts, "127.0.0.1"]))
