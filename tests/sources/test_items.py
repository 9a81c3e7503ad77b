"""The source of items that exist as objects."""

import collections
import dataclasses
import errno
import io
import os
import tempfile
import types

import pydantic
import pytest

from batchor_core.errors import SourceError
from batchor_core.model.items import BatchItem, PromptParts
from batchor_core.sources import BatchItemSource, ItemBlock, items_of, rows_as_dicts
from batchor_core.testing.source_suite import SourceContract, rows_of


def items(*payloads):
    """Return an item for each payload."""
    return [BatchItem(item_id=f"k{n}", payload=payload) for n, payload in enumerate(payloads)]


class TestContract(SourceContract):
    columnar = False

    def make_source(self, rows, folder, *, id_column, block_rows):
        return BatchItemSource(
            tuple(BatchItem(item_id=row["id"], payload=row) for row in rows), block_rows=block_rows
        )


class TestContractOfGenerator(SourceContract):
    columnar = False

    def make_source(self, rows, folder, *, id_column, block_rows):
        made = (BatchItem(item_id=row["id"], payload=row) for row in rows)
        return BatchItemSource(made, block_rows=block_rows)


def test_an_iterator_is_used_up_once_and_read_as_often_as_needed():
    """If this fails, the second reading of a generator finds no rows and says nothing."""
    given = iter(items("a", "b", "c"))
    source = BatchItemSource(given, block_rows=2)
    blocks = list(source.blocks())
    assert [(block.position, len(block)) for block in blocks] == [({"row": 0}, 2), ({"row": 2}, 1)]
    assert next(given, None) is None
    assert rows_of(source) == rows_of(BatchItemSource(items("a", "b", "c")))
    assert rows_of(source, {"row": 1}) == [("k1", "b"), ("k2", "c")]


def test_the_same_items_are_the_same_from_a_list_or_a_generator():
    """If this fails, a killed run that is given its generator anew begins again."""
    given = items("a", {"b": [1]}, PromptParts(prompt="c"))
    expected = BatchItemSource(given).fingerprint()
    assert BatchItemSource(iter(given), block_rows=2).fingerprint() == expected
    assert BatchItemSource(collections.deque(given)).fingerprint() == expected


def test_a_generator_that_fails_is_not_taken_for_a_shorter_one():
    """If this fails, the rows behind an error are left out when the run is tried again."""

    def failing():
        yield from items("a", "b")
        raise ZeroDivisionError

    source = BatchItemSource(failing(), block_rows=1)
    with pytest.raises(ZeroDivisionError):
        list(source.blocks())
    with pytest.raises(SourceError, match="a first reading of it has failed"):
        list(source.blocks())


def test_an_iterable_that_fails_can_be_read_again():
    """If this fails, a passing error of a re-iterable input ends its run for good."""

    class Flaky:
        tries = 0

        def __iter__(self):
            self.tries += 1
            yield from items("a", "b")
            if self.tries == 1:
                raise TimeoutError

    source = BatchItemSource(Flaky())
    with pytest.raises(TimeoutError):
        list(source.blocks())
    assert rows_of(source) == [("k0", "a"), ("k1", "b")]


def test_items_that_cannot_be_kept_on_disk_are_refused_with_their_rows():
    """If this fails, a generator of open files or functions fails without saying where."""
    source = BatchItemSource(iter([*items("a"), *items(lambda: 1)]), block_rows=1)
    with pytest.raises(SourceError, match=r"rows 1 to 1: a value cannot be pickled .*pass a list"):
        list(source.blocks())


