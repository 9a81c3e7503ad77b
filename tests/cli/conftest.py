"""A shell: a folder to work in, an environment without secrets, a simulated provider."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchor_core.simulator import Simulator, SimulatorOptions
from tests.cli.commands import MODULE, Shell

ROWS = (
    "id,text,topic,odd name\na,Lost card,card,one\nb,No cash,cash,two\nc,Broken card,card,three\n"
)
REFUSED = "http://127.0.0.1:9"  # nobody listens on the discard port: no vocabulary, at once


@pytest.fixture
def shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shell]]:
    """Makes a shell whose provider has options of the test's choice."""
    opened: list[Simulator] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in {
        "OPENAI_API_KEY": "sk-test",
        "ANTHROPIC_API_KEY": "sk-ant-test",
        "GOOGLE_API_KEY": "test-key",
        "NO_PROXY": "127.0.0.1",
        "HTTPS_PROXY": REFUSED,
        "BATCHOR_HOME": str(tmp_path / "home"),
        "TIKTOKEN_CACHE_DIR": str(tmp_path / "vocabularies"),
    }.items():
        monkeypatch.setenv(name, value)

    def make(**options: Any) -> Shell:
        sim = Simulator(SimulatorOptions(**{"batch_seconds": 0.2, **options})).__enter__()
        opened.append(sim)
        monkeypatch.setenv("OPENAI_BASE_URL", sim.openai_base_url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", sim.anthropic_base_url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", sim.gemini_base_url)
        shell = Shell(tmp_path, sim)
        shell.write("in.csv", ROWS)
        shell.write("labels_of_test.py", MODULE)
        return shell

    yield make
    sys.modules.pop("labels_of_test", None)
    for sim in opened:
        sim.close()


@pytest.fixture
def shell(shells: Callable[..., Shell]) -> Shell:
    """A shell with a fast and friendly provider."""
    return shells()
