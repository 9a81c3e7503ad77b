"""The dialects of Anthropic and Gemini, and what all dialects promise."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, create_model
from typing_extensions import TypedDict

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler import AnswerValidator, Dialect, InvalidAnswer
from batchor_core.planning.schema_compiler.source import json_schema_of
from batchor_core.simulator.draws import Draw
from batchor_core.simulator.schema_values import compile_schema as values_of
from tests.planning.dialect_grammars import conforms
from tests.planning.generated_models import Cat, Dog, Level, Sub, compiled, models_and_values

FEW = settings(max_examples=60)


class Verdict(BaseModel):
    """A judgement."""

    reasons: list[str] = Field(min_length=1, max_length=3)
    kind: Literal["good", "bad"]
    stars: Literal[1, 2, 3] | None = None
    share: float = Field(ge=0, lt=1, description="how much")
    code: str = Field(pattern="^[A-Z]+$", max_length=4)
    on: date
    place: tuple[float, float]
    part: Sub | None = Field(None, description="the part")


class Tree(BaseModel):
    """A tree that Gemini takes."""

    label: Level
    children: list["Tree"] = []
    next: Optional["Tree"] = Field(None, description="after it")


def answered(model: type[BaseModel], dialect: Dialect, answer: object) -> Any:
    """Validate an answer in the dialect's shape, which the schema must allow."""
    result = compiled(model, dialect)
    assert conforms(result.schema, answer)
    return AnswerValidator(model, result).validate(json.dumps(answer))


def test_anthropic_golden() -> None:
    """If it failed, what Anthropic is sent for an unchanged model would change unseen."""
    schema: Any = compiled(Verdict, Dialect.ANTHROPIC).schema
    point = {"item_0": {"type": "number"}, "item_1": {"type": "number"}}
    assert schema["properties"] == {
        "reasons": {
            "description": "at most 3 elements",
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
        },
        "kind": {"type": "string", "enum": ["good", "bad"]},
        "stars": {"anyOf": [{"type": "integer", "enum": [1, 2, 3]}, {"type": "null"}]},
        "share": {"description": "how much (at least 0; less than 1)", "type": "number"},
        "code": {
            "description": "matching the regular expression ^[A-Z]+$; length at most 4",
            "type": "string",
        },
        "on": {"type": "string", "format": "date"},
        "place": {
            "type": "object",
            "properties": point,
            "required": ["item_0", "item_1"],
            "additionalProperties": False,
        },
        "part": {
            "description": "the part",
            "anyOf": [{"$ref": "#/$defs/Sub"}, {"type": "null"}],
        },
    }
    assert schema["required"] == list(Verdict.model_fields)
    assert list(schema["$defs"]) == ["Sub"]


