"""What must not run, does not; what has succeeded does not run again."""

from typing import Any

import dagster as dg
import pytest

from batchor_core.model.states import WaiterState
from tests.dagster.test_ranges import SINGLE_RUN, ask
from tests.dagster.world import DAYS, World, answers_asset, events

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")


class Ran:
    """Assets downstream of ``answers`` that count how often they ran."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def asset(self, name: str, *, fails: int = 0, **options: Any) -> dg.AssetsDefinition:
        """Return one that fails the first times."""

        @dg.asset(name=name, **{"deps": ["answers"], "partitions_def": DAYS, **options})
        def counted() -> None:
            self.counts[name] = self.counts.get(name, 0) + 1
            if self.counts[name] <= fails:
                raise RuntimeError(name)

        return counted


def checked(outcomes: list[bool | None], *, blocking: bool = True) -> dg.AssetChecksDefinition:
    """A user's own check of ``answers``; None lets it crash."""

    @dg.asset_check(asset="answers", blocking=blocking)
    def plausible() -> dg.AssetCheckResult:
        outcome = outcomes.pop(0)
        if outcome is None:
            raise RuntimeError("crashed")
        return dg.AssetCheckResult(passed=outcome, description="not plausible")

    return plausible


def finish(world: World, *assets: Any, checks: list[Any], **options: Any) -> None:
    """Ask for everything, and see it through."""
    definitions = world.definitions(*assets, asset_checks=checks)
    world.launch_job(definitions, asset_selection=[asset.key for asset in assets], **options)
    world.finish(definitions)


@pytest.mark.parametrize("shape", ["partition", "range", "unpartitioned"])
def test_failed_blocking_check_is_a_verdict(world: World, shape: str) -> None:
    """What is downstream would run on answers that were refused, and be paid for."""
    ran = Ran()
    partitions = None if shape == "unpartitioned" else DAYS
    policy = SINGLE_RUN if shape == "range" else None
    if partitions is None:
        answers = _unpartitioned()
    else:
        answers = answers_asset(partitions_def=partitions, backfill_policy=policy)
    report = ran.asset("report", partitions_def=partitions, backfill_policy=policy)
    options: dict[str, Any] = {"partition_key": "d0" if shape == "partition" else None}
    if shape == "range":
        options["tags"] = {
            "dagster/asset_partition_range_start": "d0",
            "dagster/asset_partition_range_end": "d2",
        }
    finish(world, answers, report, checks=[checked([False])], **options)
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "'plausible' of 'answers' failed: not plausible" in str(waiter.reason)
    assert ran.counts == {}


def _unpartitioned() -> dg.AssetsDefinition:
    from batchor_dagster import batch_asset
    from tests.dagster.world import MODEL, rows_of

    @batch_asset(model=MODEL)
    def answers() -> Any:
        return rows_of("all")

    return answers


def test_blocking_check_that_crashes_lets_nothing_pass(world: World) -> None:
    """What is downstream would run unchecked at the second attempt."""
    ran = Ran()
    finish(world, answers_asset(), ran.asset("report"), checks=[checked([None, None, None])])
    assert ran.counts == {}
    assert world.materialized() == ["d0"]
    (waiter,) = world.waiters
    assert "failed 3 times" in str(waiter.reason)


@pytest.mark.parametrize("outcome", [True, False])
def test_blocking_check_is_evaluated_again_after_a_crash(world: World, outcome: bool) -> None:
    """A crash would decide for the check, either way."""
    ran = Ran()
    finish(world, answers_asset(), ran.asset("report"), checks=[checked([None, outcome])])
    assert ran.counts == ({"report": 1} if outcome else {})
    assert world.materialized() == ["d0"]


def test_crashing_check_that_blocks_nothing(world: World) -> None:
    """Descendants that have succeeded would run a second and a third time."""
    ran = Ran()
    check = checked([None], blocking=False)
    finish(world, answers_asset(), ran.asset("report"), checks=[check])
    assert ran.counts == {"report": 1}
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]


def test_failing_sibling_lets_the_others_alone(world: World) -> None:
    """Descendants that have succeeded would run again with the one that fails."""
    ran = Ran()
    good, bad = ran.asset("good"), ran.asset("bad", fails=1)
    below = ran.asset("below", deps=["bad"])
    finish(world, answers_asset(), good, bad, below, checks=[])
    assert ran.counts == {"good": 1, "bad": 2, "below": 1}
    assert world.materialized() == ["d0"]


def test_batch_asset_behind_a_failed_check_is_not_asked(world: World) -> None:
    """Rows would be paid for that are made of refused answers."""
    from batchor_dagster import batch_asset
    from tests.dagster.world import MODEL, rows_of

    @batch_asset(model=MODEL, partitions_def=DAYS, deps=["answers"])
    def second(context: dg.AssetExecutionContext) -> Any:
        return rows_of(context.partition_key)

    finish(world, answers_asset(), second, checks=[checked([False])])
    assert len(world.runs) == 1
    assert events is not None
    assert ask is not None
