"""Partition mappings: which files a downstream partition is given, in real Dagster runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest
from dagster import DagsterInstance

from batchor_dagster import BatchParquetIOManager

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-05", end_date="2026-01-19")
WEEKS = dg.WeeklyPartitionsDefinition(start_date="2026-01-05", end_date="2026-01-19", day_offset=1)
LANGUAGES = dg.StaticPartitionsDefinition(["de", "fr", "it"])


class Flow:
    """Materializes partitions, in one instance and one folder."""

    def __init__(self, folder: Path, instance: DagsterInstance) -> None:
        self.instance = instance
        self._resources = {"io_manager": BatchParquetIOManager(base_path=str(folder))}

    def run(self, *assets: Any, select: Any = None, partition: str | None = None) -> None:
        """Materialize one asset, or the first of several."""
        dg.materialize(
            list(assets),
            selection=[select or assets[0]],
            partition_key=partition,
            resources=self._resources,
            instance=self.instance,
        )


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Flow]:
    """A place of its own."""
    with DagsterInstance.ephemeral() as instance:
        yield Flow(tmp_path, instance)


def keyed(name: str, partitions: dg.PartitionsDefinition[Any]) -> dg.AssetsDefinition:
    """An asset whose every partition holds its own key."""

    @dg.asset(name=name, partitions_def=partitions)
    def up(context: dg.AssetExecutionContext) -> pl.LazyFrame:
        return pl.LazyFrame({"key": [str(context.partition_key)]})

    return up


def keys(frame: Any) -> list[str]:
    """The keys in a frame of any kind."""
    if isinstance(frame, pa.Table):
        return [str(key) for key in frame["key"].to_pylist()]
    return [str(key) for key in frame.lazy().collect()["key"]]


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame, pa.Table])
def test_a_week_is_given_its_days_in_order(flow: Flow, annotation: Any) -> None:
    """A weekly report would miss days, or mix them."""
    seen: list[Any] = []
    days = keyed("days", DAYS)

    @dg.asset(partitions_def=WEEKS)
    def week(days: annotation) -> None:
        seen.append(days)

    for day in DAYS.get_partition_keys():
        flow.run(days, partition=day)
    flow.run(week, days, partition="2026-01-12")
    assert type(seen[0]) is annotation
    assert keys(seen[0]) == [f"2026-01-{day}" for day in range(12, 19)]


def test_a_day_is_given_its_week(flow: Flow) -> None:
    """A finer partition would look for a file of its own name."""
    weeks = keyed("weeks", WEEKS)

    @dg.asset(partitions_def=DAYS)
    def day(weeks: pl.DataFrame) -> None:
        assert keys(weeks) == ["2026-01-05"]

    flow.run(weeks, partition="2026-01-05")
    flow.run(day, weeks, partition="2026-01-08")


def test_dynamic_partitions_come_in_the_order_they_were_added(flow: Flow) -> None:
    """Rows of an asset over all customers would change their order from run to run."""
    customers = dg.DynamicPartitionsDefinition(name="customers")
    names = [f"customer {number}" for number in (7, 3, 9, 1, 5)]
    flow.instance.add_dynamic_partitions("customers", names)
    up = keyed("up", customers)

    @dg.asset
    def everybody(up: pl.DataFrame) -> None:
        assert keys(up) == names

    for name in sorted(names):
        flow.run(up, partition=name)
    flow.run(everybody, up)


def test_all_and_last_partitions(flow: Flow) -> None:
    """A partitioned asset over all, or over the newest, of another would load the wrong files."""
    days = keyed("days", DAYS)

    @dg.asset(
        partitions_def=LANGUAGES,
        ins={"days": dg.AssetIn(partition_mapping=dg.AllPartitionMapping())},
    )
    def everything(days: dict[str, pl.LazyFrame]) -> None:
        assert list(days) == DAYS.get_partition_keys()

    @dg.asset(
        partitions_def=LANGUAGES,
        ins={"days": dg.AssetIn(partition_mapping=dg.LastPartitionMapping())},
    )
    def newest(days: pl.DataFrame) -> None:
        assert keys(days) == ["2026-01-18"]

    for day in DAYS.get_partition_keys():
        flow.run(days, partition=day)
    flow.run(everything, days, partition="de")
    flow.run(newest, days, partition="de")


def test_a_static_mapping_names_the_files(flow: Flow) -> None:
    """A region would be given the languages of another."""
    mapping = dg.StaticPartitionMapping({"de": "north", "fr": "south", "it": "south"})
    languages = keyed("languages", LANGUAGES)

    @dg.asset(
        partitions_def=dg.StaticPartitionsDefinition(["north", "south"]),
        ins={"languages": dg.AssetIn(partition_mapping=mapping)},
    )
    def region(context: dg.AssetExecutionContext, languages: pl.DataFrame) -> None:
        assert keys(languages) == {"north": ["de"], "south": ["fr", "it"]}[context.partition_key]

    for language in LANGUAGES.get_partition_keys():
        flow.run(languages, partition=language)
    for name in ("north", "south"):
        flow.run(region, languages, partition=name)


def test_one_dimension_of_many_is_given_its_slice(flow: Flow) -> None:
    """A day of a grid of days and languages would be given the whole grid, or nothing."""
    grid = dg.MultiPartitionsDefinition({"day": DAYS, "lang": LANGUAGES})
    cells = keyed("cells", grid)

    @dg.asset(partitions_def=DAYS)
    def day(cells: dict[str, pl.DataFrame]) -> None:
        assert sorted(cells) == ["2026-01-06|de", "2026-01-06|fr", "2026-01-06|it"]
        assert all(keys(frame) == [key] for key, frame in cells.items())

    @dg.asset(partitions_def=grid)
    def cell(context: dg.AssetExecutionContext, cells: pl.LazyFrame) -> None:
        assert keys(cells) == [str(context.partition_key)]

    for lang in LANGUAGES.get_partition_keys():
        for name in ("2026-01-06", "2026-01-07"):
            flow.run(cells, partition=dg.MultiPartitionKey({"day": name, "lang": lang}))
    flow.run(day, cells, partition="2026-01-06")
    flow.run(cell, cells, partition=dg.MultiPartitionKey({"day": "2026-01-07", "lang": "it"}))


def test_inputs_of_several_kinds_meet_in_one_asset(flow: Flow) -> None:
    """Each input has its own partitions, mapping and annotation."""
    days, languages = keyed("days", DAYS), keyed("languages", LANGUAGES)
    other_days = keyed("other_days", DAYS)

    @dg.asset
    def names() -> pa.Table:
        return pa.table({"key": ["all"]})

    @dg.asset(
        partitions_def=DAYS,
        ins={
            "yesterday": dg.AssetIn(
                "other_days",
                partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
            ),
            "languages": dg.AssetIn(partition_mapping=dg.AllPartitionMapping()),
        },
    )
    def joined(
        days: pl.DataFrame,
        yesterday: pl.LazyFrame,
        languages: dict[str, pa.Table],
        names: pa.Table,
    ) -> None:
        assert (keys(days), keys(yesterday)) == (["2026-01-07"], ["2026-01-06"])
        assert {key: keys(table) for key, table in languages.items()} == {
            "de": ["de"],
            "fr": ["fr"],
            "it": ["it"],
        }
        assert keys(names) == ["all"]

    for day in ("2026-01-06", "2026-01-07"):
        flow.run(days, partition=day)
        flow.run(other_days, partition=day)
    for language in LANGUAGES.get_partition_keys():
        flow.run(languages, partition=language)
    flow.run(names)
    flow.run(joined, days, other_days, languages, names, partition="2026-01-07")


@pytest.mark.parametrize("annotation", [pl.DataFrame | None, dict[str, pl.DataFrame]])
def test_an_asset_builds_on_its_own_yesterday(flow: Flow, annotation: Any) -> None:
    """A running total has no yesterday on its first day, and would never start."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(
        partitions_def=DAYS,
        ins={"total": dg.AssetIn(partition_mapping=before)},
    )
    def total(context: dg.AssetExecutionContext, total: annotation) -> pl.DataFrame:
        earlier = list(total.values()) if isinstance(total, dict) else [total]
        today = pl.DataFrame({"key": [context.partition_key]})
        return pl.concat([*(frame for frame in earlier if frame is not None), today])

    seen: list[list[str]] = []

    @dg.asset(partitions_def=DAYS)
    def shown(total: pl.DataFrame) -> None:
        seen.append(keys(total))

    for day in ("2026-01-05", "2026-01-06", "2026-01-07"):
        flow.run(total, partition=day)
        flow.run(shown, total, partition=day)
    assert seen[-1] == ["2026-01-05", "2026-01-06", "2026-01-07"]


def test_no_partition_at_all_is_said(flow: Flow) -> None:
    """An asset that expects a frame would be given none and fail in its own code."""
    before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)

    @dg.asset(partitions_def=DAYS, ins={"total": dg.AssetIn(partition_mapping=before)})
    def total(total: pl.DataFrame) -> pl.DataFrame:
        return total

    with pytest.raises(FileNotFoundError, match=r"no partition to load.*pl\.DataFrame \| None"):
        flow.run(total, partition="2026-01-05")


def test_an_optional_input_may_have_none_of_its_partitions(flow: Flow) -> None:
    """What may be missing may be missing altogether."""
    days = keyed("days", DAYS)

    @dg.asset(
        partitions_def=WEEKS,
        ins={"days": dg.AssetIn(metadata={"allow_missing_partitions": True})},
    )
    def week(days: pl.LazyFrame | None) -> None:
        assert days is None

    flow.run(week, days, partition="2026-01-12")
