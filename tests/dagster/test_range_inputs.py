"""What the function of a batch asset is given: the same with a backfill policy as without one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest
from dagster import FilesystemIOManager

from batchor_dagster import batch_asset
from tests.dagster.test_ranges import SINGLE_RUN, ask
from tests.dagster.world import MODEL, World, failure

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")

DAYS = dg.DailyPartitionsDefinition("2026-01-05", end_date="2026-01-09")
FIRST, SECOND, THIRD = DAYS.get_partition_keys()[:3]
DAY_BEFORE = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
TWO_DAYS = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=0)

FRAMES: list[Any] = [pl.DataFrame, pl.LazyFrame, pa.Table]
DICTS: list[Any] = [*(dict[str, one] for one in FRAMES), dict, dict[str, pl.DataFrame] | None]
OPTIONAL: list[Any] = [one | None for one in FRAMES]
NONE = "no annotation"
OPEN: list[Any] = [Any, object, NONE]


class Given:
    """A batch asset with an input for each of some annotations, and what its function was given.

    Args:
        world: Where it is materialized.
        annotations: Of the inputs; each is an asset of its own.
        mapping: Which partitions of the inputs belong to one; None for inputs without partitions.
        policy: The asset's backfill policy.
        is_lenient: Whether partitions of the inputs may be missing.
    """

    def __init__(
        self,
        world: World,
        annotations: Sequence[Any],
        mapping: Any,
        *,
        policy: Any = None,
        is_lenient: bool = False,
    ) -> None:
        self.world = world
        self.values: dict[str, dict[str, Any]] = {}
        names = {f"in_{number}": annotation for number, annotation in enumerate(annotations)}
        self.inputs = [_input(name, DAYS if mapping else None) for name in names]

        def answers(context: dg.AssetExecutionContext, **inputs: Any) -> pl.DataFrame:
            self.values[context.partition_key] = {
                f"{name} {names[name]}": described(value) for name, value in inputs.items()
            }
            return pl.DataFrame({"prompt": ["Go on;"]})

        metadata = {"allow_missing_partitions": True} if is_lenient else {}
        self.asset = batch_asset(
            model=MODEL,
            partitions_def=DAYS,
            backfill_policy=policy,
            ins={name: dg.AssetIn(partition_mapping=mapping, metadata=metadata) for name in names},
        )(_with_parameters(answers, names))

    def store(self, *days: str | None) -> None:
        """Store partitions of the inputs."""
        for day in days:
            assert self.world.request(*self.inputs, partition=day).success

    def ask(self, first: str, last: str | None = None) -> Any:
        """Ask for a partition, or for a range."""
        options: dict[str, Any] = {"selection": [self.asset]}
        if last is None:
            return self.world.request(self.asset, *self.inputs, partition=first, **options)
        return ask(self.world, self.asset, first, last, others=self.inputs, **options)


def _input(name: str, partitions: Any) -> dg.AssetsDefinition:
    @dg.asset(name=name, partitions_def=partitions)
    def up(context: dg.AssetExecutionContext) -> pl.DataFrame:
        key = context.partition_key if context.has_partition_key else "all"
        return pl.DataFrame({"key": [key]})

    return up


def _with_parameters(function: Any, annotations: dict[str, Any]) -> Any:
    """Write a function that has the inputs as its parameters, as a user would."""
    names = ", ".join(annotations)
    passed = ", ".join(f"{name}={name}" for name in annotations)
    scope: dict[str, Any] = {"function": function}
    exec(f"def answers(context, {names}): return function(context, {passed})", scope)
    written = scope["answers"]
    written.__annotations__ = {k: v for k, v in annotations.items() if v is not NONE}
    return written


def described(value: Any) -> Any:
    """A value's kind and content, to be compared."""
    if isinstance(value, dict):
        return {key: described(one) for key, one in value.items()}
    if value is None:
        return None
    frame = value.collect() if isinstance(value, pl.LazyFrame) else value
    keys = frame["key"].to_pylist() if isinstance(frame, pa.Table) else frame["key"].to_list()
    return (type(value).__name__, keys)


@pytest.mark.parametrize("mapping", [DAY_BEFORE, TWO_DAYS], ids=["day before", "two days"])
def test_a_policy_changes_nothing_of_what_a_partition_is_given(world: World, mapping: Any) -> None:
    """An input that works for one partition would fail, or be another, in a backfill of many."""
    annotations = [*FRAMES, *DICTS, *OPTIONAL, *OPEN]
    plain, alone, many = (
        Given(world, annotations, mapping, policy=policy)
        for policy in (None, SINGLE_RUN, SINGLE_RUN)
    )
    plain.store(FIRST, SECOND, THIRD)
    for day in (SECOND, THIRD):
        result = plain.ask(day)
        assert result.success, failure(result)
        result = alone.ask(day)
        assert result.success, failure(result)
    result = many.ask(SECOND, THIRD)
    assert result.success, failure(result)
    assert list(plain.values) == [SECOND, THIRD]
    assert alone.values == plain.values
    assert many.values == plain.values


