"""Worlds for the tests of the core; no vocabulary is downloaded."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from batchor_core.planning import tokens
from tests.core.world import World, Worlds, open_world


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    """Makes worlds with simulator options of the test's choice."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(open_world(_fresh(tmp_path), **options))


@pytest.fixture
def world(worlds: Worlds) -> World:
    """A world with default options."""
    return worlds()


def _fresh(parent: Path) -> Path:
    folder = parent / f"world-{sum(1 for _ in parent.iterdir())}"
    folder.mkdir()
    return folder


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Give up on a test that hangs instead of waiting for ever."""
    for item in items:
        if "/core/" in str(item.path) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60))
