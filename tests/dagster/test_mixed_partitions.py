"""Assets with partitions and assets without, one downstream of the other in one request."""

from typing import Any

import dagster as dg

from batchor_core.model.states import WaiterState
from tests.dagster.test_shared import ask, batch
from tests.dagster.world import DAYS, World


def plain(
    name: str, *deps: str, ran: list[str], fails: int = 0, **options: Any
) -> dg.AssetsDefinition:
    """A plain asset that fails the first times."""

    @dg.asset(name=name, deps=list(deps), **options)
    def made() -> None:
        ran.append(name)
        if ran.count(name) <= fails:
            raise RuntimeError(name)

    return made


def test_unpartitioned_asset_is_tried_again(world: World) -> None:
    """Dagster refuses a partition where none of the assets has any, and the whole tick with it."""
    ran: list[str] = []
    world.finish(ask(world, batch("a"), plain("total", "a", ran=ran, fails=1)))
    assert ran == ["total", "total"]
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]


def test_unpartitioned_asset_is_shared(world: World) -> None:
    """It would be taken for one whose partition is gone, and never run."""
    ran: list[str] = []
    world.finish(ask(world, batch("a"), batch("b"), plain("total", "a", "b", ran=ran)))
    assert ran == ["total"]


def test_partitioned_asset_below_an_unpartitioned_one(world: World) -> None:
    """Its partition would be forgotten, and it would be left out as one of other partitions."""
    ran: list[str] = []
    whole = batch("whole", partitions_def=None)
    world.finish(ask(world, whole, plain("daily", "whole", ran=ran, fails=1, partitions_def=DAYS)))
    assert world.materialized("whole") == [None]
    assert ran == ["daily", "daily"]
    assert world.materialized("daily") == ["d0"]


def test_partitioned_asset_shared_by_unpartitioned_ones(world: World) -> None:
    """There would be no partition to run it for."""
    ran: list[str] = []
    above = [batch(name, partitions_def=None) for name in ("one", "two")]
    world.finish(ask(world, *above, plain("daily", "one", "two", ran=ran, partitions_def=DAYS)))
    assert world.materialized("daily") == ["d0"]
