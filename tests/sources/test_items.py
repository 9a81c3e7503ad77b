"""The source of items that exist as objects."""

import collections
import dataclasses
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


def test_an_iterator_is_read_once_and_has_no_positions():
    """If this fails, an ingestion believes it can go on where it cannot."""
    source = BatchItemSource(iter(items("a", "b", "c")), block_rows=2)
    assert not source.reopenable
    blocks = list(source.blocks())
    assert [(block.position, len(block)) for block in blocks] == [(None, 2), (None, 1)]
    with pytest.raises(SourceError, match="iterator that was read: pass a list"):
        list(source.blocks())
    with pytest.raises(SourceError, match="cannot be opened in the middle: pass a list"):
        source.blocks({"row": 1})


def test_every_kind_of_sequence_can_be_reopened():
    """If this fails, a sequence that cannot be sliced breaks its run."""
    source = BatchItemSource(collections.deque(items("a", "b", "c")), block_rows=2)
    assert rows_of(source, {"row": 2}) == [("k2", "c")]
    assert rows_of(source) == [("k0", "a"), ("k1", "b"), ("k2", "c")]


def test_an_iterator_is_never_the_same_again():
    """If this fails, a run attaches to answers for other rows."""
    source = BatchItemSource(iter(items("a")))
    assert source.fingerprint() != source.fingerprint()


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
