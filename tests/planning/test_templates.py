"""Prompt templates."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.errors import PromptTemplateError
from batchor_core.planning.templates import PromptTemplate


@pytest.mark.parametrize(
    ("text", "expected", "columns"),
    [
        ("", "", ()),
        ("plain", "plain", ()),
        ("{a}", "A", ("a",)),
        ("{a} and {b} and {a}", "A and B and A", ("a", "b")),
        ("{{a}}", "{a}", ()),
        ("{{{a}}}", "{A}", ("a",)),
        ("{{{{a}}}}", "{{a}}", ()),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}', ()),
        ('{"k": {"v": {a}}}', '{"k": {"v": A}}', ("a",)),
        ("{{a}", "{A", ("a",)),
        ("{a.real} {a[0]} {a!r} {a:>5} {0} {} { a }", None, ()),
        ("}{a}{", "}A{", ("a",)),
        ("}} {{", None, ()),
    ],
)
def test_grammar(text: str, expected: str | None, columns: tuple[str, ...]) -> None:
    """If it failed, literal braces would be eaten, or attributes of values be reachable."""
    template = PromptTemplate(text)
    assert template.columns == columns
    assert template.render({"a": "A", "b": "B"}) == (text if expected is None else expected)


def test_values_are_not_templates() -> None:
    """If it failed, a row's text could pull other columns into the prompt."""
    assert PromptTemplate("{a}").render({"a": "{b}", "b": "secret"}) == "{b}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (7, "7"),
        (1.5, "1.5"),
        (1e20, "1e+20"),
        (True, "true"),
        ("é", "é"),
        (Decimal("1.50"), "1.50"),
        (date(2024, 1, 2), "2024-01-02"),
        (datetime(2024, 1, 2, 3), "2024-01-02 03:00:00"),  # noqa: DTZ001 - as Polars hands it out
        (["é", 1], '["é", 1]'),
        ({"d": date(2024, 1, 2)}, '{"d": "2024-01-02"}'),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    """If it failed, the same data would give other prompts, hence other answers and no reuse."""
    assert PromptTemplate("{v}").render({"v": value}) == text


def test_missing_columns_are_found_before_any_row() -> None:
    """If it failed, a misspelt column would cost a batch of useless prompts."""
    template = PromptTemplate("{a} {wrong}")
    template.check(["a", "wrong"])
    with pytest.raises(PromptTemplateError, match=r"'wrong'.*only 'a', 'b'.*\{\{wrong\}\}"):
        template.check(["a", "b"])
    with pytest.raises(PromptTemplateError, match="'wrong'"):
        template.render({"a": 1})
    with pytest.raises(PromptTemplateError, match="'wrong'"):
        template.render_frame(pl.DataFrame({"a": [1]}))


def test_binary_values_are_refused() -> None:
    """If it failed, a prompt would hold the Python spelling of bytes."""
    with pytest.raises(PromptTemplateError, match="'a' is binary"):
        PromptTemplate("{a}").render({"a": b"x"})
    with pytest.raises(PromptTemplateError, match="'a' is binary"):
        PromptTemplate("{a}").render_frame(pl.DataFrame({"a": [b"x"]}))


COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text": (pl.String, st.text(max_size=5)),
    "whole": (pl.Int64, st.integers(-(2**63), 2**63 - 1)),
    "real": (pl.Float64, st.floats()),
    "flag": (pl.Boolean, st.booleans()),
    "day": (pl.Date, st.dates(date(1900, 1, 1))),
    "list": (pl.List(pl.String), st.lists(st.text(max_size=3), max_size=2)),
    "record": (pl.Struct({"a": pl.Int64}), st.fixed_dictionaries({"a": st.integers(0, 9)})),
    "enum": (pl.Enum(["x", "y"]), st.sampled_from(["x", "y"])),
}


@given(st.data())
def test_frames_render_as_their_rows_do(data: st.DataObject) -> None:
    """If it failed, a prompt would depend on whether rows came one by one or as a frame."""
    height = data.draw(st.integers(0, 3))
    frame = pl.DataFrame(
        {
            name: pl.Series(
                data.draw(st.lists(st.none() | each, min_size=height, max_size=height)), dtype=dtype
            )
            for name, (dtype, each) in COLUMNS.items()
        }
    )
    template = PromptTemplate(" ".join(f"{name}: {{{name}}};" for name in COLUMNS))
    rendered = template.render_frame(frame)
    assert (rendered.name, rendered.dtype) == ("prompt", pl.String)
    assert rendered.to_list() == [template.render(row) for row in frame.iter_rows(named=True)]


def test_frame_without_placeholders_keeps_its_height() -> None:
    """If it failed, a constant prompt would be asked once instead of once a row."""
    assert PromptTemplate("go").render_frame(pl.DataFrame({"a": [1, 2]})).to_list() == ["go", "go"]


@given(st.text())
def test_text_without_names_in_braces_is_literal(text: str) -> None:
    """If it failed, some ordinary text could not be used as a prompt."""
    harmless = text.replace("{", "{ ")
    assert PromptTemplate(harmless).render({}) == harmless


def test_a_json_example_in_a_prompt_stays_valid_json() -> None:
    """If it failed, the commonest prompt with an example in it would be garbled."""
    example = json.dumps({"a": {"b": {"c": []}}})
    text = PromptTemplate(f"Answer like {example}: {{question}}").render({"question": "why?"})
    assert text == f"Answer like {example}: why?"
