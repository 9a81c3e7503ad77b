"""Generated output models, and what the compiler and the mapper promise about their instances.

Everything here is written from the documentation, not from the code under test.
"""

import enum
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, create_model
from pydantic_core import to_jsonable_python

from batchor_core.planning.schema_compiler import CompiledSchema, Dialect, compile_schema


class Colour(enum.Enum):
    """A textual enum."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """A numeric enum."""

    LOW = 1
    HIGH = 2


Money = Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
INT64 = st.integers(-(2**63), 2**63 - 1)
CENTS = st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents) / 100)
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis adds the zone
SPANS = st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(max_size=8)),
    (int, INT64),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (date, st.dates()),
    (datetime, MOMENTS),
    (time, st.times()),
    (timedelta, SPANS),
    (UUID, st.uuids()),
    (Money, CENTS),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["yes", "no"], st.sampled_from(["yes", "no"])),
    (Literal[1, 2], st.sampled_from([1, 2])),
]
KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(max_size=4)),
    (int, INT64),
    (date, st.dates()),
    (Colour, st.sampled_from(Colour)),
]
NAMES = ["alpha", "beta", "gamma"]
Typed = tuple[Any, st.SearchStrategy[Any]]


@st.composite
def _composites(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:  # noqa: PLR0911 - one return for each kind
    kind = draw(
        st.sampled_from(["optional", "list", "set", "tuple", "pair", "dict", "model", "union"])
    )
    annotation, values = draw(inner)
    match kind:
        case "optional":
            return annotation | None, st.none() | values
        case "list":
            return list[annotation], st.lists(values, max_size=3)
        case "set":
            return set[int], st.sets(INT64, max_size=3)
        case "tuple":
            other, others = draw(inner)
            return tuple[annotation, other], st.tuples(values, others)
        case "pair":
            return tuple[annotation, annotation], st.tuples(values, values)
        case "dict":
            key, keys = draw(st.sampled_from(KEYS))
            return dict[key, annotation], st.dictionaries(keys, values, max_size=3)
        case "model":
            return draw(_records(inner))
    left, left_values = draw(_records(inner, tag="left"))
    right, right_values = draw(_records(inner, tag="right"))
    return Union[left, right], left_values | right_values  # noqa: UP007 - built from variables


@st.composite
def _records(draw: st.DrawFn, inner: st.SearchStrategy[Typed], tag: str | None = None) -> Typed:
    chosen = {name: draw(inner) for name in draw(st.permutations(NAMES))[: draw(st.integers(1, 2))]}
    fields: dict[str, Any] = {name: (annotation, ...) for name, (annotation, _) in chosen.items()}
    values = {name: value for name, (_, value) in chosen.items()}
    if tag is not None:
        fields = {"kind": (Literal[tag], ...), **fields}
        values["kind"] = st.just(tag)
    # Unique, because the compiler may not depend on it, and readable in a failure.
    model = create_model("Tagged" if tag else "Inner", **fields)
    return model, st.builds(model, **values)


annotations = st.recursive(st.sampled_from(LEAVES), _composites, max_leaves=4)
models_and_values = _records(annotations)


def encode(annotation: Any, value: Any) -> Any:  # noqa: PLR0911 - one return for each kind
    """The answer that a provider gives for the value under the documented rewritings."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {
            name: encode(info.annotation, getattr(value, name)) for name, info in fields.items()
        }
    if value is None or origin in (None, Literal, Annotated):
        return to_jsonable_python(value)
    if origin is dict:
        return [
            {"key": to_jsonable_python(key), "value": encode(arguments[1], each)}
            for key, each in value.items()
        ]
    if origin is tuple:
        encoded = [encode(kind, each) for kind, each in zip(arguments, value, strict=True)]
        if arguments[0] == arguments[1] and not is_rewritten(arguments[0]):
            return encoded
        return {f"item_{index}": each for index, each in enumerate(encoded)}
    if origin in (list, set):
        return [encode(arguments[0], each) for each in value]
    plain = [each for each in arguments if each is not type(None)]
    return encode(plain[0], value)


