"""Many files as one source: folders and patterns."""

import csv
import gzip
import json
import pickle

import polars as pl
import pytest
from upath import UPath

from batchor_core.errors import MissingColumnError, SourceError
from batchor_core.sources import FilesItemSource, items_of, open_source
from batchor_core.testing.source_suite import SourceContract, rows_of


def halves(rows):
    """Cut rows into those of two files."""
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


class TestContractOfCsvFolder(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        first, second = halves(rows)
        names = list(rows[0]) if rows else ["id", "text"]
        (folder / "b").mkdir(exist_ok=True)
        for path, part in ((folder / "a.csv", first), (folder / "b" / "0.csv", second)):
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(part)
        return open_source(folder, id_column, block_rows=block_rows)


class TestContractOfJsonlPattern(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        for number, part in enumerate(halves(rows)):
            text = "".join(json.dumps(row) + "\n" for row in part)
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        return open_source(f"{folder}/*.jsonl.gz", id_column, block_rows=block_rows)


class TestContractOfParquetFolder(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        names = list(rows[0]) if rows else ["id", "text"]
        for number, part in enumerate(halves(rows)):
            frame = pl.DataFrame(part, schema=dict.fromkeys(names, pl.String))
            frame.write_parquet(folder / f"{number}.parquet", row_group_size=3)
        return FilesItemSource(folder, id_column, block_rows=block_rows)


def texts(source):
    """Read the column ``text``."""
    return [payload["text"] for _, payload in rows_of(source)]


def write(folder, **files):
    """Write CSV files with one row each, which says where it stands."""
    for name in files.values():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"id,text\n{name},{name}\n")


def test_files_come_in_the_order_of_their_paths(tmp_path):
    """If this fails, rows change places from one start to the next."""
    names = ["b.csv", "a/2.csv", "a.csv", "a/10.csv", "c/d/e.csv"]
    write(tmp_path, **{f"n{i}": name for i, name in enumerate(names)})
    expected = ["a/10.csv", "a/2.csv", "a.csv", "b.csv", "c/d/e.csv"]
    assert texts(open_source(tmp_path)) == expected
    assert texts(open_source(f"{tmp_path}/")) == expected
    assert texts(open_source(tmp_path / "**" / "*.csv")) == expected


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("[bc].csv", ["b.csv"]),
        ("?/*.csv", ["a/1.csv", "a/2.csv", "c/1.csv"]),
        ("[ac]", ["a/1.csv", "a/2.csv", "c/1.csv"]),
        ("a/*", ["a/1.csv", "a/2.csv"]),
    ],
)
def test_patterns_choose_files_and_folders(tmp_path, pattern, found):
    """If this fails, a pattern reads other files than a shell would show."""
    write(tmp_path, a="a.csv", b="b.csv", c="a/1.csv", d="a/2.csv", e="c/1.csv")
    assert texts(open_source(tmp_path / pattern)) == found


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    """If this fails, 'export [1].csv' cannot be read."""
    write(tmp_path, a="export [1].csv", b="export 1.csv")
    assert texts(open_source(tmp_path / "export [1].csv")) == ["export [1].csv"]


