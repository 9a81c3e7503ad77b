"""The Parquet source."""

import datetime as dt
import uuid

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from batchor_core.errors import MissingColumnError, SourceError
from batchor_core.sources import ParquetItemSource, rows_as_dicts
from batchor_core.testing.source_suite import SourceContract, rows_of


def source_of(tmp_path, table, id_column=None, *, group_rows=2, **options):
    """Return the source of a file with this table in row groups of the given size."""
    path = tmp_path / "tickets.parquet"
    pq.write_table(table, path, row_group_size=group_rows)
    return ParquetItemSource(path, id_column, **options)


def dicts(source):
    """Read all rows."""
    return [row for block in source.blocks() for row in rows_as_dicts(block)]


class TestContract(SourceContract):
    group_rows = 1 << 20

    def make_source(self, rows, folder, *, id_column, block_rows):
        path = folder / "rows.parquet"
        schema = pa.schema([(name, pa.string()) for name in (rows[0] if rows else ["id", "text"])])
        table = pa.Table.from_pylist(rows, schema)
        pq.write_table(table, path, row_group_size=self.group_rows)
        return ParquetItemSource(path, id_column, block_rows=block_rows)


class TestContractOfSmallGroups(TestContract):
    group_rows = 3

    def test_a_block_has_a_bounded_number_of_rows(self, tmp_path):
        """If this fails, blocks span row groups and their positions are wrong."""
        source = self.make_source(
            [{"id": str(n)} for n in range(7)], tmp_path, id_column="id", block_rows=2
        )
        assert [len(block) for block in source.blocks()] == [2, 1, 2, 1, 1]
        assert [block.position for block in source.blocks()][1:3] == [
            {"group": 0, "row": 2},
            {"group": 1, "row": 0},
        ]


def test_types_stay(tmp_path):
    """If this fails, kept columns lose the types that the file has."""
    day = dt.date(2024, 2, 29)
    source = source_of(
        tmp_path, pa.table({"n": [7], "day": [day], "tags": [["a"]], "s": [{"x": 1}]})
    )
    assert dicts(source) == [{"n": 7, "day": day, "tags": ["a"], "s": {"x": 1}}]


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (pa.array([1, 22]), ["1", "22"]),
        (pa.array([dt.date(2024, 2, 29)]), ["2024-02-29"]),
        (pa.array([uuid.UUID(int=1).bytes], pa.uuid()), ["00000000-0000-0000-0000-000000000001"]),
        (pa.array(["b", "a"]).dictionary_encode(), ["b", "a"]),
        (pa.array([1000]).cast(pa.decimal128(38, 0)), ["1000"]),
    ],
)
def test_ids_of_other_types_become_text(tmp_path, values, ids):
    """If this fails, keys as data warehouses export them cannot be used, or change their look."""
    assert [key for key, _ in rows_of(source_of(tmp_path, pa.table({"id": values}), "id"))] == ids


@pytest.mark.parametrize("values", [[1.5], [True], [b"x"], [["a"]], [None]])
def test_ids_that_are_no_keys_are_refused(tmp_path, values):
    """If this fails, items get ids that are not stable, or none."""
    source = source_of(tmp_path, pa.table({"id": values}), "id")
    with pytest.raises(SourceError, match=r"tickets.parquet, row group 0, row 0: the id column"):
        list(source.blocks())


def test_a_bad_id_names_its_row(tmp_path):
    """If this fails, the row without a key cannot be found in the file."""
    source = source_of(tmp_path, pa.table({"id": ["a", "b", "c", None]}), "id", block_rows=1)
    with pytest.raises(SourceError, match="row group 1, row 1: the id column 'id' is null"):
        list(source.blocks())


def test_only_named_columns_are_read(tmp_path):
    """If this fails, wide files are read in full, or columns of similar names come along."""
    table = pa.table({"key": ["k"], "a": [{"x": 1}], "a.x": ["dot"], "b": ["b"]})
    source = source_of(tmp_path, table, "key", columns=["b", "a"])
    assert source.columns == ["b", "a"]
    assert rows_of(source) == [("k", {"b": "b", "a": {"x": 1}})]
    assert dicts(source_of(tmp_path, table, columns=["a.x"])) == [{"a.x": "dot"}]
    with pytest.raises(
        MissingColumnError, match=r"no column 'c' in tickets.parquet; it has: key, a"
    ):
        dicts(source_of(tmp_path, table, columns=["c"]))


def test_names_that_look_like_patterns_are_names(tmp_path):
    """If this fails, a column called ``*`` stands for all columns."""
    row = {"*": "star", "^.*$": "any", "a": "a"}
    source = source_of(tmp_path, pa.Table.from_pylist([row]), "*", columns=["^.*$", "*"])
    assert rows_of(source) == [("star", {"^.*$": "any", "*": "star"})]


def test_repeated_column_names_are_refused(tmp_path):
    """If this fails, one of two columns of the same name wins by chance."""
    table = pa.table([["1"], ["2"]], names=["a", "a"])
    with pytest.raises(SourceError, match=r"tickets.parquet: more than one column is named 'a'"):
        dicts(source_of(tmp_path, table))


def test_wide_rows_make_small_blocks(tmp_path, monkeypatch):
    """If this fails, a block of long documents takes gigabytes."""
    monkeypatch.setattr("batchor_core.sources.parquet.BLOCK_BYTES", 1000)
    table = pa.table({"a": [f"{n:0100}" for n in range(100)]})
    source = source_of(tmp_path, table, group_rows=100)
    assert max(len(block) for block in source.blocks()) < 15
    assert pl.concat(block.frame for block in source.blocks()).equals(pl.from_arrow(table))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all, just text"])
def test_other_files_are_refused(tmp_path, content):
    """If this fails, a wrong file is answered by a traceback of the Parquet library."""
    path = tmp_path / "tickets.parquet"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=r"^cannot read tickets.parquet: [^\n]+$"):
        dicts(ParquetItemSource(path))


def test_damaged_pages_are_refused(tmp_path):
    """If this fails, a damaged file is answered by a traceback of the Parquet library."""
    source = source_of(
        tmp_path, pa.table({"a": [f"text {n}" for n in range(1000)]}), group_rows=1000
    )
    path = tmp_path / "tickets.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\xff" * 200 + content[204:])
    with pytest.raises(SourceError, match=r"^cannot read tickets.parquet: [^\n]+$"):
        dicts(source)


def test_a_remote_file_is_read_like_a_local_one(tmp_path):
    """If this fails, fsspec URLs do not work."""
    source_of(tmp_path, pa.table({"id": ["x"]}))
    url = "memory://sources/rows.parquet"
    UPath(url).write_bytes((tmp_path / "tickets.parquet").read_bytes())
    assert rows_of(ParquetItemSource(url, "id")) == [("x", {"id": "x"})]
