"""Generated values against the schemas they were asked for, judged by `jsonschema`."""

import re
from datetime import date, datetime
from datetime import time as clock_time
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchor_core.simulator.draws import Draw
from batchor_core.simulator.patterns import UnsupportedPatternError, compile_pattern
from batchor_core.simulator.schema_values import compile_schema
from batchor_core.simulator.strict_schemas import strict_violation

TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "children", "next"],
            "additionalProperties": False,
        }
    },
}


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """A strict object schema."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _numbers(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    def limits(low: int, span: int, keys: tuple[str, str], step: int | None) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": kind, keys[0]: low, keys[1]: low + span}
        return schema if step is None else {**schema, "multipleOf": step}

    return st.builds(
        limits,
        st.integers(-1_000, 1_000),
        st.integers(10, 50),
        st.tuples(
            st.sampled_from(["minimum", "exclusiveMinimum"]),
            st.sampled_from(["maximum", "exclusiveMaximum"]),
        ),
        st.sampled_from([None, 1, 2, 5]),
    )


def _strings(least: int, span: int | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": least}
    return schema if span is None else {**schema, "maxLength": least + span}


def _arrays(items: dict[str, Any], least: int, span: int | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": items, "minItems": least}
    return schema if span is None else {**schema, "maxItems": least + span}


_formats = st.sampled_from(["date-time", "date", "time", "uuid", "email"])
_leaves = st.one_of(
    _numbers("integer"),
    _numbers("number"),
    st.builds(_strings, st.integers(0, 80), st.none() | st.integers(0, 80)),
    st.sampled_from(["boolean", "null", "integer", "number", "string"]).map(
        lambda kind: {"type": kind}
    ),
    _formats.map(lambda name: {"type": "string", "format": name}),
    st.lists(st.text(max_size=8) | st.integers(), min_size=1, unique=True).map(
        lambda values: {"enum": values}
    ),
    st.integers().map(lambda value: {"const": value}),
    st.sampled_from([["string", "null"], ["integer", "null"]]).map(lambda kinds: {"type": kinds}),
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=5), inner, max_size=4).map(closed),
        st.builds(_arrays, inner, st.integers(0, 3), st.none() | st.integers(0, 3)),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=8,
)


def _valid(schema: Any, value: Any) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)


@given(
    st.dictionaries(st.text(max_size=5), _schemas, max_size=4).map(closed),
    st.integers(0, 2**64 - 1),
    st.text(max_size=100),
)
def test_answers_conform(schema: dict[str, Any], seed: int, prompt: str) -> None:
    """Broken if a client that validates answers rejected one that no fault had touched."""
    assert strict_violation("x", schema) is None
    make = compile_schema(schema)
    value = make(Draw(seed, prompt))
    _valid(schema, value)
    assert make(Draw(seed, prompt)) == value


@given(st.integers(0, 2**64 - 1))
def test_recursion_ends(seed: int) -> None:
    """Broken if a tree never ended, or was cut where it may not be."""
    assert strict_violation("x", TREE) is None
    _valid(TREE, compile_schema(TREE)(Draw(seed, "")))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"allOf": [closed({"a": {"type": "integer"}}), {"description": "x"}]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}]},
        {"type": "array"},
        {"type": "number", "minimum": 0.25, "maximum": 0.5},
        {"type": "number", "multipleOf": 0.5, "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "maximum": -7},
        {"properties": {"a": {"type": "string"}}},
    ],
)
def test_loose_schemas_conform_too(schema: dict[str, Any]) -> None:
    """Broken if schemas that only other providers or loose mode take were answered wrongly."""
    make = compile_schema(schema)
    for seed in range(50):
        _valid(schema, make(Draw(seed, "prompt")))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}-\d{4}$",
        r"^(red|green|blue)+$",
        r"^\+?[0-9\- ]{7,15}$",
        r"^[^0-9]x?y*z.$",
        r"^(?:ab){2,}\.(com|org)$",
        r"^[a-z-]$",
    ],
)
def test_patterns(pattern: str) -> None:
    """Broken if simple patterns gave strings that do not match."""
    make = compile_pattern(pattern)
    assert all(re.search(pattern, make(Draw(seed, ""))) for seed in range(50))


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"\p{L}", r"a{,2}", r"[", r"(a", r"a)", "*"])
def test_hard_patterns_fall_back(pattern: str) -> None:
    """Broken if an unusual pattern raised, or looped, instead of giving some text."""
    with pytest.raises(UnsupportedPatternError):
        compile_pattern(pattern)
    value = compile_schema({"type": "string", "pattern": pattern})(Draw(1, ""))
    assert isinstance(value, str)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "items": {}}, 'type: "object"'),
        ({**closed({}), "anyOf": []}, "anyOf"),
        ({"type": "object", "properties": {}}, "additionalProperties"),
        ({**closed({"a": {"type": "null"}}), "required": []}, "Missing 'a'"),
        (closed({"a": {"type": "object", "properties": {}}}), "additionalProperties"),
        (closed({"a": {"oneOf": [{"type": "null"}]}}), "oneOf"),
        (closed({"a": {"type": "array", "prefixItems": []}}), "prefixItems"),
        (closed({"a": {"type": "array", "items": {"allOf": []}}}), "allOf"),
        (closed({"a": {"anyOf": [{"not": {}}]}}), "not"),
        (closed({"a": {"title": "Any"}}), "'type' key"),
        (closed({"a": {"type": "array"}}), "items"),
        ({**closed({}), "$defs": {"d": {"type": "object"}}}, "additionalProperties"),
        (closed({str(number): {"type": "null"} for number in range(5001)}), "5001 properties"),
    ],
)
def test_strict_rules(schema: Any, reason: str) -> None:
    """Broken if a schema that the real API refuses were accepted in strict mode."""
    found = strict_violation("x", schema)
    assert found is not None
    assert reason in found


def test_strict_name() -> None:
    """Broken if a format's name that the real API refuses were accepted."""
    assert "name" in (strict_violation("two words", closed({})) or "")


def test_times_and_dates_parse() -> None:
    """Broken if a formatted string were no instant, day, time or UUID."""
    readers = {
        "date-time": datetime.fromisoformat,
        "date": date.fromisoformat,
        "time": clock_time.fromisoformat,
        "uuid": UUID,
    }
    for name, read in readers.items():
        make = compile_schema({"type": "string", "format": name})
        assert len({read(make(Draw(seed, ""))) for seed in range(50)}) > 10


def test_unsatisfiable_recursion_ends() -> None:
    """Broken if a schema without any finite value could hang the simulator."""
    node = {"$ref": "#/$defs/node"}
    schema = {**closed({"a": node}), "$defs": {"node": closed(dict.fromkeys("abcde", node))}}
    compile_schema(schema)(Draw(1, ""))


def test_empty_enum() -> None:
    """Broken if an enum without values failed in the middle of a batch instead of at once."""
    with pytest.raises(ValueError, match="enum"):
        compile_schema({"enum": []})
