"""Worlds for the tests of the Dagster layer; no vocabulary is downloaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchor_core.planning import tokens
from tests.dagster.world import World, open_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A Dagster instance, a provider whose clock stands still, and a store."""
    monkeypatch.setattr(tokens, "load_vocabulary", lambda model: None)
    with open_world(tmp_path) as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Dagster warn of its own use of its own beta API; give up on a test that hangs."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(
            # Dagster copies every sensor with its (empty) owners.
            pytest.mark.filterwarnings(
                "ignore:Parameter `owners` of initializer:dagster.BetaWarning"
            )
        )
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(120))
