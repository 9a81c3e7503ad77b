"""Telling the variants of a union apart, by schemas in which every object is closed.

Only what the emitter writes is understood: ``type``, ``enum``, ``anyOf``, ``$ref``, closed objects,
and arrays with ``items`` or ``prefixItems``.
"""

from collections.abc import Callable, Mapping
from typing import cast

from batchor_core.planning.schema_compiler.nodes import JsonObject

REFERENCE_PREFIX = "#/$defs/"

_LISTS = ("anyOf", "prefixItems")

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


def subschemas(schema: JsonObject) -> list[JsonObject]:
    """The schemas directly inside, without the definitions; a reference has none."""
    found = list(cast("dict[str, JsonObject]", schema.get("properties", {})).values())
    for keyword in _LISTS:
        found += _schemas(schema.get(keyword, []))
    if "items" in schema:
        found.append(cast("JsonObject", schema["items"]))
    return found


def rewrite_subschemas(
    schema: JsonObject, rewrite: Callable[[JsonObject], JsonObject]
) -> JsonObject:
    """A copy in which each schema directly inside, definitions included, is rewritten."""
    written = dict(schema)
    for keyword in ("properties", "$defs"):
        if keyword in schema:
            parts = cast("dict[str, JsonObject]", schema[keyword])
            written[keyword] = {name: rewrite(each) for name, each in parts.items()}
    for keyword in _LISTS:
        if keyword in schema:
            written[keyword] = [rewrite(each) for each in _schemas(schema[keyword])]
    if "items" in schema:
        written["items"] = rewrite(cast("JsonObject", schema["items"]))
    return written


def fits(  # noqa: PLR0911 - one return for each kind
    schema: JsonObject, value: object, definitions: Mapping[str, JsonObject]
) -> bool:
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
        return _required(schema) <= value.keys() <= properties.keys() and all(
            fits(properties[key], each, definitions) for key, each in value.items()
        )
    if isinstance(value, list) and "prefixItems" in schema:
        positions = _schemas(schema["prefixItems"])
        return len(value) == len(positions) and all(
            fits(position, each, definitions)
            for position, each in zip(positions, value, strict=True)
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
        return any(
            key not in mine
            or key not in others
            or disjoint(mine[key], others[key], definitions, seen)
            for key in _required(left) | _required(right)
        )
    return False


def _is_of_type(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _PYTHON_TYPES[name])


def _schemas(value: object) -> list[JsonObject]:
    return cast("list[JsonObject]", value)


def _required(schema: JsonObject) -> set[str]:
    return set(cast("list[str]", schema["required"]))


def _properties(schema: JsonObject) -> dict[str, JsonObject]:
    return cast("dict[str, JsonObject]", schema["properties"])
