"""Models that are built from a user's JSON Schema."""

import json
import re
from datetime import date
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.arrow_mapper import arrow_fields, to_arrow
from batchor_core.planning.schema_compiler import AnswerValidator, Dialect, compile_schema
from batchor_core.planning.schema_compiler.source import json_schema_of
from batchor_core.planning.schema_leaves import _FORMATS
from batchor_core.planning.schema_models import model_of
from tests.planning.generated_models import Cat, Dog, compiled, models_and_values

FORMATS = jsonschema.FormatChecker(())
OTHER_VALUES = st.sampled_from([None, True, 0, 3, -7.25, "", "zz", "2024-01-01", [], {}, [None]])


def _is_format(kind: Any) -> Any:
    adapter = TypeAdapter(kind)

    def check(value: object) -> bool:
        if isinstance(value, str):
            adapter.validate_json(json.dumps(value), strict=True)
        return True

    return check


for _name, _kind in _FORMATS.items():
    FORMATS.checks(_name, raises=ValidationError)(_is_format(_kind))


def accepts(model: type[BaseModel], value: object) -> bool:
    """Whether the model takes the JSON value."""
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError:
        return False
    return True


def record(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """An object schema."""
    return {"type": "object", "properties": properties, "required": list(required), **more}


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """The value with one place in it replaced, left out or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(list(value)))
        what = draw(st.sampled_from(["below", "below", "without", "more"]))
        if what == "without":
            return {name: each for name, each in value.items() if name != key}
        if what == "more":
            return {**value, "unheard_of": draw(OTHER_VALUES)}
        return {**value, key: draw(changed(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], draw(changed(value[index])), *value[index + 1 :]]
    return draw(OTHER_VALUES)


def _full(model: type[BaseModel]) -> str:
    return json.dumps(json_schema_of(model))


@settings(max_examples=200)
@given(data=st.data(), drawn=models_and_values)
def test_the_model_accepts_what_the_schema_accepts(data: st.DataObject, drawn: Any) -> None:
    """If it failed, an answer that the user's schema rejects would be stored, or the reverse."""
    original, values = drawn
    # JSON Schema has no word for keys that are the text of a number.
    assume(not re.search('"propertyNames": {("type": "integer"|[^}]*/Level)', _full(original)))
    schema = original.model_json_schema()
    model = model_of(schema, "Answer")
    instance = data.draw(values)
    value = to_jsonable_python(instance)
    parsed = model.model_validate_json(json.dumps(value))
    dumped = parsed.model_dump_json(by_alias=True)
    assert original.model_validate_json(dumped) == instance
    other = data.draw(changed(value))
    judge = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    assert accepts(model, other) == judge.is_valid(other)
    if "decimal" not in _full(original):  # Pydantic's schema of Decimal takes the empty text
        assert accepts(original, other) or not accepts(model, other)


@settings(max_examples=60)
@given(drawn=models_and_values)
def test_schema_and_model_are_asked_for_in_the_same_way(drawn: Any) -> None:
    """If it failed, a provider would be asked for something else than what is validated."""
    schema = drawn[0].model_json_schema()
    model = model_of(schema, "Answer")
    # The dialect without definitions: a model has others than the schema it comes from.
    asked = compile_schema(schema, Dialect.GEMINI, name="Answer")
    assert compile_schema(model, Dialect.GEMINI) == asked or asked.needs_restore
    assert compile_schema(model, Dialect.GEMINI).schema == asked.schema


def test_a_schema_is_asked_for_without_a_model() -> None:
    """If it failed, a JSON Schema could be validated but not be sent, or lose its order or name."""
    schema = record(
        {"why": {"type": "string"}, "part": {"$ref": "#/definitions/part"}},
        *("why", "part"),
        title="my answer",
        definitions={"part": record({"x": {"type": "integer"}, "b": {"type": "boolean"}}, "x")},
    )
    asked: Any = compiled(schema)
    assert asked.name == "my_answer"
    assert list(asked.schema["properties"]) == ["why", "part"]
    assert asked.schema["$defs"]["part"]["required"] == ["x", "b"]
    assert asked.restore({"why": "", "part": {"x": 1, "b": None}}) == {"why": "", "part": {"x": 1}}


def test_a_schema_written_by_hand() -> None:
    """If it failed, the usual hand-written schema would come out with other keys or in disorder."""
    schema = record(
        {
            "reason": {"type": "string", "description": "why"},
            "verdict": {"enum": ["yes", "no"]},
            "count": {"type": ["integer", "null"], "minimum": 0},
            "when": {"type": "string", "format": "date"},
            "score": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["none"]},
            "first.name": {"type": "string"},
            "json": {"type": "string"},
            "_hidden": {"const": True},
            "weights": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        *("reason", "verdict", "count", "when"),
    )
    model = model_of(schema, "Answer")
    assert list(model.model_fields) == [
        *("reason", "verdict", "count", "when", "score", "tags"),
        *("first_name", "json_", "hidden", "weights"),
    ]
    text = '{"reason": "r", "verdict": "yes", "count": 2.0, "when": "2024-01-02", "_hidden": true}'
    answer: Any = model.model_validate_json(text)
    assert (answer.count, answer.when, answer.score) == (2, date(2024, 1, 2), None)
    assert (answer.tags, answer.hidden, answer.weights) == (["none"], True, None)
    assert arrow_fields(model).names == list(model.model_fields)
    assert arrow_fields(model).field("reason").metadata == {b"description": b"why"}
    assert to_arrow([answer], model).column("count").to_pylist() == [2]
    assert answer.tags is not model.model_validate_json(text).tags  # type: ignore[attr-defined]


def test_a_key_left_out_is_not_null() -> None:
    """If it failed, null would pass for a key that may only be left out, or a dump be invalid."""
    inner = record({"x": {"type": "integer"}, "first-name": {"type": "string"}})
    model = model_of(record({"inner": inner, "n": {"type": ["null", "integer"]}}), "Answer")
    assert not accepts(model, {"inner": None})
    assert not accepts(model, {"inner": {"x": None}})
    for value in ({}, {"inner": {}}, {"inner": {"x": 1}, "n": None}):
        parsed = model.model_validate_json(json.dumps(value))
        assert json.loads(parsed.model_dump_json(by_alias=True)) == value
        assert json.loads(parsed.model_dump_json()) == value


def test_recursion() -> None:
    """If it failed, trees in a JSON Schema could not be asked for."""
    schema = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": record(
                {
                    "label": {"type": "string"},
                    "children": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/Node"},
                        "default": [],
                    },
                    "next": {"$ref": "#/$defs/Node", "description": "after it"},
                },
                "label",
            )
        },
    }
    model = model_of(schema, "Tree")
    value = {"label": "a", "children": [{"label": "b", "children": []}], "next": {"label": "c"}}
    tree: Any = model.model_validate_json(json.dumps(value))
    assert (model.__name__, tree.children[0].label, tree.next.next) == ("Tree", "b", None)
    assert not accepts(model, {"label": "a", "next": None})
    assert not accepts(model, {"label": "a", "children": [{}]})
    assert json.loads(tree.model_dump_json()) == {
        **value,
        "next": {"label": "c", "children": []},
    }
    asked = compiled(model, Dialect.GEMINI_JSON_SCHEMA)
    assert asked.name == "Tree"
    assert asked.schema["required"] == ["label"]
    restored: Any = AnswerValidator(model, asked).validate('{"label": "x", "children": []}')
    assert restored.next is None


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, [1, 1.0, -(2**70)], [1.5, True, "1", None]),
        ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}, [1, 0.5], [0, 0.3, True]),
        ({"type": "string", "pattern": "b", "maxLength": 3}, ["abc", "b"], ["", "abcb", 1]),
        ({"type": "string", "pattern": "^(?!x)"}, ["a"], ["xa"]),
        ({"type": "string", "format": "email"}, ["anything"], [None]),
        ({"type": "string", "format": "date", "maxLength": 4}, ["abcd"], ["2024-01-01"]),
        ({"type": "string", "format": "uuid"}, ["12345678-1234-5678-1234-567812345678"], ["x"]),
        ({"const": 1}, [1], [True, 2, "1"]),
        ({"enum": [True, 2, None, "x", 1.5]}, [True, 2, None, "x", 1.5], [1, False, "2"]),
        ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
        ({"type": ["string", "integer"], "minLength": 2, "minimum": 5}, ["ab", 5], ["a", 4, 6.5]),
        ({"type": "array", "uniqueItems": True, "minItems": 1}, [[1], [1, True]], [[], [2, 2]]),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "string"}, {}],
                "minItems": 2,
                "maxItems": 2,
            },
            [["a", 1]],
            [["a"], ["a", 1, 2], [1, 1]],
        ),
        (
            {"type": "object", "propertyNames": {"maxLength": 1}, "maxProperties": 1},
            [{}, {"a": 1}],
            [{"ab": 1}, {"a": 1, "b": 2}, []],
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^x": {"type": "integer"}},
                "additionalProperties": False,
            },
            [{"x1": 1}],
            [{"y": 1}, {"x": "1"}],
        ),
        (
            record({"a": {"type": "null"}}, additionalProperties=False),
            [{}, {"a": None}],
            [{"b": 1}],
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]},
            ["a", 1.5, None],
            [[], {}],
        ),
        (
            {
                "oneOf": [
                    record({"k": {"const": "a"}, "x": {"type": "integer"}}, "k", "x"),
                    record({"k": {"enum": ["b", "c"]}}, "k"),
                ]
            },
            [{"k": "a", "x": 1}, {"k": "c"}],
            [{"k": "a"}, {"k": "d"}],
        ),
        ({"allOf": [{"type": "boolean"}]}, [True], [1]),
        ({"$ref": "#/definitions/d", "definitions": {"d": {"enum": ["q"]}}}, ["q"], ["r"]),
        (record({"any": True, "also": {"description": "free"}}, "any"), [{"any": [1]}], [{}]),
    ],
)
def test_keywords(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    """If it failed, one keyword of JSON Schema would not be enforced, or wrongly."""
    model = model_of(schema, "Answer")
    judge = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    for value in good:
        assert accepts(model, value), value
        assert judge.is_valid(value) or schema.get("maxLength") == 4, value
    for value in bad:
        assert not accepts(model, value), value
        assert not judge.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "path", "way_out"),
    [
        ({"not": {"type": "null"}}, "f", "'not'"),
        ({"type": "integer", "maxLength": 3}, "f", "'maxLength'"),
        ({"type": "string", "pattern": r"\p{L}"}, "f", "regular expression"),
        ({"type": "decimal"}, "f", "JSON's types"),
        ({"$ref": "#/$defs/none"}, "f", "not defined"),
        ({"allOf": [{}, {}]}, "f", "one object"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "f", "anyOf"),
        ({"oneOf": [record({}), record({})]}, "f", "const of its own"),
        ({"enum": [[1]]}, "f", "strings or numbers"),
        ({"enum": [1], "type": "string"}, "f", "strings or numbers"),
        ({"type": "array", "items": False}, "f[]", "takes nothing"),
        ({"type": "array", "prefixItems": [{}]}, "f", "set minItems and maxItems"),
        (record({}, additionalProperties={"type": "null"}), "f", "object of their own"),
        (record({}, "a"), "f", "add it to properties"),
        ({"type": "object", "required": ["a"]}, "f", "use properties"),
        ({"type": "integer", "default": "x"}, "f", "correct it"),
        ({"$ref": "#/$defs/loop"}, "f[]", "an object with properties"),
    ],
)
def test_refusals_name_the_place(schema: dict[str, Any], path: str, way_out: str) -> None:
    """If it failed, a schema would be taken that the model does not enforce."""
    loop = {"type": "array", "items": {"$ref": "#/$defs/loop"}}
    with pytest.raises(SchemaNotSupportedError, match=r"\w") as caught:
        model_of({**record({"f": schema}), "$defs": {"loop": loop}}, "Answer")
    assert caught.value.path == path
    assert way_out in str(caught.value)


