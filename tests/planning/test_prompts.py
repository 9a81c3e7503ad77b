"""From rows to prompts."""

from types import MappingProxyType
from typing import Any

import polars as pl
import pytest

from batchor_core.errors import MissingColumnError, PromptTemplateError, SourceError
from batchor_core.model.items import BatchItem, PromptParts
from batchor_core.planning.prompts import PromptReader
from batchor_core.planning.templates import PromptTemplate


def item(payload: Any) -> BatchItem:
    """An item with a payload."""
    return BatchItem(item_id="the-item", payload=payload)


def of_frame(reader: PromptReader, **columns: Any) -> Any:
    """The prompts of a frame that begins with row 100 of the run."""
    frame = pl.DataFrame(columns)
    rows = (BatchItem(item_id=str(n), payload=row) for n, row in enumerate(frame.to_dicts()))
    return reader.of_frame(frame, lambda: rows, 100)


class TestFrames:
    def test_the_prompt_column_is_the_prompt(self) -> None:
        """Rows would be sent without what they ask."""
        assert of_frame(PromptReader(), prompt=["a", "b"]) == ["a", "b"]

    def test_a_system_prompt_column_goes_with_it(self) -> None:
        """Instructions of single rows would be dropped."""
        prompts = of_frame(PromptReader(), prompt=["a", "b"], system_prompt=["s", None])
        assert prompts == [PromptParts(prompt="a", system_prompt="s"), "b"]

    def test_a_template_fills_in_columns(self) -> None:
        """The columns would not come into the prompt."""
        reader = PromptReader(template=PromptTemplate("{a}-{b}"))
        assert of_frame(reader, a=["x"], b=[1]) == ["x-1"]

    def test_a_function_gets_each_row(self) -> None:
        """The function would not be asked."""
        reader = PromptReader(build=lambda each: f"{each.item_id}:{each.payload['a']}")
        assert of_frame(reader, a=["x", "y"]) == ["0:x", "1:y"]

    @pytest.mark.parametrize(("value", "word"), [(None, "null"), (3, "int")])
    def test_what_is_no_text_names_its_row(self, value: Any, word: str) -> None:
        """The bad row could not be found."""
        with pytest.raises(SourceError, match=f"row 100 .*{word}"):
            of_frame(PromptReader(), prompt=[value])


class TestItems:
    @pytest.mark.parametrize(
        "payload",
        ["text", PromptParts(prompt="p"), {"prompt": "text"}, MappingProxyType({"prompt": "text"})],
    )
    def test_payloads_that_are_prompts(self, payload: Any) -> None:
        """Payloads of a usual form would be refused."""
        (prompt,) = PromptReader().of_items([item(payload)], 100)
        assert prompt in ("text", PromptParts(prompt="p"))

    @pytest.mark.parametrize("payload", [None, 1, ["a"], {}, {"prompt": None}, b"x"])
    def test_other_payloads_name_their_item(self, payload: Any) -> None:
        """The bad item could not be found."""
        with pytest.raises(SourceError, match="'the-item'"):
            PromptReader().of_items([item(payload)], 100)

    def test_a_template_needs_a_mapping(self) -> None:
        """The template would be ignored for payloads that are texts."""
        reader = PromptReader(template=PromptTemplate("Say {a}"))
        assert reader.of_items([item({"a": 1})], 100) == ["Say 1"]
        with pytest.raises(SourceError, match="'the-item'"):
            reader.of_items([item("text")], 100)


class TestChecks:
    def test_a_missing_column_is_found_before_any_row(self) -> None:
        """The mistake would show after the run was recorded."""
        with pytest.raises(MissingColumnError, match="'prompt'"):
            PromptReader().check(["text"], "in.csv")
        with pytest.raises(PromptTemplateError, match="b"):
            PromptReader(template=PromptTemplate("{a}{b}")).check(["a"], "in.csv")
        PromptReader(build=lambda each: "x").check(["text"], "in.csv")
