"""Which file belongs to whom: no two share one, and nobody takes another's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance
from hypothesis import example, given
from hypothesis import strategies as st
from upath import UPath

from batchor_core import ConfigurationError
from batchor_dagster import BatchParquetIOManager
from batchor_dagster.resources.asset_files import AssetFile
from batchor_dagster.resources.parquet_layout import ParquetLayout

pytestmark = pytest.mark.filterwarnings(
    "ignore:Parameter `backfill_policy` of function `asset`:dagster.BetaWarning"
)

PARTS = dg.StaticPartitionsDefinition(["u", "v"])

_texts = st.text("aAbB.@%/-_1 ü", min_size=1, max_size=4) | st.sampled_from(
    ["a.parquet", "A.PARQUET", ".rejected", "a" * 201, "A" * 190, "a" * 190, "a.", "~", "ß"]
)
_places = st.tuples(st.lists(_texts, min_size=1, max_size=3), st.none() | _texts)


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """A Dagster instance."""
    with DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture
def io_manager(tmp_path: Path) -> BatchParquetIOManager:
    """A manager on a folder."""
    return BatchParquetIOManager(base_path=str(tmp_path))


@given(one=_places, other=_places)
@example(one=(["t"], "u"), other=(["t", "u"], None))
@example(one=(["a"], None), other=(["a.parquet"], "x"))
@example(one=(["a.parquet"], None), other=(["a.parquet.parquet"], "x"))
@example(one=(["t"], "DE"), other=(["t"], "de"))
@example(one=(["t"], "u@"), other=(["t", "u"], None))
@example(one=(["T"], None), other=(["t"], None))
@example(one=(["t"], "A" * 190), other=(["t"], "A" * 189 + "a"))
@example(one=([".rejected"], "x"), other=(["a"], "x"))
@example(one=(["a."], "x"), other=(["a"], "x"))
def test_two_owners_never_share_a_place(
    one: tuple[list[str], str | None], other: tuple[list[str], str | None]
) -> None:
    """One asset's rows would take the place of another's, also where capitals do not count."""
    layout = ParquetLayout(base=UPath("/base"))
    paths = [
        str(place.path(*owner)).lower()
        for owner in (one, other)
        for place in (layout, layout.rejected)
    ]
    assert len(set(paths)) == (2 if one == other else 4)
    assert not any(first.startswith(f"{second}/") for first in paths for second in paths)
    assert all(len(name.encode()) <= 240 for path in paths for name in path.split("/"))


def test_ordinary_keys_keep_their_plain_path(io_manager: BatchParquetIOManager) -> None:
    """What people read by its path would move for the sake of rare names."""
    base = Path(io_manager.base_path)
    assert Path(io_manager.path_for(["mart", "up"], "2026-01-05")) == base / "mart/up" / (
        "2026-01-05.parquet"
    )
    assert Path(io_manager.path_for(["up"])) == base / "up.parquet"
    assert Path(io_manager.path_for(["mart", "up"])) == base / "mart" / "up@.parquet"
    assert io_manager.path_for(["up"], "DE").name == "DE@3.parquet"


def test_a_partition_and_an_asset_below_are_stored_apart(
    io_manager: BatchParquetIOManager, instance: DagsterInstance
) -> None:
    """The asset ``t/u`` would silently replace the partition ``u`` of ``t``."""

    @dg.asset(partitions_def=PARTS)
    def t() -> pl.DataFrame:
        return pl.DataFrame({"of": ["partition"]})

    @dg.asset(key=["t", "u"])
    def below() -> pl.DataFrame:
        return pl.DataFrame({"of": ["asset"]})

    @dg.asset(partitions_def=PARTS, ins={"u": dg.AssetIn(["t", "u"])})
    def down(t: pl.DataFrame, u: pl.DataFrame) -> None:
        assert (t["of"].to_list(), u["of"].to_list()) == (["partition"], ["asset"])

    _materialize([t], io_manager, instance, partition_key="u")
    _materialize([below], io_manager, instance)
    _materialize([down, t, below], io_manager, instance, selection=[down], partition_key="u")


def test_an_asset_with_the_name_of_a_file_can_be_stored(
    io_manager: BatchParquetIOManager, instance: DagsterInstance
) -> None:
    """A folder would be in the way of a file of the same name."""

    @dg.asset
    def a() -> pl.DataFrame:
        return pl.DataFrame({"n": [1]})

    @dg.asset(key=["a.parquet"], partitions_def=PARTS)
    def named_like_a_file() -> pl.DataFrame:
        return pl.DataFrame({"n": [2]})

    _materialize([a], io_manager, instance)
    _materialize([named_like_a_file], io_manager, instance, partition_key="u")
    assert pl.read_parquet(io_manager.path_for(["a"]).path)["n"].to_list() == [1]
    assert pl.read_parquet(io_manager.path_for(["a.parquet"], "u").path)["n"].to_list() == [2]


FRAMES: dict[str, Any] = {
    "DataFrame": lambda frame: frame,
    "LazyFrame": lambda frame: frame.lazy(),
    "Table": lambda frame: frame.to_arrow(),
    "RecordBatchReader": lambda frame: frame.to_arrow().to_reader(max_chunksize=1),
}


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame, pa.Table, dict])
@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_anothers_file_is_not_loaded(
    tmp_path: Path, instance: DagsterInstance, kind: str, annotation: Any, scheme: str
) -> None:
    """A file in the wrong place would be taken for what belongs there."""
    io_manager = BatchParquetIOManager(base_path=f"{scheme}{tmp_path}")

    @dg.asset(partitions_def=PARTS)
    def up() -> Any:
        return FRAMES[kind](pl.DataFrame({"n": [1, 2]}))

    @dg.asset(partitions_def=PARTS)
    def down(up: annotation) -> None: ...

    _materialize([up], io_manager, instance, partition_key="v")
    here, there = io_manager.path_for(["up"], "v"), io_manager.path_for(["up"], "u")
    there.write_bytes(here.read_bytes())
    with pytest.raises(ConfigurationError) as error:
        _materialize([down, up], io_manager, instance, selection=[down], partition_key="u")
    assert error.match("is the place of partition 'u' of 'up'.* rows of partition 'v' of 'up'")
    assert "u.parquet" in str(error.value)


def test_anothers_file_is_not_overwritten(
    io_manager: BatchParquetIOManager, instance: DagsterInstance
) -> None:
    """Rows that lie in the wrong place would be lost; none of a range may be written then."""

    @dg.asset(partitions_def=PARTS, backfill_policy=dg.BackfillPolicy.single_run())
    def up(context: dg.AssetExecutionContext) -> Any:
        return {key: pl.DataFrame({"n": [1]}) for key in context.partition_keys}

    @dg.asset
    def other() -> pl.DataFrame:
        return pl.DataFrame({"n": [2]})

    _materialize([other], io_manager, instance)
    moved = Path(io_manager.path_for(["up"], "v"))
    moved.parent.mkdir()
    Path(io_manager.path_for(["other"])).rename(moved)
    tags = {"dagster/asset_partition_range_start": "u", "dagster/asset_partition_range_end": "v"}
    with pytest.raises(ConfigurationError, match=r"place of partition 'v' of 'up'.* of 'other'"):
        _materialize([up], io_manager, instance, tags=tags)
    assert pl.read_parquet(moved)["n"].to_list() == [2]
    assert [path.name for path in moved.parent.iterdir()] == ["v.parquet"]


@pytest.mark.parametrize("content", ["a frame", "not Parquet at all"])
def test_a_file_that_does_not_tell_is_taken_as_it_is(
    io_manager: BatchParquetIOManager, instance: DagsterInstance, content: str
) -> None:
    """Files that others wrote could not be read, or a broken one not be replaced."""
    path = Path(io_manager.path_for(["up"]))
    if content == "a frame":
        pl.DataFrame({"n": [7]}).write_parquet(path)
    else:
        path.write_text(content)

    @dg.asset
    def up() -> pl.DataFrame:
        return pl.DataFrame({"n": [1]})

    @dg.asset
    def down(up: pl.DataFrame) -> None:
        assert up["n"].to_list() == [7]

    if content == "a frame":
        _materialize([down, up], io_manager, instance, selection=[down])
    _materialize([up], io_manager, instance)
    assert pl.read_parquet(path)["n"].to_list() == [1]


def test_a_table_that_was_loaded_is_stored_as_ones_own(
    io_manager: BatchParquetIOManager, instance: DagsterInstance
) -> None:
    """A table that is passed on would say that it is still the upstream asset's."""
    own = pa.schema([("n", pa.int64())], metadata={"made by": "hand"})

    @dg.asset
    def up() -> pa.Table:
        return pa.table({"n": [1]}, schema=own)

    @dg.asset
    def middle(up: pa.Table) -> pa.Table:
        assert up.schema.metadata == {b"made by": b"hand"}
        return up

    @dg.asset
    def down(middle: pa.Table) -> None: ...

    _materialize([up, middle, down], io_manager, instance)
    footer = pq.read_metadata(str(io_manager.path_for(["middle"]))).metadata
    assert footer[b"batchor/asset"] == b'["middle"]'
    raw = pl.read_parquet_metadata(str(io_manager.path_for(["middle"])))
    assert raw["batchor/asset"] == '["middle"]'


def test_the_way_out_that_the_error_names_works(tmp_path: Path) -> None:
    """Somebody who renames an asset could not take its files along."""
    layout = ParquetLayout(base=UPath(tmp_path))
    before, after = AssetFile.at(layout, ["old"], None), AssetFile.at(layout, ["new"], None)
    before.write(pl.DataFrame({"n": [1]}))
    before.path.rename(after.path)
    with pytest.raises(ConfigurationError, match=re.escape("rewrite it with Polars")):
        after.load(pl.DataFrame)
    pl.read_parquet(after.path.path).write_parquet(after.path.path)
    assert after.load(pl.DataFrame)["n"].to_list() == [1]


def _materialize(
    assets: list[Any], io_manager: BatchParquetIOManager, instance: DagsterInstance, **options: Any
) -> None:
    dg.materialize(assets, resources={"io_manager": io_manager}, instance=instance, **options)
