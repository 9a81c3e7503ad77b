"""The CSV source."""

import csv
import gzip
from pathlib import Path

import polars as pl
import pytest
import zstandard
from upath import UPath

from batchor_core.errors import SourceError
from batchor_core.sources import CsvItemSource, rows_as_dicts
from batchor_core.testing.source_suite import SourceContract, rows_of

BANKING77 = Path(__file__).parents[3] / "shared" / "data" / "banking77" / "train.csv"


def write_csv(path, rows, **options):
    """Write rows as the standard library does; an empty table still has its header."""
    names = list(rows[0]) if rows else ["id", "text"]
    with path.open("w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        writer = csv.DictWriter(file, names, **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def source_of(tmp_path, content, id_column=None, **options):
    """Return the source of a file with these bytes."""
    path = tmp_path / "tickets.csv"
    path.write_bytes(content)
    return CsvItemSource(path, id_column, **options)


def dicts(source):
    """Read all rows."""
    return [row for block in source.blocks() for row in rows_as_dicts(block)]


class TestContract(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = write_csv(folder / "rows.csv", rows)
        return CsvItemSource(path, id_column, block_rows=block_rows)


class TestContractOfLineFeedsAndMark(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = write_csv(
            folder / "rows.csv",
            rows,
            lineterminator="\n",
            quoting=csv.QUOTE_ALL,
            encoding="utf-8-sig",
        )
        return CsvItemSource(path, id_column, block_rows=block_rows)


class TestContractOfAnotherEncoding(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = write_csv(folder / "rows.csv", rows, encoding="utf-16")
        return CsvItemSource(path, id_column, encoding="UTF-16", block_rows=block_rows)


class TestContractOfCompressed(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        plain = write_csv(folder / "rows.csv", rows).read_bytes()
        path = folder / "rows.csv.zst"
        path.write_bytes(zstandard.compress(plain[:9]) + zstandard.compress(plain[9:]))
        return CsvItemSource(path, id_column, block_rows=block_rows)


def test_nothing_is_inferred(tmp_path):
    """If this fails, leading zeros, dates or empty values are changed on the way to the prompt."""
    source = source_of(tmp_path, b"id,zip,when,none\n007,01234,2024-01-01,\n", "id")
    (block,) = source.blocks()
    assert block.item_ids == ["007"]
    assert block.frame.schema == dict.fromkeys(source.columns, pl.String)
    assert dicts(source) == [{"id": "007", "zip": "01234", "when": "2024-01-01", "none": ""}]


def test_positions_are_bytes_and_lines(tmp_path):
    """If this fails, a resumed ingestion starts within a record that spans lines."""
    source = source_of(tmp_path, b'a,b\r\n1,"x\r\ny"\r\n\r\n2,z\r\n', block_rows=1)
    positions = [block.position for block in source.blocks()]
    assert positions == [{"offset": 5, "line": 2}, {"offset": 17, "line": 5}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "tickets.csv is empty: it needs a header line"),
        (b"\xef\xbb\xbf\r\n", "tickets.csv is empty: it needs a header line"),
        (b"a,a\n1,2\n", "line 1: more than one column is named 'a'"),
        (b"\na,,c\n", "line 2: column 2 has no name in the header"),
        (b"a,b\n1,2\n\n3\n", "line 4: 1 values where the header has 2"),
        (b'a,b\n"x\n\ny",2\n1,2,3\n', "line 5: 3 values where the header has 2"),
        (b"a,b\n1,2\n\xe9,4\n", "line 3: not UTF-8 (byte 0xe9): name its encoding"),
        (b'a,b\n1,"x\n\xff",4\n', "line 3: not UTF-8 (byte 0xff): name its encoding"),
        (b"\xff\xfea\0", "line 1: not UTF-8 (byte 0xff): name its encoding"),
        (b"a,b\n1,2\n\n3,\0\n", "line 4: a NUL character"),
        (b"a\0,b\n1,2\n", "line 1: a NUL character"),
        (b'a,b\n1,2\n3,"4\n5,6\n', "line 3: a quoted value is never closed"),
        (b'a,b\n1,2\n3,"4"x\n', "line 3: ',' expected after '\"'"),
        (b"a,b\n1,x\ry\n", "line 2: a carriage return outside quotes"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(tmp_path, content, message):
    """If this fails, broken input is read wrongly, or nobody is told where it is broken."""
    with pytest.raises(SourceError) as caught:
        dicts(source_of(tmp_path, content))
    assert str(caught.value).removeprefix("tickets.csv, ") == message


def test_lines_are_counted_across_blocks_and_resumed_ones(tmp_path):
    """If this fails, messages about long files point at the wrong line."""
    source = source_of(tmp_path, b'a,b\n1,"x\ny"\n2,z\n\n3\n', block_rows=1)
    blocks = source.blocks()
    next(blocks)
    position = next(blocks).position
    for rest in (blocks, source.blocks(position)):
        with pytest.raises(SourceError, match="line 6: 1 values"):
            list(rest)


def test_an_empty_id_names_the_line(tmp_path):
    """If this fails, the row without a key cannot be found in the file."""
    source = source_of(tmp_path, b'id,b\n1,"x\ny"\n\n,z\n', "id")
    with pytest.raises(SourceError, match=r"^tickets.csv, line 5: the id column 'id' is empty$"):
        dicts(source)


def test_blank_lines_alone_make_no_block(tmp_path):
    """If this fails, a stretch of blank lines ends the reading or makes empty rows."""
    source = source_of(tmp_path, b"a\n1\n" + b"\n" * 5 + b"2", block_rows=2)
    assert dicts(source) == [{"a": "1"}, {"a": "2"}]


def test_a_long_value_is_read(tmp_path):
    """If this fails, documents above 128 KiB are refused by the csv module's default."""
    source = source_of(tmp_path, b"a,b\n1," + b"x" * 300_000 + b"\n")
    assert len(dicts(source)[0]["b"]) == 300_000


def test_long_records_make_small_blocks(tmp_path, monkeypatch):
    """If this fails, a block of long documents takes gigabytes."""
    monkeypatch.setattr("batchor_core.sources.csv.BLOCK_BYTES", 1000)
    source = source_of(tmp_path, b"a\n" + b"0123456789\n" * 1000)
    sizes = [len(block) for block in source.blocks()]
    assert sum(sizes) == 1000
    assert max(sizes) == 256


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "utf-32", "shift_jis"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_other_encodings_are_read_when_they_are_named(tmp_path, encoding, ending):
    """If this fails, files from spreadsheets and old systems cannot be read, or become garbled."""
    word = "\u30bd\u8868" if encoding == "shift_jis" else "caf\xe9 \xa3"
    text = "id,text\n" + "".join(f'{n},"{word}\n{n}"\n' for n in range(40_000))
    path = tmp_path / f"rows.csv{ending}"
    data = text.encode(encoding)
    path.write_bytes(gzip.compress(data) if ending else data)
    source = CsvItemSource(path, "id", encoding=encoding, block_rows=30_000)
    assert [row["text"] for row in dicts(source)] == [f"{word}\n{n}" for n in range(40_000)]
    *_, last = source.blocks()
    assert [key for key, _ in rows_of(source, last.position)][:1] == ["30000"]


@pytest.mark.parametrize(
    ("encoding", "content", "message"),
    [
        ("cp1252", b"a\n1\n\x81\n", r"line 3: not cp1252 \(byte 0x81\)"),
        ("ascii", b"a\n" + b"1\n" * 99_999 + b"\xe9\n", r"line 100001: not ascii \(byte 0xe9\)"),
        ("shift_jis", b"a\n\x83", r"line 2: not shift_jis \(byte 0x83\)"),
        ("utf-16", "a\nb\n".encode("utf-16") + b"x", r"line 3: not utf-16 \(byte 0x78\)"),
        ("utf-16-le", b"a\0\n\0\0\xd8b\0\n\0", r"line 2: not utf-16-le \(byte 0x00\)"),
    ],
)
def test_a_wrong_encoding_is_named_with_its_line(tmp_path, encoding, content, message):
    """If this fails, nobody finds the byte that does not fit among a million lines."""
    with pytest.raises(SourceError, match=f"^tickets.csv, {message}$"):
        dicts(source_of(tmp_path, content, encoding=encoding))


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    """If this fails, a file without line feeds fills the memory, or is cut into rows of its own."""
    for module in ("streams", "csv"):
        monkeypatch.setattr(f"batchor_core.sources.{module}.LINE_BYTES", 256)
    source = source_of(tmp_path, b"a\n" + b"x" * 300 + b",y\n")
    with pytest.raises(SourceError, match=r"^tickets.csv, line 2: longer than \d+ MiB$"):
        dicts(source)


@pytest.mark.parametrize("encoding", ["utf-9", "base64", ""])
def test_an_unknown_encoding_is_refused(tmp_path, encoding):
    """If this fails, a typing error in an encoding's name is answered by a traceback."""
    with pytest.raises(SourceError, match=f"there is no text encoding {encoding!r}"):
        source_of(tmp_path, b"a\n", encoding=encoding)


def test_the_encoding_is_part_of_the_fingerprint(tmp_path):
    """If this fails, a run goes on with the same bytes read as other text."""
    kinds = ("utf-8", "UTF8", "utf-8-sig", "latin-1", "cp1252")
    prints = [source_of(tmp_path, b"a\n1\n", encoding=each).fingerprint() for each in kinds]
    assert len(set(prints[:3])) == 1
    assert len(set(prints)) == 3


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_cut_off_compressed_file_is_refused(tmp_path, ending):
    """If this fails, the rows behind an interrupted copy are missing without a word."""
    plain = b"a\n" + b"".join(b"%d\n" % n for n in range(100_000))
    whole = gzip.compress(plain) if ending == "gz" else zstandard.compress(plain)
    path = tmp_path / f"rows.csv.{ending}"
    path.write_bytes(whole[:-9])
    with pytest.raises(SourceError, match=r"cannot read rows.csv.\w+: not a whole \w+ file"):
        dicts(CsvItemSource(path))


def test_a_remote_file_is_read_like_a_local_one():
    """If this fails, fsspec URLs do not work, or not from the middle."""
    url = "memory://sources/rows.csv"
    UPath(url).write_text("id,b\n1,x\n2,y\n")
    source = CsvItemSource(url, "id", block_rows=1)
    _, second = source.blocks()
    assert rows_of(source, second.position) == [("2", {"id": "2", "b": "y"})]


@pytest.mark.skipif(not BANKING77.exists(), reason="the Banking77 data set is not there")
def test_real_questions_are_read_as_the_standard_library_reads_them():
    """If this fails, real text with its quotes and line breaks is read wrongly."""
    with BANKING77.open(encoding="utf-8", newline="") as file:
        expected = list(csv.DictReader(file))
    source = CsvItemSource(BANKING77, block_rows=1000)
    assert dicts(source) == expected
    *_, last = source.blocks()
    assert [payload for _, payload in rows_of(source, last.position)] == expected[-len(last) :]
