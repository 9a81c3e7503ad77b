"""Choosing a source by a file's name, and files that cannot be opened."""

import pickle

import pytest

from batchor_core.errors import SourceError
from batchor_core.sources import CsvItemSource, JsonlItemSource, ParquetItemSource, open_source

READABLE = ["in.csv", "in.jsonl", "in.parquet", "in.csv.gz"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", CsvItemSource),
        ("A.CSV", CsvItemSource),
        ("a.b.csv.gz", CsvItemSource),
        ("a.csv.zst", CsvItemSource),
        ("a.jsonl", JsonlItemSource),
        ("a.ndjson.gz", JsonlItemSource),
        ("memory://bucket/a.parquet", ParquetItemSource),
    ],
)
def test_the_ending_decides(name, kind):
    """If this fails, a file is read as something that it is not."""
    assert type(open_source(name)) is kind


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.gz", "a.parquet.gz", "csv", "folder/"])
def test_other_endings_are_refused(name):
    """If this fails, an unknown file is read as if it were known."""
    with pytest.raises(SourceError, match=r"its name must end in .csv, .jsonl, .ndjson"):
        open_source(name)


def test_an_unknown_scheme_is_refused():
    """If this fails, a typing error in a URL is answered by a traceback."""
    with pytest.raises(SourceError, match="cannot read this kind of location"):
        open_source("nowhere://bucket/a.csv")


@pytest.mark.parametrize("name", READABLE)
def test_a_missing_file_is_named(tmp_path, name):
    """If this fails, a missing file is answered by a traceback or taken for an empty one."""
    for path in (tmp_path / name, f"memory://nowhere/{name}"):
        source = open_source(path)
        for use in (lambda source=source: list(source.blocks()), source.fingerprint):
            with pytest.raises(SourceError, match=rf"^cannot read {name}: No such file or dir"):
                use()


def test_messages_do_not_show_where_a_url_points():
    """If this fails, a signed URL's signature ends up in a log."""
    source = open_source("https://user:pw@127.0.0.1/a.csv?sig=secret")
    assert source.label == "a.csv"


def test_a_source_can_be_pickled(tmp_path):
    """If this fails, a job with a file as its source cannot be handed to another process."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    source = open_source(tmp_path / "a.csv", "id")
    assert source.columns == ["id"]
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    assert [block.item_ids for block in copy.blocks()] == [["1"]]
