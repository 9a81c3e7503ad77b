"""The JSON Lines source."""

import gzip
import json

import polars as pl
import pytest

from batchor_core.errors import MissingColumnError, SourceError
from batchor_core.sources import JsonlItemSource, items_of, rows_as_dicts
from batchor_core.testing.source_suite import SourceContract


def source_of(tmp_path, content, id_column=None, **options):
    """Return the source of a file with these bytes."""
    path = tmp_path / "tickets.jsonl"
    path.write_bytes(content)
    return JsonlItemSource(path, id_column, **options)


def dicts(source):
    """Read all rows."""
    return [row for block in source.blocks() for row in rows_as_dicts(block)]


def frame_rows(source):
    """Read all rows as the frame has them."""
    return [row for block in source.blocks() for row in block.frame.rows()]


class TestContract(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = folder / "rows.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8", newline="")
        return JsonlItemSource(path, id_column, block_rows=block_rows)


class TestContractOfCompressedWindowsFile(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = folder / "rows.jsonl.gz"
        text = "\ufeff\r\n" + "\r\n \r\n".join(json.dumps(row) for row in rows)
        path.write_bytes(gzip.compress(text.encode()))
        return JsonlItemSource(path, id_column, block_rows=block_rows)


class TestContractOfAnotherEncoding(SourceContract):
    def make_source(self, rows, folder, *, id_column, block_rows):
        path = folder / "rows.jsonl"
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_bytes(text.encode("utf-32"))
        return JsonlItemSource(path, id_column, encoding="utf-32", block_rows=block_rows)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    """If this fails, a file without line feeds fills the memory, or is cut into rows of its own."""
    for module in ("streams", "jsonl"):
        monkeypatch.setattr(f"batchor_core.sources.{module}.LINE_BYTES", 256)
    source = source_of(tmp_path, b'{"a": 1}\n{"a": "' + b"x" * 300 + b'"}\n')
    with pytest.raises(SourceError, match=r"^tickets.jsonl, line 2: longer than \d+ MiB$"):
        dicts(source)


def test_a_wrong_encoding_is_named_with_its_line(tmp_path):
    """If this fails, nobody finds the byte that does not fit among a million lines."""
    content = b'{"a": 1}\n{"a": "\x81"}\n'
    with pytest.raises(SourceError, match=r"^tickets.jsonl, line 2: not cp1252 \(byte 0x81\)$"):
        dicts(source_of(tmp_path, content, encoding="cp1252"))


def test_a_cut_off_compressed_file_is_refused(tmp_path):
    """If this fails, the rows behind an interrupted copy are missing without a word."""
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 100_000)[:-9])
    with pytest.raises(SourceError, match=r"cannot read rows.jsonl.gz: not a whole gzip file"):
        dicts(JsonlItemSource(path))


def test_what_a_value_looks_like_does_not_depend_on_other_rows(tmp_path):
    """If this fails, a prompt changes with the block that its row happens to be in."""
    objects = ['{"v": 1}', '{"v": 2.5}', '{"v": true}', '{"v": "1"}', '{"v": [1, {"ü": null}]}']
    content = "\n".join([*objects, '{"v": null}', "{}"]).encode()
    expected = [("1",), ("2.5",), ("true",), ("1",), ('[1,{"ü":null}]',), (None,), (None,)]
    for block_rows in (1, 2, 100):
        source = source_of(tmp_path, content, block_rows=block_rows)
        assert frame_rows(source) == expected
        assert {block.frame.schema["v"] for block in source.blocks()} == {pl.String}


def test_functions_get_values_with_their_types(tmp_path):
    """If this fails, a prompt function sees text where the file has numbers and lists."""
    source = source_of(tmp_path, b'{"id": 7, "tags": ["a"], "n": {"x": 1.5}}\n{"id": 8}\n', "id")
    (block,) = source.blocks()
    items = list(items_of(block, 0))
    assert [item.item_id for item in items] == ["7", "8"]
    assert items[0].payload == {"id": 7, "tags": ["a"], "n": {"x": 1.5}}
    assert items[1].payload == {"id": 8, "tags": None, "n": None}
    assert list(rows_as_dicts(block.tail(1))) == [{"id": 8, "tags": None, "n": None}]


def test_integers_of_any_size_stay_exact(tmp_path):
    """If this fails, long numeric keys are rounded and collide."""
    source = source_of(tmp_path, b'{"id": 123456789012345678901234567890}\n', "id")
    (block,) = source.blocks()
    assert block.item_ids == ["123456789012345678901234567890"]
    assert block.frame.item() == block.item_ids[0]


