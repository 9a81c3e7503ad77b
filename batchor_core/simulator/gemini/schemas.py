"""``responseSchema``, which is OpenAPI's kind of schema, as a JSON Schema."""

from collections.abc import Mapping
from typing import Any

_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
_DROPPED = frozenset({"propertyOrdering", "nullable", "example", "title", "description", "default"})
_CAMEL = {
    "any_of": "anyOf",
    "max_items": "maxItems",
    "max_length": "maxLength",
    "min_items": "minItems",
    "min_length": "minLength",
    "property_ordering": "propertyOrdering",
}


def json_schema(schema: Any) -> Any:
    """A JSON Schema of the same values.

    Types lose their upper case, ``nullable`` becomes an alternative, counts that were written as
    texts (int64) become numbers, and properties stand in the order that is asked for.
    """
    if not isinstance(schema, Mapping):
        return schema
    given = {_CAMEL.get(str(name), str(name)): value for name, value in schema.items()}
    plain = {name: _converted(name, value) for name, value in given.items() if name not in _DROPPED}
    order = given.get("propertyOrdering")
    properties = plain.get("properties")
    if isinstance(properties, dict) and isinstance(order, list):
        known = [name for name in order if name in properties]
        rest = [name for name in properties if name not in known]
        plain["properties"] = {name: properties[name] for name in (*known, *rest)}
    if given.get("nullable"):
        return {"anyOf": [plain, {"type": "null"}]} if plain else {"type": "null"}
    return plain


def _converted(name: str, value: Any) -> Any:
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in _COUNTS and isinstance(value, str) and value.isdigit():
        return int(value)
    if name == "properties" and isinstance(value, Mapping):
        return {inner: json_schema(part) for inner, part in value.items()}
    if name == "anyOf" and isinstance(value, list):
        return [json_schema(part) for part in value]
    return json_schema(value) if name == "items" else value
