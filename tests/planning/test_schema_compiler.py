"""The schema compiler: OpenAI's strict dialect and the way back."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AliasPath,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NaiveDatetime,
    RootModel,
    create_model,
)

from batchor_core.errors import SchemaNotSupportedError
from tests.planning.generated_models import (
    Node,
    Sub,
    compiled,
)


def field_schema(annotation: Any, default: Any = ...) -> Any:
    """The compiled schema of one field named ``f``."""
    schema = compiled(create_model("Answer", f=(annotation, default))).schema
    return schema["properties"]["f"]  # type: ignore[index]  # JSON


OPEN_MODEL = create_model("Open", __config__=ConfigDict(extra="allow"), x=(int, ...))


def test_golden_schema() -> None:
    """If it failed, the bytes sent for an unchanged model would change, and with them the reuse."""

    class Ticket(BaseModel):
        """A support ticket."""

        title: str = Field(min_length=3, description="A short title")
        severity: Literal["low", "high"] = "low"
        score: float = Field(ge=0, le=1)
        part: Sub | None = None
        tags: set[str]

    assert compiled(Ticket, name="my ticket").name == "my_ticket"
    assert compiled(Ticket).schema == {
        "title": "Ticket",
        "description": "A support ticket.",
        "type": "object",
        "properties": {
            "title": {"description": "A short title (length at least 3)", "type": "string"},
            "severity": {
                "description": 'default: "low"',
                "type": "string",
                "enum": ["low", "high"],
            },
            "score": {"type": "number", "minimum": 0, "maximum": 1},
            "part": {"anyOf": [{"$ref": "#/$defs/Sub"}, {"type": "null"}]},
            "tags": {
                "description": "no element twice",
                "type": "array",
                "items": {"type": "string"},
            },
        },
        "required": ["title", "severity", "score", "part", "tags"],
        "additionalProperties": False,
        "$defs": {
            "Sub": {
                "title": "Sub",
                "description": "A part.",
                "type": "object",
                "properties": {"x": {"type": "integer"}},
                "required": ["x"],
                "additionalProperties": False,
            }
        },
    }
    assert [(each.path, each.what.split(":")[0]) for each in compiled(Ticket).notes] == [
        ("title", "minLength moved into the description"),
        ("severity", "has a default"),
        ("part", "has a default"),
        ("tags", "uniqueItems moved into the description"),
    ]


def test_bytes_are_the_same_in_every_process() -> None:
    """If it failed, a fresh process would compute another fingerprint and pay again."""
    code = (
        "import json; from tests.planning.test_schema_compiler import *;"
        "print(json.dumps(compiled(Node).schema))"
    )
    here = json.dumps(compiled(Node).schema)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        )
        assert done.stdout.strip() == here


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (Base64Bytes, {"type": "string", "description": "format: base64"}),
        (date, {"type": "string", "format": "date"}),
        (Literal["x"], {"type": "string", "enum": ["x"]}),
        (Literal[True], {"type": "boolean", "enum": [True]}),
        (
            Annotated[int, Field(gt=1, multiple_of=2)],
            {"type": "integer", "exclusiveMinimum": 1, "multipleOf": 2},
        ),
        (Annotated[str, Field(pattern="^a+$")], {"type": "string", "pattern": "^a+$"}),
        (
            Annotated[list[int], Field(min_length=1, max_length=2)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        ),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[float, float],
            {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        ),
        (
            Literal[1, "x", None],
            {
                "anyOf": [
                    {"type": "integer", "enum": [1]},
                    {"type": "string", "enum": ["x"]},
                    {"type": "null"},
                ]
            },
        ),
        (AnyUrl, {"type": "string", "description": "format: uri; length at least 1"}),
        (
            Annotated[Decimal, Field(ge=1, max_digits=4, decimal_places=2)],
            {
                "type": "string",
                "pattern": r"^-?\d{1,2}(\.\d{1,2})?$",
                "description": "format: decimal; at least 1",
            },
        ),
    ],
)
def test_types_and_bounds(annotation: Any, expected: dict[str, Any]) -> None:
    """If it failed, the provider would refuse the schema or not enforce what it could."""
    assert field_schema(annotation) == expected


def test_everything_said_reaches_the_description() -> None:
    """If it failed, a hint that the user wrote for the model would be lost silently."""
    schema = field_schema(
        int, Field(5, title="T", description="D", examples=[1, 2], deprecated=True)
    )
    assert schema == {
        "title": "T",
        "description": "D (default: 5; for example: 1, 2; deprecated)",
        "type": "integer",
    }


def test_described_reference_keeps_both_descriptions() -> None:
    """If it failed, ``$ref`` would have siblings, or one of the descriptions be lost."""
    schema = field_schema(Sub, Field(description="the part"))
    assert schema["description"] == "the part\nA part."
    assert schema["properties"] == {"x": {"type": "integer"}}


def test_described_recursive_reference_is_not_inlined() -> None:
    """If it failed, compiling a recursive model with a description would not end."""

    class Link(BaseModel):
        next: "list[Annotated[Link, Field(description='another')]]"

    Link.model_rebuild(_types_namespace={"Link": Link})
    schema: Any = compiled(Link).schema
    items = schema["properties"]["next"]["items"]
    assert items == {"description": "another", "anyOf": [{"$ref": "#/$defs/Link"}]}


@pytest.mark.parametrize(
    ("annotation", "path", "way_out"),
    [
        (Any, "f", "declare its type"),
        (object, "f", "declare its type"),
        (dict, "f{}", "declare its type"),
        (dict[str, Any], "f{}", "declare its type"),
        (list, "f[]", "declare its type"),
        (JsonValue, "f", "declare its type"),
        (type[int], "f", "declare its type"),
        (bytes, "f", "val_json_bytes='base64'"),
        (Callable[[int], int], "f", "no JSON form"),
        (dict[Literal[1, 2], int], "f", "Literal of no strings"),
        (dict[str, int] | list[int], "f", "Literal tag"),
        (Annotated[int, Field(validation_alias=AliasPath("p", 0))], "f", "plain alias"),
        (list[OPEN_MODEL], "f[]", "extra='ignore'"),
        (Annotated[int, Field(json_schema_extra={"not": {"const": 3}})], "f", "'not'"),
    ],
)
def test_refusals_name_the_field_and_a_way_out(annotation: Any, path: str, way_out: str) -> None:
    """If it failed, money would be spent on a schema that the provider rejects or distorts."""
    with pytest.raises(SchemaNotSupportedError, match=r"\w") as caught:
        field_schema(annotation)
    assert caught.value.path == path
    assert way_out in str(caught.value)


def test_extension_keywords_are_noted() -> None:
    """If it failed, something the user attached to a field would vanish without a trace."""
    model = create_model("A", f=(int, Field(json_schema_extra={"x-unit": "cm"})))
    assert [(each.path, each.what) for each in compiled(model).notes] == [
        ("f", "x-unit is not sent")
    ]


def test_open_model_with_typed_extras_is_refused() -> None:
    """If it failed, the keys beyond the declared ones would silently never be answered."""

    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        __pydantic_extra__: dict[str, int]
        x: int

    with pytest.raises(SchemaNotSupportedError, match="extra='allow'"):
        compiled(Open)


def test_naive_moments_are_asked_for_without_an_offset() -> None:
    """If it failed, every answer would carry the offset that the model refuses."""
    schema = field_schema(NaiveDatetime)
    assert "format" not in schema
    assert re.search(schema["pattern"], "2024-01-02T03:04:05")
    assert not re.search(schema["pattern"], "2024-01-02T03:04:05Z")


def test_classes_of_one_name_stay_apart() -> None:
    """If it failed, two models of one name would share a definition, or carry module names."""
    first = create_model("Part", a=(int, ...))
    second = create_model("Part", __module__="elsewhere", b=(str, ...))
    schema: Any = compiled(create_model("Both", f=(first, ...), g=(second, ...))).schema
    assert list(schema["$defs"]) == ["Part", "Part_2"]
    assert list(schema["$defs"]["Part_2"]["properties"]) == ["b"]


def _deep(levels: int) -> type[BaseModel]:
    model: type[BaseModel] = create_model("L0", x=(int, ...))
    for level in range(1, levels):
        model = create_model(f"L{level}", inner=(model, ...))
    return model


@pytest.mark.parametrize(
    ("fits", "exceeds", "what"),
    [
        (_deep(10), _deep(11), "levels"),
        (
            create_model("Many", **{f"f{i}": (int, ...) for i in range(5000)}),
            create_model("Many", **{f"f{i}": (int, ...) for i in range(5001)}),
            "fields",
        ),
        (
            create_model("Wide", f=(Literal[tuple(range(1000))], ...)),
            create_model("Wide", f=(Literal[tuple(range(1001))], ...)),
            "values in all choices",
        ),
        (
            create_model("Long", f=(Literal[tuple(f"{i:060}" for i in range(250))], ...)),
            create_model("Long", f=(Literal[tuple(f"{i:060}" for i in range(251))], ...)),
            "more than 250 values",
        ),
        (
            create_model("Loud", **{"f" * 119_000: (int, ...)}),
            create_model("Loud", **{"f" * 120_001: (int, ...)}),
            "characters in names",
        ),
    ],
    ids=["nesting", "fields", "values", "long choice", "characters"],
)
def test_limits(fits: type[BaseModel], exceeds: type[BaseModel], what: str) -> None:
    """If it failed, every row would be refused by the provider after the upload."""
    compiled(fits)
    with pytest.raises(SchemaNotSupportedError, match=what):
        compiled(exceeds)


def test_names_are_respelled() -> None:
    """If it failed, a generic model's name would be refused by the provider."""
    assert compiled(RootModel[list[int]]).name == "RootModel_list_int__"
    assert compiled(Sub, name="é" * 80).name == "_" * 64