def test_gemini_golden() -> None:
    """If it failed, what Gemini is sent for an unchanged model would change unseen."""
    assert compiled(Verdict, Dialect.GEMINI).schema == {
        "title": "Verdict",
        "description": "A judgement.",
        "type": "OBJECT",
        "properties": {
            "reasons": {
                "type": "ARRAY",
                "items": {"type": "STRING"},
                "minItems": 1,
                "maxItems": 3,
            },
            "kind": {"type": "STRING", "enum": ["good", "bad"]},
            "stars": {"type": "STRING", "enum": ["1", "2", "3"], "nullable": True},
            "share": {"description": "how much (less than 1)", "type": "NUMBER", "minimum": 0},
            "code": {"type": "STRING", "pattern": "^[A-Z]+$", "maxLength": 4},
            "on": {"description": "format: date", "type": "STRING"},
            "place": {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": 2, "maxItems": 2},
            "part": {
                "title": "Sub",
                "description": "the part\nA part.",
                "type": "OBJECT",
                "properties": {"x": {"type": "INTEGER"}},
                "required": ["x"],
                "propertyOrdering": ["x"],
                "nullable": True,
            },
        },
        "required": list(Verdict.model_fields),
        "propertyOrdering": list(Verdict.model_fields),
    }


def test_gemini_json_schema_golden() -> None:
    """If it failed, what Gemini is sent for an unchanged model would change unseen."""
    schema: Any = compiled(Verdict, Dialect.GEMINI_JSON_SCHEMA).schema
    number = {"type": "number"}
    assert schema["properties"]["stars"]["anyOf"][0] == {"type": "integer", "enum": [1, 2, 3]}
    assert schema["properties"]["on"] == {"type": "string", "format": "date"}
    assert schema["properties"]["place"] == {
        "type": "array",
        "prefixItems": [number, number],
        "minItems": 2,
        "maxItems": 2,
    }
    assert schema["propertyOrdering"] == list(Verdict.model_fields)
    assert schema["$defs"]["Sub"]["propertyOrdering"] == ["x"]


def test_numbers_to_choose_from_come_back_as_numbers() -> None:
    """If it failed, every answer with a numeric choice from Gemini would be invalid."""

    class Numbers(BaseModel):
        level: Level
        stars: Literal[1, 2] | None
        sure: Literal[True]
        mixed: Literal[1, "a"]
        by_level: dict[Level, Literal[3, 4]]

    answer = {
        "level": "2",
        "stars": None,
        "sure": "true",
        "mixed": "1",
        "by_level": [{"key": "1", "value": "4"}],
    }
    expected = Numbers(level=Level.HIGH, stars=None, sure=True, mixed=1, by_level={Level.LOW: 4})
    assert answered(Numbers, Dialect.GEMINI, answer) == expected
    assert {
        (each.path, each.what)
        for each in compiled(Numbers, Dialect.GEMINI).notes
        if "asked for as text" in each.what
    } >= {
        ("stars", "a choice of type integer: asked for as text"),
        ("sure", "a choice of type boolean: asked for as text"),
    }


def test_positions_of_a_tuple_are_restored_each_in_its_way() -> None:
    """If it failed, a dict inside a tuple from Gemini's JSON Schema would be invalid."""
    model = create_model("Answer", f=(tuple[int, dict[str, int]], ...))
    answer = {"f": [1, [{"key": "a", "value": 2}]]}
    assert answered(model, Dialect.GEMINI_JSON_SCHEMA, answer).f == (1, {"a": 2})


def test_recursive_answers_from_gemini() -> None:
    """If it failed, trees could not be asked for from Gemini, or their leaves be invalid."""
    schema: Any = compiled(Tree, Dialect.GEMINI_JSON_SCHEMA).schema
    assert schema["required"] == schema["$defs"]["Tree"]["required"] == ["label"]
    answer = {"label": 1, "children": [{"label": 2}], "next": {"label": 1, "children": []}}
    tree = answered(Tree, Dialect.GEMINI_JSON_SCHEMA, answer)
    assert tree == Tree(
        label=Level.LOW, children=[Tree(label=Level.HIGH)], next=Tree(label=Level.LOW)
    )


class Bare(BaseModel):
    children: list["Bare"]


class Alias(BaseModel):
    inner: "list[Wrap]"


class Wrap(BaseModel):
    back: dict[str, Alias]


@pytest.mark.parametrize(
    ("model", "dialect", "path", "way_out"),
    [
        (Tree, Dialect.ANTHROPIC, "children[]", "name their parent"),
        (Tree, Dialect.GEMINI, "children[]", "responseJsonSchema"),
        (Bare, Dialect.GEMINI_JSON_SCHEMA, "children[]", "give it a default"),
        (Alias, Dialect.GEMINI, "inner[]", "responseJsonSchema"),
        (Alias, Dialect.ANTHROPIC, "inner[]", "name their parent"),
        (
            create_model("A", f=(Literal[1] | Annotated[str, Field(max_length=3)], ...)),
            Dialect.GEMINI,
            "f",
            "Literal tag",
        ),
        (create_model("A", f=(dict[str, Any], ...)), Dialect.GEMINI, "f{}", "declare its type"),
        (create_model("A", f=(dict[tuple[int, int], int], ...)), Dialect.OPENAI, "f", "strings"),
    ],
)
def test_refusals_name_the_field_and_a_way_out(
    model: type[BaseModel], dialect: Dialect, path: str, way_out: str
) -> None:
    """If it failed, every row would be refused by the provider, or a branch be cut off unsaid."""
    with pytest.raises(SchemaNotSupportedError, match=r"\w") as caught:
        compiled(model, dialect)
    assert caught.value.path == path
    assert way_out in str(caught.value)


def wide(nullable: int, **more: Any) -> type[BaseModel]:
    """A model with some nullable fields that have a default, and others."""
    fields: dict[str, Any] = {f"n{index}": (int | None, None) for index in range(nullable)}
    return create_model("Wide", **more, **fields)


def test_anthropic_unions_beyond_the_limit_become_optional() -> None:
    """If it failed, a model of twenty nullable fields would be refused row by row."""
    assert compiled(wide(16), Dialect.ANTHROPIC).schema["required"] == [
        f"n{index}" for index in range(16)
    ]
    model = wide(18, first=(Sub | None, Field(None, description="a part")))
    result = compiled(model, Dialect.ANTHROPIC)
    schema: Any = result.schema
    assert schema["required"] == ["first", *(f"n{index}" for index in range(15))]
    assert schema["properties"]["n16"] == {"type": "integer"}
    assert [each.path for each in result.notes if "not required" in each.what] == [
        "n15",
        "n16",
        "n17",
    ]
    answer = dict.fromkeys(schema["required"])
    assert answered(model, Dialect.ANTHROPIC, {**answer, "n17": 3}) == model(n17=3)


def test_anthropic_keys_left_out_keep_their_meaning() -> None:
    """If it failed, a key that may be left out would come back as null beyond the limit."""

    class Loose(TypedDict):
        a: NotRequired[dict[str, int]]
        b: NotRequired[int | None]

    model = wide(14, loose=(Loose, ...))
    within: Any = compiled(model, Dialect.ANTHROPIC)
    assert within.schema["$defs"]["Loose"]["required"] == ["a", "b"]
    model = create_model("Answer", __base__=required(15), loose=(Loose, ...))
    result: Any = compiled(model, Dialect.ANTHROPIC)
    assert result.schema["$defs"]["Loose"]["required"] == ["b"]
    nulls: dict[str, Any] = {f"n{each}": None for each in range(15)}
    pairs = [{"key": "k", "value": 1}]
    given = answered(model, Dialect.ANTHROPIC, {**nulls, "loose": {"a": pairs, "b": None}})
    absent = answered(model, Dialect.ANTHROPIC, {**nulls, "loose": {"b": 2}})
    assert (given.loose, absent.loose) == ({"a": {"k": 1}, "b": None}, {"b": 2})


def required(nullable: int) -> type[BaseModel]:
    """A model of nullable fields without defaults, which must be answered."""
    return create_model("Strict", **{f"n{index}": (int | None, ...) for index in range(nullable)})


@pytest.mark.parametrize(
    ("fits", "exceeds", "what"),
    [
        (wide(40), wide(41), "17 fields of more than one type"),
        (required(16), required(17), "17 fields of more than one type"),
        (
            create_model("Twice", a=(wide(20), ...), b=(required(0), ...)),
            create_model("Twice", a=(wide(21), ...), b=(list[wide(21)], ...)),  # type: ignore[misc]  # a call
            "26 optional fields",
        ),
    ],
)
def test_anthropic_limits(fits: type[BaseModel], exceeds: type[BaseModel], what: str) -> None:
    """If it failed, a batch would come back with an error for every row."""
    compiled(fits, Dialect.ANTHROPIC)
    with pytest.raises(SchemaNotSupportedError, match=what):
        compiled(exceeds, Dialect.ANTHROPIC)


def test_anthropic_counts_a_definition_as_often_as_it_is_used() -> None:
    """If it failed, a shared model could exceed the limit behind its references."""
    inner = required(6)
    fits = create_model("Outer", a=(inner, ...), b=(inner, ...))
    compiled(fits, Dialect.ANTHROPIC)
    exceeds = create_model("Outer", a=(inner, ...), b=(inner, ...), c=(inner, ...))
    with pytest.raises(SchemaNotSupportedError, match="18 fields of more than one type"):
        compiled(exceeds, Dialect.ANTHROPIC)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("root", "answer", "expected"),
    [
        (list[int], [1, 2], [1, 2]),
        (dict[str, int], [{"key": "a", "value": 1}], {"a": 1}),
        (Cat | Dog, {"kind": "cat", "lives": 9}, Cat(kind="cat", lives=9)),
        (int | None, None, None),
    ],
)
def test_roots_that_are_no_objects(
    dialect: Dialect, root: Any, answer: object, expected: object
) -> None:
    """If it failed, a list could be asked for from one provider and not from another."""
    assert answered(RootModel[root], dialect, {"value": answer}).root == expected


