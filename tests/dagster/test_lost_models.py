"""Output models that are gone by the time their answers come."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchor_core.model.states import WaiterState
from tests.dagster.world import World, answers_asset

MODULE = "model_that_goes"
SOURCE = "import pydantic\n\n\nclass Gone(pydantic.BaseModel):\n    word: str\n"


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model in a module of its own, which the test removes."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "src")
    yield importlib.import_module(MODULE).Gone
    sys.modules.pop(MODULE, None)


def _remove_model(world: World) -> None:
    (world.folder / "src" / f"{MODULE}.py").unlink()
    del sys.modules[MODULE]
    importlib.invalidate_caches()


def test_others_go_on(world: World, gone: Any) -> None:
    """One renamed class would stop every partition of the location."""
    removed = answers_asset(output=gone, name="removed")
    answers = answers_asset()
    world.request(removed)
    world.request(answers)
    _remove_model(world)
    world.provider_works()
    for request in world.advance_tick(removed, answers):
        world.launch(request, removed, answers)
    world.serve(removed, answers)

    assert world.materialized() == ["d0"]


def test_run_is_not_launched_again_and_again(world: World, gone: Any) -> None:
    """A Dagster run would fail with every tick for ever."""
    removed = answers_asset(output=gone, name="removed")
    world.request(removed)
    _remove_model(world)
    world.provider_works()
    for request in world.advance_tick(removed):
        world.launch(request, removed)

    assert world.advance_tick(removed) == []
    assert "cannot be imported" in (world.run.control_reason or "")


def test_run_of_a_removed_asset_is_cancelled(world: World, gone: Any) -> None:
    """Whoever removes an asset with its model would pay for its batches to the end."""
    removed, answers = answers_asset(output=gone, name="removed"), answers_asset()
    world.request(removed)
    _remove_model(world)
    world.materialize_tick(answers)
    for _ in range(4):
        for request in world.advance_tick(answers):
            world.launch(request, answers)

    assert [waiter.state for waiter in world.waiters] == [WaiterState.CANCELLED]
    assert world.batches == ["cancelled"]
    assert world.run.state.is_terminal
    assert world.advance_tick(answers) == []