def test_the_first_day_has_nothing_before_it(world: World) -> None:
    """The first day of a backfill would fail at load, or be given what its function cannot take."""
    annotations = [*OPTIONAL, *DICTS, *OPEN]
    expected = [*(None for _ in OPTIONAL), *({} for _ in [*DICTS, *OPEN])]
    plain = Given(world, annotations, DAY_BEFORE)
    plain.store(FIRST)
    assert plain.ask(FIRST).success
    assert list(plain.values[FIRST].values()) == expected
    for last in (FIRST, SECOND):
        given = Given(world, annotations, DAY_BEFORE, policy=SINGLE_RUN)
        result = given.ask(FIRST, last)
        assert result.success, failure(result)
        assert list(given.values[FIRST].values()) == expected
    assert all(given.values[SECOND].values())


@pytest.mark.parametrize("annotation", FRAMES, ids=str)
def test_a_plain_frame_on_the_first_day_says_what_to_annotate(
    world: World, annotation: Any
) -> None:
    """A function that expects a frame would be given a dict, and fail in its own code."""
    plain = Given(world, [annotation], DAY_BEFORE)
    ranged = Given(world, [annotation], DAY_BEFORE, policy=SINGLE_RUN)
    plain.store(FIRST)
    for result in (
        plain.ask(FIRST),
        ranged.ask(FIRST),
        ranged.ask(FIRST, FIRST),
        ranged.ask(FIRST, SECOND),
    ):
        assert not result.success
        assert "no partition to load: annotate the input with pl.DataFrame | None" in failure(
            result
        )
    assert plain.values == ranged.values == {}
    assert world.batches == []


def test_what_may_be_missing_is_missing_alike(world: World) -> None:
    """A hole in the input would change what the next partition is given."""
    annotations = [*OPTIONAL, *DICTS, *OPEN]
    plain = Given(world, annotations, TWO_DAYS, is_lenient=True)
    many = Given(world, annotations, TWO_DAYS, is_lenient=True, policy=SINGLE_RUN)
    plain.store(FIRST)
    for day in (SECOND, THIRD):
        assert plain.ask(day).success
    result = many.ask(SECOND, THIRD)
    assert result.success, failure(result)
    assert many.values == plain.values


def test_an_input_without_partitions_is_given_whole(world: World) -> None:
    """What belongs to all days would be taken apart by day."""
    annotations = [*FRAMES, *OPTIONAL, *OPEN]
    plain = Given(world, annotations, None)
    ranged = Given(world, annotations, None, policy=SINGLE_RUN)
    plain.store(None)
    assert plain.ask(FIRST).success
    assert ranged.ask(FIRST).success
    result = ranged.ask(SECOND, THIRD)
    assert result.success, failure(result)
    assert all(keys == ["all"] for _, keys in plain.values[FIRST].values())
    assert ranged.values == dict.fromkeys((FIRST, SECOND, THIRD), plain.values[FIRST])


@pytest.mark.parametrize("annotation", [list, list | None, NONE], ids=str)
def test_dagsters_own_manager_loads_a_single_partition_bare(
    world: World, tmp_path: Path, annotation: Any
) -> None:
    """With pickled inputs, a backfill that begins on the first day could not be asked for."""
    world.resources["files"] = FilesystemIOManager(base_dir=str(tmp_path / "pickled"))
    given: dict[str, Any] = {}

    @dg.asset(partitions_def=DAYS, io_manager_key="files")
    def days(context: dg.AssetExecutionContext) -> list[str]:
        return [context.partition_key]

    def answers(context: Any, days: Any) -> pl.DataFrame:
        given[context.partition_key] = days
        return pl.DataFrame({"prompt": ["Go on;"]})

    asset = batch_asset(
        model=MODEL,
        partitions_def=DAYS,
        backfill_policy=SINGLE_RUN,
        ins={"days": dg.AssetIn(partition_mapping=DAY_BEFORE)},
    )(_with_parameters(answers, {"days": annotation}))
    for day in (FIRST, SECOND):
        assert world.request(days, partition=day).success
    result = ask(world, asset, FIRST, SECOND, others=[days], selection=[asset])
    if annotation is list:
        assert f"partition {FIRST!r} has no partition to load" in failure(result)
        result = ask(world, asset, SECOND, THIRD, others=[days], selection=[asset])
        assert given == {SECOND: [FIRST], THIRD: [SECOND]}
    else:
        assert given == {FIRST: {} if annotation is NONE else None, SECOND: [FIRST]}
    assert result.success, failure(result)
