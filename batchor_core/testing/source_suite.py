"""The contract suite that every source of items passes."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchor_core.errors import MissingColumnError, SourceError
from batchor_core.sources.protocol import (
    BLOCK_ROWS,
    CheckpointedItemSource,
    ItemBlock,
    ItemSource,
    Position,
)
from batchor_core.sources.rows import items_of

Row = Mapping[str, str]

# A NUL is refused by the CSV source, a byte order mark at the start of a file is no text, and a
# name of white space is no name; SQLite renames the columns "true" and "false" of a sub-query.
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff"), max_size=8)
_NAME = _TEXT.filter(lambda name: name.strip().casefold() not in {"", "id", "true", "false"})
_AWKWARD = st.sampled_from(["", "007", "a\nb", "a\r\nb", "\r", '"', '"",\n', "\u2028x", "ünï 🎉"])


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, str]]:
    """Draw rows of text that all have the same columns, ``id`` first."""
    names = draw(
        st.lists(
            st.sampled_from(["*", "^.*$", "{}", "a.b"]) | _NAME,
            max_size=2,
            unique_by=str.casefold,  # databases take names that differ in case for the same
        )
    )
    cells = [st.one_of(_TEXT, _AWKWARD) for _ in names]
    rows = draw(st.lists(st.tuples(*cells), min_size=1, max_size=9))
    return [
        {"id": f"key {number}", **dict(zip(names, row, strict=True))}
        for number, row in enumerate(rows)
    ]


def rows_of(source: ItemSource, position: Position | None = None) -> list[tuple[str, object]]:
    """Read the source from a position; return id and payload of each row."""
    found: list[tuple[str, object]] = []
    for block in source.blocks(position):
        found += [(item.item_id, item.payload) for item in items_of(block, len(found))]
    return found


class SourceContract:
    """Subclass it as ``Test…`` and say how a source of given rows is made.

    Attributes:
        columnar: Whether the source has columns; one of items has ids of its own.
    """

    columnar = True

    def make_source(
        self, rows: Sequence[Row], folder: Path, *, id_column: str | None, block_rows: int
    ) -> CheckpointedItemSource:
        """Return a new source of these rows; files go into ``folder``, which may be used again."""
        raise NotImplementedError

    def ids_of(self, rows: Sequence[Row], id_column: str | None) -> list[str]:
        """Return the ids that the source gives to these rows."""
        return [str(n) if id_column is None else row[id_column] for n, row in enumerate(rows)]

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
    )
    @given(rows=tables(), block_rows=st.integers(1, 4))
    def test_any_text_comes_back(self, rows: list[dict[str, str]], block_rows: int) -> None:
        """If this fails, a source alters, loses, doubles or reorders somebody's text."""
        expected = list(zip(self.ids_of(rows, "id"), rows, strict=True))
        with tempfile.TemporaryDirectory() as folder:
            source = self._source(rows, Path(folder), "id", block_rows)
            blocks = list(source.blocks())
            assert rows_of(source) == expected
            assert all(0 < len(block) <= block_rows for block in blocks)
            self._check_reopening(source, blocks, expected)

    def test_a_block_says_nothing_of_other_blocks(self, tmp_path: Path) -> None:
        """If this fails, whoever stopped within a block goes on with the wrong rows."""
        source = self._source(_numbered(5), tmp_path, "id", 3)
        block = next(iter(source.blocks()))
        size = len(block)
        rest = [(item.item_id, item.payload) for item in items_of(block.tail(size - 1), size - 1)]
        assert rest == rows_of(source)[size - 1 : size]
        assert len(block.tail(size)) == 0

    def test_without_rows_there_are_no_blocks(self, tmp_path: Path) -> None:
        """If this fails, an empty partition breaks its run or gets a row that is not there."""
        assert list(self._source([], tmp_path, None, 3).blocks()) == []

    def test_the_row_number_is_the_id_where_none_is_named(self, tmp_path: Path) -> None:
        """If this fails, rows without a key get none, or one that changes between runs."""
        source = self._source(_numbered(3), tmp_path, None, 2)
        if self.columnar:
            expected = self.ids_of(_numbered(3), None)
            assert [item_id for item_id, _ in rows_of(source)] == expected

    def test_columns_are_known_before_the_first_row(self, tmp_path: Path) -> None:
        """If this fails, a template that names a wrong column is only found out while sending."""
        source = self._source(_numbered(3), tmp_path, "id", 2)
        assert isinstance(source, CheckpointedItemSource)
        assert source.label
        assert source.columns == (["id", "text"] if self.columnar else None)
        for block in source.blocks():
            assert (block.frame is None) is not self.columnar

    def test_a_missing_id_column_is_named(self, tmp_path: Path) -> None:
        """If this fails, a typing error in a column's name is not explained."""
        if not self.columnar:
            return
        source = self._source(_numbered(1), tmp_path, "key", 2)
        with pytest.raises(MissingColumnError, match=r"no column 'key' in .*; it has: id, text$"):
            next(iter(source.blocks()))

    def test_an_empty_id_is_refused(self, tmp_path: Path) -> None:
        """If this fails, rows without a key cannot be found again in the results."""
        rows = [*_numbered(2), {"id": "", "text": "x"}]
        with pytest.raises(SourceError, match=r"(row|line) \d"):
            list(self._source(rows, tmp_path, "id", 10).blocks())

    def test_the_fingerprint_follows_the_content(self, tmp_path: Path) -> None:
        """If this fails, changed input is taken for the same, or the same for changed."""
        first = self._source(_numbered(5), tmp_path, "id", 2).fingerprint()
        assert self._source(_numbered(5), tmp_path, "id", 3).fingerprint() == first
        assert self._source(_numbered(6), tmp_path, "id", 2).fingerprint() != first
        changed = [*_numbered(4), {"id": "4", "text": "other"}]
        assert self._source(changed, tmp_path, "id", 2).fingerprint() != first

    def test_a_position_of_another_source_is_refused(self, tmp_path: Path) -> None:
        """If this fails, a run that was given other input goes on in the middle of nowhere."""
        source = self._source(_numbered(3), tmp_path, "id", 2)
        with pytest.raises(SourceError, match="not a position in this source"):
            list(source.blocks({"elsewhere": 1}))

    def test_a_position_behind_the_end_is_refused(self, tmp_path: Path) -> None:
        """If this fails, the tail of an input that has become shorter is lost silently."""
        *_, last = self._source(_numbered(40), tmp_path, "id", 2).blocks()
        assert last.position is not None
        beyond = {key: _beyond(value) for key, value in last.position.items()}
        with pytest.raises(SourceError, match=r"shorter|there is no"):
            list(self._source(_numbered(2), tmp_path, "id", 2).blocks(beyond))

    def test_a_block_has_a_bounded_number_of_rows(self, tmp_path: Path) -> None:
        """If this fails, memory grows with the input."""
        source = self._source(_numbered(BLOCK_ROWS + 1), tmp_path, "id", BLOCK_ROWS)
        sizes = [len(block) for block in source.blocks()]
        assert sum(sizes) == BLOCK_ROWS + 1
        assert max(sizes) <= BLOCK_ROWS

    def _source(
        self, rows: Sequence[Row], folder: Path, id_column: str | None, block_rows: int
    ) -> CheckpointedItemSource:
        return self.make_source(rows, folder, id_column=id_column, block_rows=block_rows)

    def _check_reopening(
        self,
        source: ItemSource,
        blocks: Sequence[ItemBlock],
        expected: Sequence[tuple[str, object]],
    ) -> None:
        row = 0
        for block in blocks:
            position = json.loads(json.dumps(block.position))
            assert rows_of(source, position) == expected[row:]
            row += len(block)


def _beyond(value: object) -> object:
    """Return what a number or a key of a position would be much further on."""
    match value:
        case int():
            return value + 9
        case str():
            return f"~{value}"
        case _:
            return value


def _numbered(count: int) -> list[dict[str, str]]:
    return [{"id": str(number), "text": f"text {number}"} for number in range(count)]