def is_rewritten(annotation: Any) -> bool:
    """Whether a type's answers have another shape than its own JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return any(is_rewritten(info.annotation) for info in annotation.model_fields.values())
    if origin is Literal:
        return False
    if origin is dict or (origin is tuple and arguments[0] != arguments[1]):
        return True
    return any(map(is_rewritten, arguments))


def decode(annotation: Any, value: Any) -> Any:  # noqa: PLR0911 - one return for each kind
    """What the model takes for a value that was read back from the result table."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if value is None or origin in (Literal, Annotated):
        return value
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        return {name: decode(info.annotation, value[name]) for name, info in fields.items()}
    if origin is dict:
        return {key: decode(arguments[1], each) for key, each in value}
    if origin is tuple:
        parts = value.values() if isinstance(value, dict) else value
        return [decode(kind, each) for kind, each in zip(arguments, parts, strict=True)]
    if origin in (list, set):
        return [decode(arguments[0], each) for each in value]
    plain = [each for each in arguments if each is not type(None)]
    if len(plain) == 1:
        return decode(plain[0], value)
    if len(plain) > 1 and isinstance(value, str):
        return TypeAdapter(annotation).validate_json(value)
    if len(plain) > 1:
        return decode(plain[0 if value["kind"] == "left" else 1], value)
    return value


STRICT_KEYWORDS = {
    "string": {"enum", "pattern", "format"},
    "integer": {"enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "boolean": {"enum"},
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
STRICT_KEYWORDS["number"] = STRICT_KEYWORDS["integer"]
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def check_openai_strict(schema: dict[str, Any]) -> None:
    """Fail unless the document obeys OpenAI's rules for strict schemas."""
    assert schema["type"] == "object", "the root must be an object"
    assert "anyOf" not in schema
    definitions = schema.get("$defs", {})
    _check_strict({key: value for key, value in schema.items() if key != "$defs"}, definitions)
    for definition in definitions.values():
        _check_strict(definition, definitions)


def _check_strict(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    if "$ref" in schema:
        assert set(schema) == {"$ref"}, "a reference stands alone"
        assert schema["$ref"].removeprefix("#/$defs/") in definitions
        return
    keywords = set(schema) - {"title", "description"}
    if "anyOf" in schema:
        assert keywords == {"anyOf"}
        for each in schema["anyOf"]:
            _check_strict(each, definitions)
        return
    kind = schema["type"]
    assert keywords - {"type"} <= STRICT_KEYWORDS[kind], f"{keywords} for {kind}"
    assert schema.get("format", "uuid") in FORMATS
    if kind == "object":
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
        for each in schema["properties"].values():
            _check_strict(each, definitions)
    if kind == "array":
        _check_strict(schema["items"], definitions)


TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def conforms(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:  # noqa: PLR0911 - one return for each kind
    """Whether a provider that enforces the schema could have given this answer."""
    if "$ref" in schema:
        return conforms(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, root)
    if "anyOf" in schema:
        return any(conforms(each, value, root) for each in schema["anyOf"])
    kind = schema["type"]
    if isinstance(value, bool) != (kind == "boolean") or not isinstance(value, TYPES[kind]):
        return False
    if value not in schema.get("enum", [value]):
        return False
    if kind == "string" and not re.search(schema.get("pattern", ""), value):
        return False
    if kind == "array":
        length = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        return length and all(conforms(schema["items"], each, root) for each in value)
    if kind == "object":
        parts = schema["properties"]
        return parts.keys() == value.keys() and all(
            conforms(each, value[key], root) for key, each in parts.items()
        )
    return True


def compiled(model: type[BaseModel], **options: Any) -> CompiledSchema:
    """Compile for OpenAI and check the strict rules by the way."""
    result = compile_schema(model, Dialect.OPENAI, **options)
    check_openai_strict(result.schema)
    return result


class Sub(BaseModel):
    """A part."""

    x: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: dict[str, int]


class Node(BaseModel):
    label: str
    children: list["Node"]
    scores: dict[str, float]
    parent: Optional["Node"] = Field(None, description="where it hangs")
