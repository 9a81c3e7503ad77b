"""Frames go through real Dagster runs, to a folder, to memory and to an S3 bucket."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetsDefinition, DagsterInstance

from batchor_dagster.resources.io_manager import BatchParquetIOManager
from tests.artifacts.servers import ObjectStore, moto

pytestmark = pytest.mark.filterwarnings(
    "ignore:Parameter `backfill_policy` of function `asset`:dagster.BetaWarning"
)

ODD_KEYS = ["a/b", "..", "50%", "c*[x]?", " ", "ß" * 100]
PARTS = dg.StaticPartitionsDefinition(["p0", "p1", "p2"])
ODD_PARTS = dg.StaticPartitionsDefinition(ODD_KEYS)


@pytest.fixture(params=["local", "file", "memory", "s3"])
def io_manager(request: pytest.FixtureRequest, tmp_path: Path) -> BatchParquetIOManager:
    """The same manager on a path, a file URL, a store in memory and a bucket.

    Brackets are no pattern in the name of a folder.
    """
    if request.param == "s3":
        server: ObjectStore = request.getfixturevalue("s3")
        return BatchParquetIOManager(base_path=server.new_root(), storage_options=server.options)
    base = {
        "local": str(tmp_path / "art[1]"),
        "file": tmp_path.as_uri(),
        "memory": f"memory://{tmp_path.name}/art[1]",
    }
    return BatchParquetIOManager(base_path=base[request.param])


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    """S3, as moto plays it."""
    with moto() as server:
        yield server


@pytest.fixture
def local(tmp_path: Path) -> BatchParquetIOManager:
    """A manager on a folder."""
    return BatchParquetIOManager(base_path=str(tmp_path))


FRAMES: dict[str, Callable[[pl.DataFrame], object]] = {
    "DataFrame": lambda frame: frame,
    "LazyFrame": lambda frame: frame.lazy(),
    "Table": lambda frame: frame.to_arrow(),
    "RecordBatchReader": lambda frame: frame.to_arrow().to_reader(max_chunksize=1),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_kind_of_frame_is_stored(io_manager: BatchParquetIOManager, kind: str) -> None:
    """A batch asset could not hand over its results."""
    frame = pl.DataFrame({"id": ["a", "b"], "n": [1, 2]})

    @dg.asset(key_prefix=["mart", "daily"])
    def up() -> Any:
        return FRAMES[kind](frame)

    with DagsterInstance.ephemeral() as instance:
        result = _materialize([up], io_manager, instance)
    path = io_manager.path_for(["mart", "daily", "up"])
    assert path.parts[-3:] == ("mart", "daily", "up@.parquet")
    with path.open("rb") as file:
        assert pl.read_parquet(file).equals(frame)
    metadata = _metadata(result, "mart__daily__up")
    assert metadata["dagster/row_count"] == 2
    assert metadata["batchor/size_bytes"] == path.stat().st_size
    assert metadata["dagster/uri"].endswith(("up@.parquet", "up%40.parquet"))  # "@" in file URIs
    assert "://" in metadata["dagster/uri"]
    assert [column.name for column in metadata["dagster/column_schema"].columns] == ["id", "n"]


def test_odd_partition_keys_are_one_file_each(io_manager: BatchParquetIOManager) -> None:
    """A key with a slash makes folders, one of dots leaves the folder, a glob reads others."""

    @dg.asset(partitions_def=ODD_PARTS)
    def up(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return pl.DataFrame({"key": [context.partition_key]})

    @dg.asset(partitions_def=ODD_PARTS)
    def down(context: dg.AssetExecutionContext, up: pl.LazyFrame) -> pl.DataFrame:
        frame = up.collect()
        assert frame["key"].to_list() == [context.partition_key]
        return frame

    with DagsterInstance.ephemeral() as instance:
        for key in ODD_KEYS:
            result = _materialize([up, down], io_manager, instance, partition_key=key)
            assert _metadata(result, "down")["dagster/partition_row_count"] == 1
    folder = io_manager.path_for(["up"], "a/b").parent
    assert len(list(folder.iterdir())) == len(ODD_KEYS)
    assert all(path.is_file() for path in folder.iterdir())


def test_multi_partition_keys_are_stored_alike_in_any_order(local: BatchParquetIOManager) -> None:
    """The file of a multi-partition key would not be found again."""
    partitions = dg.MultiPartitionsDefinition(
        {
            "lang": dg.StaticPartitionsDefinition(["de", "fr"]),
            "day": dg.StaticPartitionsDefinition(["d1"]),
        }
    )

    @dg.asset(partitions_def=partitions)
    def up(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return pl.DataFrame({"key": [context.partition_key]})

    @dg.asset
    def down(up: dict[str, pl.DataFrame]) -> None:
        assert sorted(up) == ["d1|de", "d1|fr"]

    with DagsterInstance.ephemeral() as instance:
        for lang in ("de", "fr"):
            key = dg.MultiPartitionKey({"lang": lang, "day": "d1"})
            _materialize([up], local, instance, partition_key=key)
        _materialize([up, down], local, instance, selection=[down])
    assert local.path_for(["up"], "d1|de").name == "d1%7Cde.parquet"


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (pl.DataFrame, pl.DataFrame),
        (pl.LazyFrame, pl.LazyFrame),
        (pa.Table, pa.Table),
        (dict[str, pl.DataFrame], {"p0": pl.DataFrame, "p1": pl.DataFrame, "p2": pl.DataFrame}),
        (dict[str, pl.LazyFrame], {"p0": pl.LazyFrame, "p1": pl.LazyFrame, "p2": pl.LazyFrame}),
        (Mapping[str, pa.Table], {"p0": pa.Table, "p1": pa.Table, "p2": pa.Table}),
        (dict, {"p0": pl.DataFrame, "p1": pl.DataFrame, "p2": pl.DataFrame}),
        (Any, {"p0": pl.DataFrame, "p1": pl.DataFrame, "p2": pl.DataFrame}),
    ],
)
def test_several_partitions_come_as_annotated(
    io_manager: BatchParquetIOManager, annotation: Any, expected: Any
) -> None:
    """An asset over all partitions gets something else than it asked for."""
    seen: list[Any] = []

    @dg.asset
    def down(up: annotation) -> None:
        seen.append(up)

    with DagsterInstance.ephemeral() as instance:
        up = _store_all(io_manager, instance)
        _materialize([up, down], io_manager, instance, selection=[down])
    (value,) = seen
    if isinstance(expected, dict):
        assert {key: type(frame) for key, frame in value.items()} == expected
        assert [_rows(frame) for frame in value.values()] == [["p0"], ["p1"], ["p2"]]
    else:
        assert type(value) is expected
        assert _rows(value) == ["p0", "p1", "p2"]


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame, pa.Table, Any])
def test_one_partition_comes_as_a_frame(io_manager: BatchParquetIOManager, annotation: Any) -> None:
    """The usual case of equally partitioned assets would not load."""
    seen: list[Any] = []

    @dg.asset(partitions_def=PARTS)
    def down(up: annotation) -> None:
        seen.append(up)

    with DagsterInstance.ephemeral() as instance:
        up = _store_all(io_manager, instance)
        _materialize([up, down], io_manager, instance, selection=[down], partition_key="p1")
    assert type(seen[0]) is (pl.DataFrame if annotation is Any else annotation)
    assert _rows(seen[0]) == ["p1"]


def test_unpartitioned_asset_is_loaded(io_manager: BatchParquetIOManager) -> None:
    """An asset without partitions could be stored but never read."""

    @dg.asset
    def up() -> pl.DataFrame:
        return pl.DataFrame({"key": ["x"]})

    @dg.asset
    def down(up: pa.Table) -> None:
        assert _rows(up) == ["x"]

    with DagsterInstance.ephemeral() as instance:
        _materialize([up, down], io_manager, instance)


def test_output_of_several_partitions_is_a_file_each(io_manager: BatchParquetIOManager) -> None:
    """A range run would store one frame for all, or nothing."""

    @dg.asset(partitions_def=PARTS, backfill_policy=dg.BackfillPolicy.single_run())
    def up(context: dg.AssetExecutionContext) -> Any:
        return {key: pl.LazyFrame({"key": [key]}) for key in context.partition_keys}

    with DagsterInstance.ephemeral() as instance:
        result = _materialize([up], io_manager, instance, tags=_range("p1", "p2"))
    for key in ("p1", "p2"):
        with io_manager.path_for(["up"], key).open("rb") as file:
            assert _rows(pl.read_parquet(file)) == [key]
    assert not io_manager.path_for(["up"], "p0").exists()
    metadata = _metadata(result, "up")
    assert "dagster/partition_row_count" not in metadata  # would be shown at each partition
    assert metadata["dagster/uri"].endswith("up")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pl.DataFrame(), "return a dict with one frame"),
        ({"p1": pl.DataFrame()}, r"\['p2'\] are missing"),
        ({"p0": pl.DataFrame(), "p1": pl.DataFrame(), "p2": pl.DataFrame()}, r"\['p0'\] do not"),
    ],
)
def test_output_that_does_not_match_its_partitions(
    local: BatchParquetIOManager, tmp_path: Path, value: object, message: str
) -> None:
    """Rows would land in the wrong partition, or in none."""

    @dg.asset(partitions_def=PARTS, backfill_policy=dg.BackfillPolicy.single_run())
    def up() -> Any:
        return value

    with DagsterInstance.ephemeral() as instance, pytest.raises((TypeError, ValueError)) as error:
        _materialize([up], local, instance, tags=_range("p1", "p2"))
    assert error.match(message)
    assert list(tmp_path.rglob("*.parquet")) == []


def test_missing_partitions_are_an_error_unless_allowed(io_manager: BatchParquetIOManager) -> None:
    """A downstream asset would silently be computed from a part of its input."""

    @dg.asset
    def strict(up: pl.DataFrame) -> None: ...

    @dg.asset(ins={"up": dg.AssetIn(metadata={"allow_missing_partitions": True})})
    def lenient(up: pl.DataFrame) -> None:
        assert _rows(up) == ["p0", "p2"]

    with DagsterInstance.ephemeral() as instance:
        up = _store_all(io_manager, instance, ["p0", "p2"])
        _materialize([up, lenient], io_manager, instance, selection=[lenient])
        with pytest.raises(FileNotFoundError, match=r"'up' has no file for 1 of 3 .*'p1'"):
            _materialize([up, strict], io_manager, instance, selection=[strict])


def test_annotations_that_cannot_be_served_say_what_can(local: BatchParquetIOManager) -> None:
    """A wrong annotation would surface as a puzzling type check."""

    @dg.asset(partitions_def=PARTS)
    def down(up: int) -> None: ...

    with DagsterInstance.ephemeral() as instance:
        up = _store_all(local, instance)
        with pytest.raises(TypeError, match=r"pl\.LazyFrame"):
            _materialize([up, down], local, instance, selection=[down], partition_key="p0")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([{"a": 1}], r"a list cannot be .*: return pl\.DataFrame\(rows\)"),
        ({"a": [1]}, r"a dict cannot be .*: return pl\.DataFrame\(columns\)"),
        (pl.Series("a", [1]), r"a Series cannot be .*: return series\.to_frame\(\)"),
        (None, "a NoneType cannot be .*-> None"),
        (7, "an? int cannot be .*Polars DataFrame or LazyFrame"),
    ],
)
def test_unknown_outputs_say_what_is_possible(
    local: BatchParquetIOManager, tmp_path: Path, value: object, message: str
) -> None:
    """A list of dicts would be pickled, or lost."""

    @dg.asset
    def up() -> Any:
        return value

    with DagsterInstance.ephemeral() as instance, pytest.raises(TypeError, match=message):
        _materialize([up], local, instance)
    assert list(tmp_path.iterdir()) == []


def test_columns_of_one_partition_say_what_to_return(local: BatchParquetIOManager) -> None:
    """Columns would be taken for partitions, and be told to be none."""

    @dg.asset(partitions_def=PARTS)
    def up() -> Any:
        return {"a": [1], "b": [2]}

    with (
        DagsterInstance.ephemeral() as instance,
        pytest.raises(ValueError, match=r"columns is returned as pl\.DataFrame\(columns\)"),
    ):
        _materialize([up], local, instance, partition_key="p0")


class TestPandas:
    """Frames of pandas, where that is installed."""

    @pytest.mark.parametrize(
        ("index", "columns"),
        [
            (None, ["key"]),
            ("unnamed", ["key"]),
            ("named", ["id", "key"]),
            ("two levels", ["id", "key"]),
        ],
    )
    def test_a_frame_is_stored_with_a_named_index(
        self, io_manager: BatchParquetIOManager, index: str | None, columns: list[str]
    ) -> None:
        """Most people's frames could not be stored, or with a column that nobody has made."""
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame({"key": ["x", "y"]})
        if index == "unnamed":
            frame.index = pandas.Index([5, 7])
        if index == "named":
            frame.index = pandas.Index([5, 7], name="id")
        if index == "two levels":
            frame.index = pandas.MultiIndex.from_tuples([(5, 0), (7, 0)], names=["id", None])

        @dg.asset(partitions_def=PARTS)
        def up() -> Any:
            return frame

        @dg.asset(partitions_def=PARTS)
        def down(up: pl.DataFrame) -> None:
            assert up.columns == columns
            assert up["key"].to_list() == ["x", "y"]

        with DagsterInstance.ephemeral() as instance:
            _materialize([up, down], io_manager, instance, partition_key="p1")

    def test_it_need_not_be_there(
        self, local: BatchParquetIOManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever has no pandas could not store anything, or be told what to return."""
        monkeypatch.setitem(sys.modules, "pandas", None)  # importing it fails

        @dg.asset
        def up() -> Any:
            return object()

        with DagsterInstance.ephemeral() as instance:
            with pytest.raises(TypeError, match="object cannot be stored"):
                _materialize([up], local, instance)
            _store_all(local, instance, ["p0"])


def test_failed_rows_of_all_files_are_read_together(io_manager: BatchParquetIOManager) -> None:
    """A column that was added meanwhile, or a file of another asset, would spoil all of them."""
    frames = {
        "DE": pl.DataFrame({"item_id": ["0", "1"], "batch_status": ["failed", "ok"]}),
        "a/b": pl.DataFrame({"item_id": ["0"], "batch_status": ["failed"], "label": [None]}),
    }

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["DE", "a/b"]))
    def up(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return frames[context.partition_key]

    @dg.asset(key=["up", "below"])
    def below() -> pl.DataFrame:
        return pl.DataFrame({"n": [1]})

    def failed() -> list[tuple[Any, ...]]:
        table = io_manager.scan_failed("up").collect()
        return table.select("batch_partition", "batch_partition_state", "item_id").rows()

    with DagsterInstance.ephemeral() as instance:
        _materialize([up], io_manager, instance, partition_key="DE")
        assert failed() == [("DE", "stored", "0")]
        _materialize([up], io_manager, instance, partition_key="a/b")
        _materialize([below], io_manager, instance)
        io_manager.store_rejected(["up"], "DE", frames["DE"].lazy())
        assert failed() == [
            ("DE", "stored", "0"),
            ("a/b", "stored", "0"),
            ("DE", "rejected", "0"),
        ]
        _materialize([up], io_manager, instance, partition_key="DE")
    assert failed() == [("DE", "stored", "0"), ("a/b", "stored", "0")]


def test_failed_write_keeps_what_was_there(io_manager: BatchParquetIOManager) -> None:
    """A crash in the middle would leave half a file where a whole one was."""

    def broken() -> Any:
        yield pa.record_batch({"key": ["new"]})
        raise RuntimeError("the reader broke")

    schema = pa.schema([("key", pa.string())])
    values: list[Any] = [
        pl.DataFrame({"key": ["old"]}),
        pa.RecordBatchReader.from_batches(schema, broken()),
    ]

    @dg.asset
    def up() -> Any:
        return values.pop(0)

    with DagsterInstance.ephemeral() as instance:
        _materialize([up], io_manager, instance)
        with pytest.raises(RuntimeError, match="the reader broke"):
            _materialize([up], io_manager, instance)
    path = io_manager.path_for(["up"])
    with path.open("rb") as file:
        assert _rows(pl.read_parquet(file)) == ["old"]
    assert [other.name for other in path.parent.iterdir()] == ["up.parquet"]


def test_column_schema_has_types_and_descriptions(local: BatchParquetIOManager) -> None:
    """The asset's page would not say what the columns mean."""
    described = pa.field("n", pa.int64(), nullable=False, metadata={b"description": b"How many"})

    @dg.asset
    def up() -> Any:
        return pa.table({"n": [1]}, schema=pa.schema([described]))

    with DagsterInstance.ephemeral() as instance:
        schema = _metadata(_materialize([up], local, instance), "up")["dagster/column_schema"]
    (column,) = schema.columns
    assert (column.name, column.type, column.description) == ("n", "int64", "How many")
    assert column.constraints.nullable is False


def test_own_column_schema_is_kept(local: BatchParquetIOManager) -> None:
    """A schema with descriptions would be replaced by one without."""
    own = dg.TableSchema(columns=[dg.TableColumn("n", "int", description="How many")])

    @dg.asset
    def up() -> Any:
        return dg.MaterializeResult(
            value=pl.LazyFrame({"n": [1]}), metadata={"dagster/column_schema": own}
        )

    with DagsterInstance.ephemeral() as instance:
        metadata = _metadata(_materialize([up], local, instance), "up")
    assert metadata["dagster/column_schema"] == own
    assert metadata["dagster/row_count"] == 1


def test_outputs_of_ops_are_stored_by_run(local: BatchParquetIOManager, tmp_path: Path) -> None:
    """Jobs of ops that share the manager would overwrite each other."""

    @dg.op
    def produce() -> pl.DataFrame:
        return pl.DataFrame({"key": ["x"]})

    @dg.op
    def consume(frame: pl.LazyFrame) -> None:
        assert _rows(frame) == ["x"]

    @dg.job(resource_defs={"io_manager": local})
    def flow() -> None:
        consume(produce())

    with DagsterInstance.ephemeral() as instance:
        result = flow.execute_in_process(instance=instance)
    assert (tmp_path / result.run_id / "produce" / "result@.parquet").exists()


def test_a_large_reader_is_never_held_whole(local: BatchParquetIOManager) -> None:
    """Memory would grow with the number of rows."""
    schema = pa.schema([("n", pa.int64())])

    def batches() -> Any:
        for start in range(0, 40 * 100_000, 100_000):
            yield pa.record_batch({"n": pa.array(range(start, start + 100_000), pa.int64())})

    @dg.asset
    def up() -> Any:
        return pa.RecordBatchReader.from_batches(schema, batches())

    before = pa.total_allocated_bytes()
    with DagsterInstance.ephemeral() as instance:
        _materialize([up], local, instance)
    assert pa.total_allocated_bytes() - before < 8_000_000
    footer = pq.read_metadata(str(local.path_for(["up"])))
    assert footer.num_rows == 4_000_000


def _store_all(
    io_manager: BatchParquetIOManager, instance: DagsterInstance, keys: list[str] | None = None
) -> AssetsDefinition:
    @dg.asset(partitions_def=PARTS)
    def up(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return pl.DataFrame({"key": [context.partition_key]})

    for key in keys or PARTS.get_partition_keys():
        _materialize([up], io_manager, instance, partition_key=key)
    return up


def _materialize(
    assets: list[AssetsDefinition],
    io_manager: BatchParquetIOManager,
    instance: DagsterInstance,
    **options: Any,
) -> dg.ExecuteInProcessResult:
    resources = {"io_manager": io_manager}
    return dg.materialize(assets, resources=resources, instance=instance, **options)


def _metadata(result: dg.ExecuteInProcessResult, node: str) -> dict[str, Any]:
    materialization = result.asset_materializations_for_node(node)[0]
    return {key: value.value for key, value in materialization.metadata.items()}


def _range(start: str, end: str) -> dict[str, str]:
    return {
        "dagster/asset_partition_range_start": start,
        "dagster/asset_partition_range_end": end,
    }


def _rows(frame: Any) -> list[str]:
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    rows: list[str] = (
        frame["key"].to_pylist() if isinstance(frame, pa.Table) else frame["key"].to_list()
    )
    return rows