def test_a_full_disk_says_which_folder_to_choose(monkeypatch):
    """If this fails, a small folder for temporary files is answered by a traceback."""

    class Full(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("batchor_core.sources.spool.tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(
        SourceError, match=r"No space left on device\): name a larger one in TMPDIR"
    ):
        list(BatchItemSource(iter(items("a"))).blocks())


def test_a_generator_leaves_nothing_on_disk(tmp_path, monkeypatch):
    """If this fails, killed processes fill the disk with copies of their input."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = BatchItemSource(iter(items(*"abc")), block_rows=1)
    blocks = source.blocks()
    next(blocks)
    assert list(tmp_path.iterdir()) == []
    assert len(list(blocks)) == 2


@pytest.mark.parametrize("kind", [list, iter])
def test_the_reserved_metadata_key_is_refused(kind):
    """If this fails, a user's own lineage is taken for that of a composite source."""
    item = BatchItem(item_id="a", payload="x", metadata={"batchor_lineage": {}})
    with pytest.raises(SourceError, match=r"row 1: the metadata key 'batchor_lineage' is reserved"):
        list(BatchItemSource(kind([*items("b"), item])).blocks())


def test_every_kind_of_sequence_can_be_reopened():
    """If this fails, a sequence that cannot be sliced breaks its run."""
    source = BatchItemSource(collections.deque(items("a", "b", "c")), block_rows=2)
    assert rows_of(source, {"row": 2}) == [("k2", "c")]
    assert rows_of(source) == [("k0", "a"), ("k1", "b"), ("k2", "c")]


def test_items_are_handed_out_as_they_are():
    """If this fails, metadata or payloads are lost on the way."""
    given = [BatchItem(item_id="a", payload=PromptParts(prompt="x"), metadata={"m": 1})]
    (block,) = BatchItemSource(given).blocks()
    assert next(iter(items_of(block, 5))) is given[0]
    with pytest.raises(ValueError, match="no columns"):
        next(rows_as_dicts(block))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("text", "row 1: a str, no BatchItem"),
        (BatchItem(item_id="", payload=1), "row 1: item_id must be text and not empty"),
        (BatchItem(item_id=7, payload=1), "row 1: item_id must be text and not empty"),
    ],
)
@pytest.mark.parametrize("kind", [list, iter])
def test_wrong_items_are_refused_with_their_row(wrong, message, kind):
    """If this fails, a wrong element fails late and obscurely."""
    source = BatchItemSource(kind([*items("a"), wrong]))
    with pytest.raises(SourceError, match=message):
        list(source.blocks())


def test_the_fingerprint_covers_id_payload_and_metadata():
    """If this fails, changed items are taken for the same."""
    first = items("a")
    changed = [
        items("b"),
        [dataclasses.replace(first[0], item_id="x")],
        [dataclasses.replace(first[0], metadata={"m": 1})],
        items(b"a"),
        items(None),
    ]
    prints = {BatchItemSource(each).fingerprint() for each in (first, *changed)}
    assert len(prints) == 6


def test_the_fingerprint_takes_what_payloads_are_made_of():
    """If this fails, usual payloads cannot be used in a run that can be continued."""

    class Ticket(pydantic.BaseModel):
        text: str

    given = items(PromptParts(prompt="x"), {"a", "b"}, types.MappingProxyType({"a": 2**80}))
    given += items(Ticket(text="x"), 2**80)
    assert BatchItemSource(given).fingerprint() == BatchItemSource(tuple(given)).fingerprint()


def test_a_payload_without_a_stable_form_is_refused():
    """If this fails, the fingerprint holds a memory address and changes with every start."""
    with pytest.raises(SourceError, match="objects of type object"):
        BatchItemSource(items(object())).fingerprint()


def test_the_tail_of_a_block_keeps_all_its_parts_aligned():
    """If this fails, ids or partitions belong to other rows after a resumed block."""
    block = ItemBlock(
        position={"row": 4}, items=items("a", "b"), item_ids=["x", "y"], partitions=[0, 1]
    )
    rest = block.tail(1)
    assert (rest.position, rest.item_ids, rest.partitions) == ({"row": 4}, ["y"], [1])
    assert rows_of(BatchItemSource(rest.items)) == [("k1", "b")]
    assert block.tail(0) is block
