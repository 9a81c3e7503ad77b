"""What each dialect documents, to judge compiled schemas and answers by.

Everything here is written from the documentation, not from the code under test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema

from batchor_core.planning.schema_compiler import Dialect

RANGE = {"minimum", "maximum"}
BOUNDS = RANGE | {"exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
LENGTHS = {"minItems", "maxItems"}
CLOSED = {"properties", "required", "additionalProperties"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """One dialect.

    Attributes:
        keywords: What may stand beside the type, besides title, description, format and enum.
        formats: The formats of text.
        enums: The types that may have an enum.
        references: Whether there are definitions.
        all_required: Whether every key must be required.
    """

    keywords: Mapping[str, set[str]]
    formats: set[str]
    enums: set[str] = field(default_factory=lambda: {"string", "integer", "number", "boolean"})
    references: bool = True
    all_required: bool = False


GRAMMARS = {
    Dialect.OPENAI: Grammar(
        keywords={
            "string": {"pattern"},
            "integer": BOUNDS,
            "number": BOUNDS,
            "array": {"items"} | LENGTHS,
            "object": CLOSED,
        },
        formats=FORMATS,
        all_required=True,
    ),
    Dialect.ANTHROPIC: Grammar(
        keywords={"array": {"items", "minItems"}, "object": CLOSED},
        formats=FORMATS | {"uri"},
    ),
    Dialect.GEMINI: Grammar(
        keywords={
            "string": {"pattern", "minLength", "maxLength"},
            "integer": RANGE,
            "number": RANGE,
            "array": {"items"} | LENGTHS,
            "object": {"properties", "required", "propertyOrdering"},
        },
        formats={"date-time"},
        enums={"string"},
        references=False,
    ),
    Dialect.GEMINI_JSON_SCHEMA: Grammar(
        keywords={
            "integer": RANGE,
            "number": RANGE,
            "array": {"items", "prefixItems"} | LENGTHS,
            "object": CLOSED | {"propertyOrdering"},
        },
        formats={"date-time", "date", "time"},
        enums={"string", "integer", "number"},
    ),
}


def check_document(document: dict[str, Any], dialect: Dialect) -> None:
    """Fail unless the document obeys the dialect's documented rules."""
    grammar = GRAMMARS[dialect]
    assert str(document["type"]).lower() == "object", "the root must be an object"
    assert "anyOf" not in document
    definitions = document.get("$defs", {})
    assert grammar.references or not definitions
    for part in ({**document, "$defs": None}, *definitions.values()):
        _check({key: each for key, each in part.items() if key != "$defs"}, dialect, definitions)
    if dialect is not Dialect.GEMINI:
        jsonschema.Draft202012Validator.check_schema(document)


def _check(schema: dict[str, Any], dialect: Dialect, definitions: dict[str, Any]) -> None:
    if "$ref" in schema:
        assert set(schema) == {"$ref"}, "a reference stands alone"
        assert schema["$ref"].removeprefix("#/$defs/") in definitions
        return
    keywords = set(schema) - {"title", "description"}
    if dialect is Dialect.GEMINI:
        assert schema.get("nullable", True) is True
        keywords -= {"nullable"}
    if "anyOf" in schema:
        assert keywords == {"anyOf"}
    else:
        _check_typed(schema, keywords - {"type"}, dialect)
    parts = list(schema.get("properties", {}).values())
    parts += schema.get("anyOf", []) + schema.get("prefixItems", [])
    for part in [*parts, *([schema["items"]] if "items" in schema else [])]:
        _check(part, dialect, definitions)


def _check_typed(schema: dict[str, Any], keywords: set[str], dialect: Dialect) -> None:
    grammar = GRAMMARS[dialect]
    kind = schema["type"]
    assert kind == (kind.upper() if dialect is Dialect.GEMINI else kind.lower())
    kind = kind.lower()
    known = grammar.keywords.get(kind, set())
    known = known | ({"format"} if kind == "string" else set())
    known = known | ({"enum"} if kind in grammar.enums else set())
    assert keywords <= known, f"{keywords - known} for {kind}"
    assert schema.get("format") in {None, *grammar.formats}
    if kind == "object":
        _check_object(schema, dialect)
    if kind == "array":
        assert ("items" in schema) != ("prefixItems" in schema)
        assert dialect is not Dialect.ANTHROPIC or schema.get("minItems", 0) in (0, 1)


def _check_object(schema: dict[str, Any], dialect: Dialect) -> None:
    names = list(schema["properties"])
    assert schema.get("additionalProperties", False) is False
    assert set(schema["required"]) <= set(names)
    if GRAMMARS[dialect].all_required:
        assert schema["required"] == names
    if "propertyOrdering" in GRAMMARS[dialect].keywords["object"]:
        assert schema["propertyOrdering"] == names


def conforms(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a provider that enforces the schema could have given this answer."""
    validator = jsonschema.Draft202012Validator(_as_json_schema(schema))
    return bool(validator.is_valid(value))


def _as_json_schema(schema: Any) -> Any:
    """Gemini's OpenAPI in JSON Schema's words; anything else as it is."""
    if isinstance(schema, list):
        return [_as_json_schema(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    written = {key: _as_json_schema(each) for key, each in schema.items()}
    if isinstance(schema.get("type"), str):
        written["type"] = schema["type"].lower()
        if schema["type"] == "OBJECT":
            written["additionalProperties"] = False
    if written.pop("nullable", False):
        return {"anyOf": [written, {"type": "null"}]}
    return written