FULL = {
    **record(
        {
            "text": {"type": "string", "minLength": 1, "pattern": "x", "format": "email"},
            "number": {"type": ["number", "null"], "multipleOf": 2, "default": 4},
            "list": {"type": "array", "items": {"const": 1}, "uniqueItems": True, "maxItems": 2},
            "pair": {"type": "array", "prefixItems": [{}, True], "minItems": 2, "maxItems": 2},
            "map": {"type": "object", "propertyNames": {"maxLength": 3}, "minProperties": 1},
            "one": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}, {"enum": ["u", None]}]},
            "any": {"anyOf": [{"$ref": "#/$defs/b"}, {"allOf": [{"type": "boolean"}]}]},
        },
        "text",
        title="Full",
        description="All keywords",
        additionalProperties=False,
    ),
    "$defs": {
        "a": record({"kind": {"const": "a"}, "next": {"$ref": "#/$defs/a"}}, "kind"),
        "b": {"type": "object", "patternProperties": {"^b": {}}, "additionalProperties": False},
    },
}


@settings(max_examples=300)
@given(schema=changed(FULL).flatmap(changed).filter(lambda each: isinstance(each, dict)))
def test_what_is_no_schema_is_refused_in_words(schema: dict[str, Any]) -> None:
    """If it failed, a slip in a schema file would end in a traceback that tells nothing."""
    try:
        model = model_of(schema, "Answer")
    except SchemaNotSupportedError:
        return
    assert issubclass(model, BaseModel)
    accepts(model, {"text": "x"})


def test_unions_of_models_keep_their_tags() -> None:
    """If it failed, Pydantic's own tagged unions could not be given as JSON Schema."""
    schema = TypeAdapter(Cat | Dog).json_schema()
    model = model_of(schema, "Pet")
    assert accepts(model, {"kind": "dog", "tricks": {"sit": 1}})
    assert not accepts(model, {"kind": "cat", "tricks": {"sit": 1}})
