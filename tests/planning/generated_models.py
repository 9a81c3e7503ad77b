"""Generated output models, and what the compiler and the mapper promise about their instances.

Everything here is written from the documentation, not from the code under test.
"""

import enum
import json
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union, get_args, get_origin
from uuid import UUID

from hypothesis import assume
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime, TypeAdapter, create_model
from pydantic_core import to_jsonable_python

from batchor_core.planning.schema_compiler import CompiledSchema, Dialect, compile_schema
from tests.planning.dialect_grammars import check_document


class Colour(enum.Enum):
    """A textual enum."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """A numeric enum."""

    LOW = 1
    HIGH = 2


class Ratio(enum.Enum):
    """An enum of fractions."""

    HALF = 0.5
    MORE = 1.5


class Mixed(enum.Enum):
    """An enum of several types."""

    ONE = 1
    TWO = "two"


class Link(BaseModel):
    """A recursive model."""

    number: int | None
    rest: "list[Link | None]" = []
    by_name: "dict[str, Link]" = {}


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: date | None


@dataclass
class Point:
    """A dataclass."""

    x: float
    y: Decimal = Decimal(0)


def decimals(places: int, limit: int) -> st.SearchStrategy[Decimal]:
    """Decimals of at most so many places, written without an exponent."""
    return st.integers(-limit, limit).map(lambda each: Decimal(each).scaleb(-places))


Money = Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
INT64 = st.integers(-(2**63), 2**63 - 1)
CENTS = decimals(2, 10**9)
NAIVE = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001 - meant
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda each: timezone(timedelta(minutes=each)))
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=OFFSETS)  # noqa: DTZ001 - Hypothesis adds the zone
LINKS = st.recursive(
    st.builds(Link, number=st.none() | st.integers(-3, 3)),
    lambda each: st.builds(
        Link,
        number=st.none() | st.integers(-3, 3),
        rest=st.lists(st.none() | each, max_size=2),
        by_name=st.dictionaries(st.text(max_size=2), each, max_size=2),
    ),
    max_leaves=4,
)
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
    (Literal[True], st.just(True)),
    (Ratio, st.sampled_from(Ratio)),
    (Mixed, st.sampled_from(Mixed)),
    (None, st.none()),
    (NaiveDatetime, NAIVE),
    (AwareDatetime, MOMENTS),
    (Decimal, decimals(6, 10**15)),
    (Annotated[Decimal, Field(ge=-5, le=5, decimal_places=3)], decimals(3, 5000)),
    (Pair, st.builds(Pair, st.integers(-9, 9), st.none() | st.dates())),
    (Point, st.builds(Point, st.floats(-9, 9), decimals(1, 99))),
    (int | float, st.integers(-99, 99) | st.floats(-9, 9)),
    (int | str, st.integers(-99, 99) | st.text(max_size=3)),
    (date | int, st.dates() | st.integers(-99, 99)),
    (str | list[int], st.text(max_size=3) | st.lists(st.integers(-9, 9), max_size=2)),
    (Annotated[int, Field(ge=-5, lt=50)], st.integers(-5, 49)),
    (Annotated[float, Field(gt=0, le=1)], st.floats(0, 1, exclude_min=True)),
    (Annotated[str, Field(min_length=1, max_length=3)], st.text(min_size=1, max_size=3)),
    (Annotated[str, Field(pattern="^[a-z]+$")], st.from_regex("[a-z]{1,4}", fullmatch=True)),
]
KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, st.text(max_size=4)),
    (int, INT64),
    (date, st.dates()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Literal["x", "y"], st.sampled_from(["x", "y"])),
    (UUID, st.uuids()),
    (datetime, MOMENTS),
    (Money, CENTS),
]
NAMES = ["alpha", "beta", "gamma"]
Typed = tuple[Any, st.SearchStrategy[Any]]


@st.composite
def _composites(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:  # noqa: PLR0911 - one return for each kind
    kind = draw(
        st.sampled_from(
            ["optional", "list", "few", "set", "tuple", "pair", "dict", "model", "union"]
        )
    )
    annotation, values = draw(inner)
    match kind:
        case "optional":
            return Optional[annotation], st.none() | values  # noqa: UP045 - also of None
        case "list":
            return list[annotation], st.lists(values, max_size=3)
        case "few":
            few = Annotated[list[annotation], Field(min_length=1, max_length=2)]  # type: ignore[valid-type]  # drawn
            return few, st.lists(values, min_size=1, max_size=2)
        case "set":
            return set[int], st.sets(INT64, max_size=3)
        case "tuple":
            other, others = draw(inner)
            # Whether two kinds of moments or decimals are asked for alike is documented nowhere.
            assume(annotation == other or _plain_schema(annotation) != _plain_schema(other))
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


models_and_values = _records(st.recursive(st.sampled_from(LEAVES), _composites, max_leaves=4))
"""Models that every dialect can ask for, each with its instances."""

storable_models_and_values = _records(
    st.recursive(
        st.sampled_from([*LEAVES, (Link, LINKS), (bytes, st.binary(max_size=3))]),
        _composites,
        max_leaves=4,
    )
)
"""Models that can be stored, among them what only some dialects can ask for."""


def encode(annotation: Any, value: Any, dialect: Dialect) -> Any:  # noqa: PLR0911 - one return for each kind
    """The answer that a provider gives for the value under the documented rewritings."""
    annotation = _bare(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(value, BaseModel):
        return {
            name: encode(info.annotation, getattr(value, name), dialect)
            for name, info in type(value).model_fields.items()
        }
    if isinstance(value, Pair):
        return to_jsonable_python(value._asdict())
    if value is not None and _choices(annotation):
        plain = to_jsonable_python(value)
        return json.dumps(plain) if _is_asked_for_as_text(plain, dialect) else plain
    if origin is dict:
        return [
            {
                "key": encode(arguments[0], key, dialect),
                "value": encode(arguments[1], each, dialect),
            }
            for key, each in value.items()
        ]
    if origin is tuple:
        encoded = [encode(kind, each, dialect) for kind, each in zip(arguments, value, strict=True)]
        if not _is_tuple_rewritten(arguments, dialect):
            return encoded
        return {f"item_{index}": each for index, each in enumerate(encoded)}
    if origin in (list, set):
        return [encode(arguments[0], each, dialect) for each in value]
    variants = [each for each in arguments if each is not type(None)]
    if value is None or len(variants) != 1:
        return to_jsonable_python(value)
    return encode(variants[0], value, dialect)


def is_rewritten(annotation: Any, dialect: Dialect) -> bool:
    """Whether a type's answers have another shape than its own JSON."""
    annotation = _bare(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.values()
        return any(is_rewritten(info.annotation, dialect) for info in fields)
    if origin is dict or (origin is tuple and _is_tuple_rewritten(arguments, dialect)):
        return True
    if choices := _choices(annotation):
        return any(_is_asked_for_as_text(each, dialect) for each in choices)
    return any(is_rewritten(each, dialect) for each in arguments)


def _is_tuple_rewritten(arguments: tuple[Any, ...], dialect: Dialect) -> bool:
    if dialect in (Dialect.ANTHROPIC, Dialect.GEMINI_JSON_SCHEMA):
        return dialect is Dialect.ANTHROPIC
    first, second = arguments
    return _plain_schema(first) != _plain_schema(second) or is_rewritten(first, dialect)


def _plain_schema(annotation: Any) -> Any:
    return TypeAdapter(annotation).json_schema()


def _choices(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [each.value for each in annotation]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def _is_asked_for_as_text(value: object, dialect: Dialect) -> bool:
    """Gemini lists text only, in JSON Schema also numbers."""
    if dialect is Dialect.GEMINI:
        return not isinstance(value, str)
    return dialect is Dialect.GEMINI_JSON_SCHEMA and isinstance(value, bool)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def decode(annotation: Any, value: Any, parents: tuple[Any, ...] = ()) -> Any:  # noqa: PLR0911 - one return for each kind
    """What the model takes for a value that was read back from the result table."""
    annotation = _bare(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if value is None or origin is Literal:
        return value
    if annotation is Mixed or annotation in parents:
        return TypeAdapter(annotation).validate_json(value)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inside = (*parents, annotation)
        return {
            name: decode(info.annotation, value[name], inside)
            for name, info in annotation.model_fields.items()
        }
    if origin is dict:
        return {
            decode(arguments[0], key): decode(arguments[1], each, parents) for key, each in value
        }
    if origin is tuple:
        parts = value.values() if isinstance(value, dict) else value
        return [decode(kind, each, parents) for kind, each in zip(arguments, parts, strict=True)]
    if origin in (list, set):
        return [decode(arguments[0], each, parents) for each in value]
    variants = [each for each in arguments if each is not type(None)]
    if len(variants) == 1:
        return decode(variants[0], value, parents)
    if len(variants) > 1 and isinstance(value, str):
        return TypeAdapter(annotation).validate_json(value)
    if len(variants) > 1 and isinstance(value, dict):
        return decode(variants[0 if value["kind"] == "left" else 1], value, parents)
    return value


def compiled(
    source: Any, dialect: Dialect = Dialect.OPENAI, name: str | None = None
) -> CompiledSchema:
    """Compile, and check the dialect's rules by the way."""
    result = compile_schema(source, dialect, name=name)
    check_document(result.schema, dialect)
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