@pytest.mark.parametrize("dialect", Dialect)
@FEW
@given(drawn=models_and_values)
def test_nothing_is_dropped_silently(dialect: Dialect, drawn: Any) -> None:
    """If it failed, a bound that the user wrote would neither be enforced nor be said."""
    model, _ = drawn
    result = compiled(model, dialect)
    sent = json.dumps(result.schema)
    said = [each.what for each in result.notes]
    for keyword, value in _constraints(json_schema_of(model)):
        is_sent = f"{json.dumps(keyword)}: {json.dumps(value)}" in sent
        hints = [each.split(": ", 1)[1] for each in said if each.startswith(f"{keyword} moved")]
        is_said = any(str(value) in each and json.dumps(each)[1:-1] in sent for each in hints)
        assert is_sent or is_said or (keyword == "uniqueItems" and "no element twice" in sent)


def _constraints(schema: Any) -> Iterator[tuple[str, Any]]:
    """Every bound in the schema; the length of a tuple is part of its shape."""
    if isinstance(schema, list):
        for each in schema:
            yield from _constraints(each)
    elif isinstance(schema, dict):
        for keyword, each in schema.items():
            if isinstance(each, dict | list):
                yield from _constraints(each)
            elif keyword in _BOUNDS and "prefixItems" not in schema:
                yield keyword, each


