"""Telling the variants of a union apart, by schemas in which every object is closed.

Only what the strict dialects share is understood: ``type``, ``enum``, ``anyOf``, ``$ref``, closed
objects whose every key is required, and arrays.
"""

from collections.abc import Mapping
from typing import cast

from batchor_core.planning.schema_compiler.nodes import JsonObject

REFERENCE_PREFIX = "#/$defs/"

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def follow(schema: JsonObject, definitions: Mapping[str, JsonObject]) -> JsonObject:
    """The schema itself, or the definition that it refers to."""
    while "$ref" in schema:
        schema = definitions[str(schema["$ref"]).removeprefix(REFERENCE_PREFIX)]
    return schema


def fits(schema: JsonObject, value: object, definitions: Mapping[str, JsonObject]) -> bool:
    """Whether the value has the schema's shape; bounds, patterns and formats are not looked at."""
    schema = follow(schema, definitions)
    if "anyOf" in schema:
        return any(fits(each, value, definitions) for each in _schemas(schema["anyOf"]))
    if not _is_of_type(value, str(schema["type"])):
        return False
    if "enum" in schema:
        return value in cast("list[object]", schema["enum"])
    if isinstance(value, dict):
        properties = _properties(schema)
        return value.keys() == properties.keys() and all(
            fits(each, value[key], definitions) for key, each in properties.items()
        )
    if isinstance(value, list):
        items = cast("JsonObject", schema["items"])
        return all(fits(items, each, definitions) for each in value)
    return True


def disjoint(  # noqa: PLR0911 - one return for each kind
    left: JsonObject,
    right: JsonObject,
    definitions: Mapping[str, JsonObject],
    seen: frozenset[tuple[int, int]] = frozenset(),
) -> bool:
    """Whether no value can have the shape of both; False where that cannot be shown."""
    left, right = follow(left, definitions), follow(right, definitions)
    pair = (id(left), id(right))
    if pair in seen:
        return False
    seen |= {pair}
    if "anyOf" in left:
        return all(disjoint(each, right, definitions, seen) for each in _schemas(left["anyOf"]))
    if "anyOf" in right:
        return disjoint(right, left, definitions, seen)
    if left["type"] != right["type"]:
        return {left["type"], right["type"]} != {"integer", "number"}
    if "enum" in left and "enum" in right:
        values = cast("list[object]", right["enum"])
        return not any(each in values for each in cast("list[object]", left["enum"]))
    if left["type"] == "object":
        mine, others = _properties(left), _properties(right)
        return mine.keys() != others.keys() or any(
            disjoint(mine[key], others[key], definitions, seen) for key in mine
        )
    return False


def _is_of_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _PYTHON_TYPES[name])


def _schemas(value: object) -> list[JsonObject]:
    return cast("list[JsonObject]", value)


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    return cast("dict[str, JsonObject]", schema["properties"])
