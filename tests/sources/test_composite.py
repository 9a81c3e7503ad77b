"""Several sources, one after the other."""

import gzip
import json

import polars as pl
import pytest

from batchor_core.errors import ConfigurationError, MissingColumnError, SourceError
from batchor_core.model.items import BatchItem
from batchor_core.sources import (
    BatchItemSource,
    CompositeItemSource,
    CsvItemSource,
    FrameItemSource,
    ItemBlock,
    JsonlItemSource,
    items_of,
    open_source,
)
from batchor_core.testing.source_suite import SourceContract, rows_of
from tests.sources.test_csv import write_csv
from tests.sources.test_frames import frame_of


class CompositeContract(SourceContract):
    """The ids begin with the source's number; both sources have half of the rows."""

    def ids_of(self, rows, id_column):
        half = len(rows) // 2
        plain = [str(n if n < half else n - half) for n in range(len(rows))]
        if id_column is not None or not self.columnar:
            plain = [row["id"] for row in rows]
        return [f"{int(n >= half)}:{item_id}" for n, item_id in enumerate(plain)]


class TestContractOfFileAndFrame(CompositeContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        half = len(rows) // 2
        frame = frame_of(rows)
        path = write_csv(folder / "a.csv", rows)
        if half:
            first = CsvItemSource(write_csv(path, rows[:half]), id_column, block_rows=block_rows)
        else:
            first = FrameItemSource(frame[:0], id_column, block_rows=block_rows)
        second = FrameItemSource(frame[half:].lazy(), id_column, block_rows=block_rows)
        return CompositeItemSource([first, second])


class TestContractOfItems(CompositeContract):
    columnar = False

    def make_source(self, rows, folder, *, id_column, block_rows):
        half = len(rows) // 2
        items = [BatchItem(item_id=row["id"], payload=row) for row in rows]
        first = BatchItemSource(items[:half], block_rows=block_rows)
        return CompositeItemSource(
            [first, BatchItemSource(iter(items[half:]), block_rows=block_rows)]
        )


def lineages(source):
    """Read the lineage of every row."""
    return [
        item.metadata["batchor_lineage"] for block in source.blocks() for item in items_of(block, 0)
    ]


def test_rows_say_where_they_come_from(tmp_path):
    """If this fails, an answer cannot be traced to the file and the row that it is for."""
    (tmp_path / "a.csv").write_text("id,text\nk,x\n")
    (tmp_path / "in").mkdir()
    for name in ("0", "1"):
        (tmp_path / "in" / f"{name}.jsonl").write_text('{"text": "y"}\n')
    items = [BatchItem(item_id="k", payload="z", metadata={"mine": 1})]
    source = CompositeItemSource(
        [open_source(tmp_path / "a.csv", "id"), open_source(tmp_path / "in"), items]
    )
    assert lineages(source) == [
        {
            "source_ref": ref,
            "partition_id": file,
            "source_item_index": index,
            "source_primary_key": key,
            "source_namespace": namespace,
        }
        for ref, file, index, key, namespace in [
            ("a.csv", None, 0, "k", "0"),
            ("in", "0.jsonl", 0, None, "1"),
            ("in", "1.jsonl", 1, None, "1"),
            ("batch items", None, 0, "k", "2"),
        ]
    ]
    assert [key for key, _ in rows_of(source)] == ["0:k", "1:0", "1:1", "2:k"]
    *_, last = source.blocks()
    assert last.items[0].metadata["mine"] == 1
    assert items[0].metadata == {"mine": 1}


def test_a_resumed_reading_says_the_same_of_its_rows(tmp_path):
    """If this fails, ids and lineage of a run change with the moment at which it was killed."""
    frames = [pl.DataFrame({"t": list(text)}) for text in ("abcde", "fg")]
    source = CompositeItemSource([FrameItemSource(frame, block_rows=2) for frame in frames])
    whole = [(i.item_id, i.metadata) for b in source.blocks() for i in items_of(b, 0)]
    row = 0
    for block in source.blocks():
        position = json.loads(json.dumps(block.position))
        rest = [(i.item_id, i.metadata) for b in source.blocks(position) for i in items_of(b, 0)]
        assert rest == whole[row:]
        tail = block.tail(1)
        assert [(i.item_id, i.metadata) for i in items_of(tail, 0)] == whole[
            row + 1 : row + len(block)
        ]
        row += len(block)


def test_only_columns_that_all_have_are_columns():
    """If this fails, a template names a column that some of the rows lack."""
    first = pl.DataFrame({"a": ["1"], "b": ["2"], "c": ["3"]})
    second = pl.DataFrame({"c": ["4"], "a": ["5"], "d": ["6"]})
    items = [BatchItem(item_id="x", payload={"a": "7"})]
    source = CompositeItemSource([first, second, items])
    assert source.columns == ["a", "c"]
    assert [row for _, row in rows_of(source)] == [
        *first.to_dicts(),
        *second.to_dicts(),
        {"a": "7"},
    ]
    source.require(["a", "c"])
    with pytest.raises(
        MissingColumnError, match=r"^no column 'b' in polars frame \(source 1\); it"
    ):
        source.require(["a", "b"])


def test_types_are_known_where_all_agree(tmp_path):
    """If this fails, kept columns get the type of one source and break on the other."""
    pl.DataFrame({"n": [1], "t": ["x"]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"n": [1.5], "t": ["x"]}).write_parquet(tmp_path / "b.parquet")
    parts = [open_source(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    assert CompositeItemSource(parts).dtypes == {"t": pl.String}
    (tmp_path / "c.csv").write_text("t\n")
    assert CompositeItemSource([*parts, open_source(tmp_path / "c.csv")]).dtypes == {}


def test_what_is_no_composite_is_refused():
    """If this fails, nested or empty compositions fail late, or make ids of several meanings."""
    with pytest.raises(ConfigurationError, match="at least one source"):
        CompositeItemSource([])
    inner = CompositeItemSource([pl.DataFrame({"a": [1]})])
    with pytest.raises(ConfigurationError, match="give all sources to one"):
        CompositeItemSource([inner])
    with pytest.raises(ConfigurationError, match="items is a str"):
        CompositeItemSource(["a.csv"])


def test_a_broken_line_in_a_later_source_is_named(tmp_path):
    """If this fails, the broken one of several inputs is not found."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n{"a": \n'))
    source = CompositeItemSource([[], JsonlItemSource(tmp_path / "a.jsonl.gz", columns=["a"])])
    with pytest.raises(SourceError, match=r"^a.jsonl.gz, line 2: not a JSON object"):
        rows_of(source)


class Unmarked:
    """A source of somebody else's without fingerprint and positions."""

    label = "unmarked"
    columns = None

    def blocks(self, position=None):
        claims = {"batchor_lineage": {}}
        yield ItemBlock(position=None, items=[BatchItem(item_id="a", payload="x", metadata=claims)])


def test_with_a_source_that_cannot_be_reopened_there_are_no_positions():
    """If this fails, a killed run believes it can go on in the middle, and loses rows."""
    source = CompositeItemSource([pl.DataFrame({"a": [1, 2]}), Unmarked()])
    assert not source.reopenable
    assert next(source.blocks()).position is None
    assert CompositeItemSource([pl.DataFrame({"a": [1, 2]})]).reopenable


def test_a_lineage_of_anybody_else_is_refused():
    """If this fails, a source of the user's own passes for another one's rows."""
    with pytest.raises(SourceError, match=r"item 'a': the metadata key 'batchor_lineage' is res"):
        rows_of(CompositeItemSource([Unmarked()]))


def test_the_fingerprint_covers_all_sources_and_their_order():
    """If this fails, a run goes on with sources that were exchanged."""
    frames = [pl.DataFrame({"a": [n]}) for n in range(3)]
    orders = ([0, 1], [1, 0], [0], [0, 1, 2])
    prints = {CompositeItemSource([frames[n] for n in order]).fingerprint() for order in orders}
    assert len(prints) == 4
