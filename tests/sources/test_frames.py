"""The source of frames and Arrow tables."""

import datetime as dt
import decimal
import subprocess
import sys
import uuid

import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from batchor_core.errors import SourceError
from batchor_core.sources import FrameItemSource, rows_as_dicts
from batchor_core.testing.source_suite import SourceContract, rows_of


def frame_of(rows):
    """Return the rows as a frame of text columns."""
    return pl.DataFrame(rows, schema=dict.fromkeys(rows[0] if rows else ["id", "text"], pl.String))


class TestContractOfFrame(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        return FrameItemSource(frame_of(rows), id_column, block_rows=block_rows)


class TestContractOfArrow(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        return FrameItemSource(frame_of(rows).to_arrow(), id_column, block_rows=block_rows)


class TestContractOfLazyFrame(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = folder / "lazy.parquet"
        frame_of(rows).write_parquet(path, row_group_size=3)
        return FrameItemSource(pl.scan_parquet(path), id_column, block_rows=block_rows)


class TestContractOfDataset(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        half = len(rows) // 2
        for name, part in (("0.parquet", rows[:half]), ("1.parquet", rows[half:])):
            named = pl.DataFrame(part, schema=frame_of(rows).schema)
            named.write_parquet(folder / name, row_group_size=3)
        dataset = pads.dataset(folder, format="parquet")
        return FrameItemSource(dataset, id_column, block_rows=block_rows)


class TestContractOfStream(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        table = frame_of(rows).to_arrow()
        reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(5))
        return FrameItemSource(reader, id_column, block_rows=block_rows)


def test_a_filtered_dataset_is_read_as_it_is_filtered(tmp_path):
    """If this fails, rows that were filtered out are paid for."""
    table = pa.table({"n": list(range(10)), "t": list("abcdefghij")})
    dataset = pads.dataset(table).filter(pads.field("n") >= 7)
    source = FrameItemSource(dataset, "t", block_rows=2)
    assert [key for key, _ in rows_of(source)] == ["h", "i", "j"]
    assert [key for key, _ in rows_of(source, {"row": 1})] == ["i", "j"]


def test_columns_that_stand_in_folders_names_are_there(tmp_path):
    """If this fails, the partition columns of a data set are missing or null."""
    for day in ("1", "2"):
        (tmp_path / f"day={day}").mkdir()
        pl.DataFrame({"t": ["x"]}).write_parquet(tmp_path / f"day={day}" / "0.parquet")
    source = FrameItemSource(pads.dataset(tmp_path, partitioning="hive"))
    assert [row for _, row in rows_of(source)] == [{"t": "x", "day": 1}, {"t": "x", "day": 2}]


def test_a_query_is_run_once():
    """If this fails, an expensive query runs again for each stretch of reading."""
    runs = []

    def count(frame):
        runs.append(frame.height)
        return frame

    lazy = pl.LazyFrame({"a": list("abcde")}).map_batches(count, streamable=False)
    source = FrameItemSource(lazy, block_rows=2)
    source.fingerprint()
    for position in (None, {"row": 3}):
        list(source.blocks(position))
    assert sum(runs) == 5


def test_a_stream_that_fails_is_not_taken_for_a_shorter_one():
    """If this fails, the rows behind an error are left out when the run is tried again."""
    schema = pa.schema({"a": pa.string()})

    def batches():
        yield pa.record_batch([["x"]], schema=schema)
        raise pa.ArrowInvalid("broken")

    source = FrameItemSource(pa.RecordBatchReader.from_batches(schema, batches()))
    with pytest.raises(SourceError, match=r"^arrow stream: ArrowInvalid: .*broken"):
        list(source.blocks())
    with pytest.raises(SourceError, match="a first reading of it has failed"):
        list(source.blocks())


def test_an_arrow_table_is_not_copied():
    """If this fails, handing over a big table doubles the memory."""
    table = pa.table({"n": pa.array(range(10), pa.int64())})
    (block,) = FrameItemSource(table).blocks()
    buffer = block.frame.to_arrow()["n"].chunk(0).buffers()[1]
    assert buffer.address == table["n"].chunk(0).buffers()[1].address


def test_uuids_of_an_arrow_table_are_text():
    """If this fails, a prompt shows the bytes of a UUID."""
    key = uuid.UUID(int=7)
    table = pa.table({"id": pa.array([key.bytes, None], pa.uuid())})
    assert [row["id"] for b in FrameItemSource(table).blocks() for row in rows_as_dicts(b)] == [
        str(key),
        None,
    ]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pl.Series([1, 2**40]), ["1", str(2**40)]),
        (pl.Series([2**100], dtype=pl.Int128), [str(2**100)]),
        (pl.Series([dt.datetime(2024, 2, 29, 1, 2, tzinfo=dt.UTC)]), ["2024-02-29 01:02:00+00:00"]),
        (pl.Series([uuid.UUID(int=1)], dtype=pl.Object), [str(uuid.UUID(int=1))]),
        (pl.Series(["b", "a"], dtype=pl.Categorical), ["b", "a"]),
        (pl.Series([decimal.Decimal("1.50")]), ["1.50"]),
    ],
)
def test_ids_of_other_types_become_text(values, ids):
    """If this fails, keys that are not text cannot be used, or change their look."""
    assert [key for key, _ in rows_of(FrameItemSource(values.to_frame("id"), "id"))] == ids


@pytest.mark.parametrize("values", [[1.5], [True], [None], ["a", None], [b"x"], [["a"]]])
def test_ids_that_are_no_keys_are_refused(values):
    """If this fails, items get ids that are not stable, or none."""
    with pytest.raises(SourceError, match=r"^polars frame, row \d: the id column 'id' "):
        list(FrameItemSource(pl.DataFrame({"id": values}), "id").blocks())


def test_a_failing_query_is_a_source_error(tmp_path):
    """If this fails, a broken lazy frame escapes as an exception of Polars."""
    for lazy in (
        pl.scan_parquet(tmp_path / "none.parquet"),
        pl.LazyFrame({"a": ["x"]}).select(pl.col("b")),
        pl.LazyFrame({"a": ["x"]}).select(pl.col("a").cast(pl.Int64)),
    ):
        with pytest.raises(SourceError, match=r"^polars lazy frame: \w+: [^\n]+$"):
            list(FrameItemSource(lazy).blocks())


def test_other_objects_are_refused():
    """If this fails, a pandas frame or a list fails late and obscurely."""
    with pytest.raises(SourceError, match="a list is no Polars frame, and no Arrow table"):
        FrameItemSource([{"a": 1}])


def test_repeated_column_names_are_refused():
    """If this fails, one of two columns of the same name wins by chance."""
    with pytest.raises(SourceError, match="arrow table: more than one column is named 'a'"):
        FrameItemSource(pa.table([[1], [2]], names=["a", "a"]))


def test_the_fingerprint_sees_values_types_names_and_the_id_column():
    """If this fails, rows that render differently are taken for the same."""
    frames = [
        pl.DataFrame({"a": [1.0, None]}),
        pl.DataFrame({"a": [1.0, float("nan")]}),
        pl.DataFrame({"a": [1, None]}),
        pl.DataFrame({"b": [1.0, None]}),
        pl.DataFrame({"a": [None, 1.0]}),
        pl.DataFrame({"a": [2**100]}, schema={"a": pl.Int128}),
    ]
    prints = {FrameItemSource(frame).fingerprint() for frame in frames}
    prints.add(FrameItemSource(frames[0], "a").fingerprint())
    assert len(prints) == len(frames) + 1


def test_the_fingerprint_does_not_depend_on_how_the_rows_are_held():
    """If this fails, a run cannot go on when the same rows arrive in other pieces."""
    frame = pl.DataFrame({"a": range(10), "t": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)] * 10})
    pieces = pl.concat([frame[:3], frame[3:]], rechunk=False)
    expected = FrameItemSource(frame).fingerprint()
    assert FrameItemSource(pieces, block_rows=4).fingerprint() == expected
    assert FrameItemSource(frame.lazy(), block_rows=3).fingerprint() == expected
    assert FrameItemSource(frame.to_arrow()).fingerprint() == expected


def test_the_fingerprint_is_the_same_in_another_process():
    """If this fails, no run can be continued after a restart."""
    code = (
        "import polars as pl; from batchor_core.sources import FrameItemSource as F;"
        "print(F(pl.DataFrame({'a': ['x', None], 'l': [[1], []]}), 'a').fingerprint())"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = FrameItemSource(pl.DataFrame({"a": ["x", None], "l": [[1], []]}), "a").fingerprint()
    assert seen.stdout.strip() == here