_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
_BOUNDS |= {"pattern", "format", "minItems", "maxItems", "uniqueItems"}


@pytest.mark.parametrize("dialect", Dialect)
@FEW
@given(drawn=models_and_values, seed=st.integers(0, 2**32))
def test_simulated_answers_conform_and_validate(dialect: Dialect, drawn: Any, seed: int) -> None:
    """If it failed, the simulator would answer what no provider answers, and hide real faults."""
    model, _ = drawn
    result = compiled(model, dialect)
    answer = values_of(result.schema)(Draw(seed, ""))
    assert conforms(result.schema, answer)
    outcome = AnswerValidator(model, result).check(json.dumps(answer))
    if not any("moved into" in each.what for each in result.notes):
        # The simulator's words are few: two entries of a mapping may have one key.
        assert not isinstance(outcome, InvalidAnswer) or "comes twice" in outcome.message


@pytest.mark.parametrize("dialect", Dialect)
def test_bytes_are_the_same_in_every_process(dialect: Dialect) -> None:
    """If it failed, a fresh process would compute another fingerprint and pay again."""
    code = (
        "import json; from tests.planning.test_schema_dialects import *;"
        f"print(json.dumps(compiled(Verdict, Dialect({dialect.value!r})).schema))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": "."},
    )
    assert done.stdout.strip() == json.dumps(compiled(Verdict, dialect).schema)