def test_a_folder_may_be_named_like_a_file(tmp_path):
    """If this fails, what Spark has written cannot be read."""
    folder = tmp_path / "out.parquet"
    folder.mkdir()
    pl.DataFrame({"text": ["x"]}).write_parquet(folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-1.parquet").touch()
    assert texts(open_source(folder)) == ["x"]


def test_remote_folders_and_patterns():
    """If this fails, folders can only be read on this machine."""
    for name in ("b/2.csv", "a/1.csv"):
        UPath(f"memory://inputs/{name}").write_text(f"id,text\n1,{name}\n")
    for place in ("memory://inputs", "memory://inputs/*/*.csv", "memory://inputs/**/*.csv"):
        source = open_source(place, block_rows=1)
        assert texts(source) == ["a/1.csv", "b/2.csv"]
        *_, last = source.blocks()
        assert [payload["text"] for _, payload in rows_of(source, last.position)] == ["b/2.csv"]


def test_blocks_name_their_file(tmp_path):
    """If this fails, nobody can tell from which of many files a row came."""
    write(tmp_path, a="x/part.csv", b="y/part.csv")
    assert [block.file for block in open_source(tmp_path).blocks()] == ["x/part.csv", "y/part.csv"]


def test_a_broken_line_names_its_file_and_line(tmp_path):
    """If this fails, the broken one among a thousand files is not found."""
    write(tmp_path, a="x/part.csv", b="y/part.csv")
    (tmp_path / "y" / "part.csv").write_text("id,text\n1,2\n3\n")
    with pytest.raises(SourceError, match=r"^y/part.csv, line 3: 1 values where the header has 2$"):
        texts(open_source(tmp_path))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_that_lacks_a_column_is_named(tmp_path, kind):
    """If this fails, the rows of one file get prompts without their text."""
    for name, column in (("a", "text"), ("b", "txt")):
        frame = pl.DataFrame({"id": ["1"], column: ["x"]})
        getattr(frame, f"write_{kind}")(tmp_path / f"{name}.{kind}")
    message = rf"no column 'text' in b.{kind}; it has: id, txt"
    with pytest.raises(MissingColumnError, match=message):
        texts(open_source(tmp_path))


def test_a_file_may_have_more_columns_in_another_order(tmp_path):
    """If this fails, a table that has grown a column cannot be read."""
    (tmp_path / "a.csv").write_text("id,text\n1,x\n")
    (tmp_path / "b.csv").write_text("text,new,id\ny,n,2\n")
    source = open_source(tmp_path, "id")
    assert source.columns == ["id", "text"]
    assert [(key, row["text"]) for key, row in rows_of(source)] == [("1", "x"), ("2", "y")]


def test_a_key_that_a_json_file_lacks_is_null(tmp_path):
    """If this fails, a key that is rare makes a folder unreadable."""
    (tmp_path / "0.jsonl").write_text("\n")
    (tmp_path / "1.jsonl").write_text('{"text": "x", "rare": 1}\n')
    (tmp_path / "2.jsonl").write_text('{"text": "y"}\n')
    source = open_source(tmp_path)
    frames = [block.frame for block in source.blocks()]
    assert [frame.rows() for frame in frames] == [[("x", "1")], [("y", None)]]


def test_columns_can_be_chosen_but_not_of_csv(tmp_path):
    """If this fails, wide files are read as a whole, or a choice is ignored without a word."""
    pl.DataFrame({"a": [1], "b": [2], "c": [3]}).write_parquet(tmp_path / "0.parquet")
    source = open_source(tmp_path, "c", columns=["b"])
    assert rows_of(source) == [("3", {"b": 2})]
    assert source.dtypes == {"b": pl.Int64}
    write(tmp_path / "csv", a="a.csv")
    with pytest.raises(SourceError, match=r"a.csv: columns of a CSV file cannot be chosen"):
        rows_of(open_source(tmp_path / "csv", columns=["id"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "there are no files in in"),
        (["a.csv", "b.parquet"], r"in holds .csv and .parquet files: give one kind"),
        (["a.csv", "README.md"], r"cannot tell what 'README.md' holds"),
    ],
)
def test_a_folder_that_is_no_input_is_refused(tmp_path, names, message):
    """If this fails, some files of a folder are left out, or no file is an empty run."""
    (tmp_path / "in").mkdir()
    for name in names:
        (tmp_path / "in" / name).touch()
    for use in (FilesItemSource.fingerprint, rows_of, lambda source: source.columns):
        with pytest.raises(SourceError, match=message):
            use(open_source(tmp_path / "in"))


def test_a_pattern_without_matches_is_refused(tmp_path):
    """If this fails, a typing error in a pattern makes an empty run."""
    with pytest.raises(SourceError, match=r"there are no files in \*.csv"):
        rows_of(open_source(tmp_path / "*.csv"))


def test_the_fingerprint_sees_files_come_go_and_change_places(tmp_path):
    """If this fails, a run goes on with other files than it began with."""
    write(tmp_path, a="a.csv", b="b.csv")
    prints = [open_source(tmp_path).fingerprint()]
    write(tmp_path, c="c.csv")
    prints.append(open_source(tmp_path).fingerprint())
    (tmp_path / "a.csv").rename(tmp_path / "d.csv")
    prints.append(open_source(tmp_path).fingerprint())
    assert len(set(prints)) == 3


def test_a_file_that_arrives_while_a_folder_is_read_is_left_alone(tmp_path):
    """If this fails, positions point into other files, and rows are lost or doubled."""
    write(tmp_path, b="b.csv", c="c.csv")
    source = open_source(tmp_path)
    first, second = source.blocks()
    write(tmp_path, a="a.csv")
    assert texts(source) == ["b.csv", "c.csv"]
    assert len(rows_of(source, second.position)) == 1
    assert first.position != second.position


def test_ids_number_on_across_files(tmp_path):
    """If this fails, rows of two files get the same number as their id."""
    write(tmp_path, a="a.csv", b="b.csv")
    rows = []
    for block in open_source(tmp_path).blocks():
        rows += [item.item_id for item in items_of(block, len(rows))]
    assert rows == ["0", "1"]


def test_a_folder_can_be_pickled(tmp_path):
    """If this fails, a job with a folder as its source cannot be handed to another process."""
    write(tmp_path, a="a.csv")
    source = open_source(tmp_path)
    assert texts(pickle.loads(pickle.dumps(source))) == texts(source)