def test_late_keys_reach_functions_but_are_no_columns(tmp_path, monkeypatch):
    """If this fails, the frames of one source differ in their columns."""
    monkeypatch.setattr("batchor_core.sources.jsonl.BLOCK_ROWS", 2)
    content = b'{"b": "1"}\n{"a": "2"}\n{"c": "3"}\n'
    source = source_of(tmp_path, content, block_rows=2)
    assert source.columns == ["b", "a"]
    assert frame_rows(source) == [("1", None), (None, "2"), (None, None)]
    assert dicts(source)[2] == {"b": None, "a": None, "c": "3"}
    named = source_of(tmp_path, content, columns=["c"], block_rows=2)
    assert frame_rows(named) == [(None,), (None,), ("3",)]


def test_only_the_line_feed_ends_a_line(tmp_path):
    """If this fails, text with a Unicode line separator breaks its row in two."""
    content = '{"v": "a\u2028b\u2029c\x85d"}\n'.encode()
    assert dicts(source_of(tmp_path, content)) == [{"v": "a\u2028b\u2029c\x85d"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n\n[1]\n', "line 3: not a JSON object: Expected `object`, got `array`"),
        (b'{"a": 1}\n"x"\n', "line 2: not a JSON object: Expected `object`, got `str`"),
        (b'{"a": 1}\n{"a": \n', "line 2: not a JSON object: Input data was truncated"),
        (b'{"a": NaN}\n', "line 1: not a JSON object: JSON is malformed: invalid"),
        (b'{"a": 1}{"a": 2}\n', "line 1: not a JSON object: JSON is malformed: trailing"),
        (b'{"a": "\xe9"}\n', "line 1: not a JSON object: Invalid UTF-8"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", "line 1: nested too deeply"),
    ],
)
def test_a_broken_line_is_refused_with_its_number(tmp_path, content, message):
    """If this fails, broken input is read wrongly, or nobody is told where it is broken."""
    with pytest.raises(SourceError) as caught:
        dicts(source_of(tmp_path, content))
    assert str(caught.value).startswith(f"tickets.jsonl, {message}")


def test_lines_are_counted_in_resumed_blocks(tmp_path):
    """If this fails, messages about long files point at the wrong line."""
    source = source_of(tmp_path, b'{"a": 1}\n\n{"a": 2}\n\n[]\n', columns=["a"], block_rows=2)
    blocks = source.blocks()
    next(blocks)
    position = next(blocks).position
    assert position == {"offset": 10, "line": 3}
    for rest in (blocks, source.blocks(position)):
        with pytest.raises(SourceError, match=r"line 5: not a JSON object"):
            list(rest)


@pytest.mark.parametrize("value", ["1.5", "true", "null", '""', "[1]", '{"x": 1}'])
def test_a_value_that_is_no_key_is_refused(tmp_path, value):
    """If this fails, items get ids that are not stable, or none."""
    source = source_of(tmp_path, b'{"id": "a"}\n\n{"id": %s}\n' % value.encode(), "id")
    with pytest.raises(SourceError, match=r"^tickets.jsonl, line 3: the id column 'id' "):
        dicts(source)


def test_an_id_that_some_rows_lack_is_refused_at_the_row(tmp_path):
    """If this fails, a row without a key gets the text of null as its key."""
    with pytest.raises(SourceError, match="line 2: the id column 'id' is null"):
        dicts(source_of(tmp_path, b'{"id": "a"}\n{"x": 1}\n', "id"))


def test_an_id_that_no_row_has_is_a_missing_column(tmp_path):
    """If this fails, a typing error in the id's name is not explained."""
    with pytest.raises(MissingColumnError, match=r"no column 'id' in tickets.jsonl; it has: x"):
        dicts(source_of(tmp_path, b'{"x": 1}\n', "id"))


def test_an_empty_file_has_no_rows_and_no_columns(tmp_path):
    """If this fails, an empty partition is an error."""
    source = source_of(tmp_path, b"\xef\xbb\xbf\n", "id")
    assert (source.columns, list(source.blocks())) == ([], [])


def test_rows_without_keys_are_refused(tmp_path):
    """If this fails, such rows vanish: a frame without columns has no height."""
    with pytest.raises(SourceError, match="its rows have no keys"):
        dicts(source_of(tmp_path, b"{}\n{}\n"))


def test_long_lines_make_small_blocks(tmp_path, monkeypatch):
    """If this fails, a block of long documents takes gigabytes."""
    monkeypatch.setattr("batchor_core.sources.jsonl.BLOCK_BYTES", 1000)
    sizes = [len(block) for block in source_of(tmp_path, b'{"a": 1}\n' * 1000).blocks()]
    assert sum(sizes) == 1000
    assert max(sizes) == 256
