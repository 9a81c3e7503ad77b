"""Batch assets over other people's IO managers: DuckDB's and dagster-polars'."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from packaging.version import Version

from batchor_dagster import batch_asset
from tests.dagster.world import MODEL, ROWS, Verdict, World, events

DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-05", end_date="2026-01-08")
DAY = "2026-01-06"


def version_of(distribution: str) -> str:
    """The installed version; "0" of what is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "0"


polars_cannot_load = pytest.mark.skipif(
    Version(pl.__version__) >= Version("2"),
    reason="dagster-polars 0.27.12 loads Parquet with an argument that polars 2 has removed",
)

duckdb_cannot_load = pytest.mark.skipif(
    Version(version_of("duckdb")) >= Version("2"),
    reason="dagster-duckdb-polars 0.29.27 loads with a method that duckdb 2 has removed",
)


def judged(**options: Any) -> dg.AssetsDefinition:
    """A batch asset whose table keeps the day that its partition is of."""

    @batch_asset(
        **{
            "model": MODEL,
            "output": Verdict,
            "partitions_def": DAYS,
            "keep": {"day": "date32"},
            **options,
        }
    )
    def judged(context: dg.AssetExecutionContext) -> pl.DataFrame:
        start = context.partition_time_window.start.date()
        prompts = [f"Judge row {n} of {start};" for n in range(ROWS)]
        return pl.DataFrame({"day": [start] * ROWS, "prompt": prompts})

    return judged


def materialize(world: World, *assets: Any, day: str = DAY) -> None:
    """Ask for a partition, and have it answered and stored."""
    assert world.request(*assets, partition=day).success
    results = world.finish(*assets)
    assert [result.success for result in results] == [True] * len(results)


class TestDuckDB:
    """DuckDB's manager stores DataFrames, as rows of one table for all partitions."""

    @pytest.fixture(autouse=True)
    def database(self, world: World, tmp_path: Path) -> Path:
        """A database in place of the Parquet files."""
        manager = pytest.importorskip("dagster_duckdb_polars").DuckDBPolarsIOManager
        path = tmp_path / "tables.duckdb"
        world.resources["io_manager"] = manager(database=str(path), schema="llm")
        return path

    def test_partitions_are_rows_of_one_table(self, world: World, database: Path) -> None:
        """A team whose tables live in DuckDB could not have a batch asset among them."""
        import duckdb

        asset = judged(io_type="eager", metadata={"partition_expr": "day"})
        for day in (DAY, "2026-01-07", DAY):  # the last replaces what the first has stored
            materialize(world, asset, day=day)
        with duckdb.connect(str(database)) as connection:
            stored = connection.sql(
                "SELECT day::VARCHAR, count(*), count(label), count(batch_cost_usd) "
                "FROM llm.judged GROUP BY 1 ORDER BY 1"
            ).fetchall()
        assert stored == [(day, ROWS, ROWS, ROWS) for day in (DAY, "2026-01-07")]
        assert world.sim.ledger().paid_twice() == []

    @duckdb_cannot_load
    def test_a_partition_is_loaded_downstream(self, world: World) -> None:
        """An asset that reads the answers would get those of other days, or none."""
        seen: list[pl.DataFrame] = []
        asset = judged(io_type="eager", metadata={"partition_expr": "day"})

        @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
        def report(judged: pl.DataFrame) -> pl.DataFrame:
            seen.append(judged)
            return judged.select("day", "score")

        for day in (DAY, "2026-01-07"):
            materialize(world, asset, report, day=day)
        assert [frame.height for frame in seen] == [ROWS, ROWS]
        assert {str(day) for day in seen[1]["day"]} == {"2026-01-07"}

    def test_a_lazy_frame_is_refused_by_the_manager(self, world: World) -> None:
        """Who forgets ``io_type="eager"`` should read so; nothing that was paid for is lost."""
        lazy = judged(metadata={"partition_expr": "day"})
        assert world.request(lazy, partition=DAY).success
        assert not any(result.success for result in world.finish(lazy) if events(result, "judged"))
        assert world.materialized("judged") == []
        materialize(world, judged(io_type="eager", metadata={"partition_expr": "day"}))
        assert world.materialized("judged") == [DAY]
        assert len(world.batches) == 1


# Of polars 1.44, which still takes what polars 2 has removed.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:dagster_polars")
class TestDagsterPolars:
    """dagster-polars stores DataFrames as Parquet; lazy ones only of annotated outputs."""

    @pytest.fixture(autouse=True)
    def manager(self, world: World, tmp_path: Path) -> None:
        """Its manager in place of ours."""
        dagster_polars = pytest.importorskip("dagster_polars")
        world.resources["io_manager"] = dagster_polars.PolarsParquetIOManager(
            base_dir=str(tmp_path / "frames")
        )

    def test_frames_are_stored(self, world: World, tmp_path: Path) -> None:
        """Teams that use it already could not keep it."""
        materialize(world, judged(io_type="eager"))
        table = pl.read_parquet(tmp_path / "frames" / "judged" / f"{DAY}.parquet")
        assert table.height == ROWS
        assert table["label"].null_count() == 0

    @polars_cannot_load
    def test_frames_are_loaded_downstream(self, world: World) -> None:
        """What it stores would not come back."""
        seen: list[Any] = []

        @dg.asset(partitions_def=DAYS)
        def eager(judged: pl.DataFrame) -> None:
            seen.append(judged.height)

        @dg.asset(partitions_def=DAYS)
        def lazy(judged: pl.LazyFrame) -> None:
            seen.append(judged.collect().height)

        materialize(world, judged(io_type="eager"), eager, lazy)
        assert seen == [ROWS, ROWS]

    @polars_cannot_load
    def test_it_feeds_a_batch_asset(self, world: World) -> None:
        """A batch asset could not read what the rest of the project has stored."""

        @dg.asset(partitions_def=DAYS)
        def reviews() -> pl.DataFrame:
            return pl.DataFrame({"prompt": [f"Judge row {n};" for n in range(ROWS)]})

        @batch_asset(model=MODEL, output=Verdict, partitions_def=DAYS, io_type="eager")
        def answers(reviews: pl.LazyFrame) -> pl.LazyFrame:
            return reviews

        materialize(world, reviews, answers)
        assert world.materialized("answers") == [DAY]
