"""What OpenAI accepts of one schema, in numbers.

Source: OpenAI's guide to structured outputs, "Supported schemas" (facts/providers 2).
"""

import re
from collections.abc import Iterator
from typing import cast

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.nodes import JsonObject
from batchor_core.planning.schema_compiler.shapes import REFERENCE_PREFIX, subschemas

MAX_PROPERTIES = 5_000
MAX_NESTING = 10
MAX_ENUM_VALUES = 1_000
MAX_NAME_AND_ENUM_CHARS = 120_000
LONG_ENUM_VALUES, MAX_LONG_ENUM_CHARS = 250, 15_000
MAX_NAME_CHARS = 64


def schema_name(name: str) -> str:
    """Spell a name as the provider takes it: ``[A-Za-z0-9_-]``, at most 64 characters."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME_CHARS] or "output"


def check_openai_limits(schema: JsonObject) -> None:
    """Refuse a schema that OpenAI would refuse for its size, row by row and after the upload.

    Nesting counts objects inside objects; a recursive reference is not followed twice.

    Raises:
        SchemaNotSupportedError: With the limit and what the schema has.
    """
    properties = enum_values = chars = 0
    for each in _every_schema(schema):
        names = cast("JsonObject", each.get("properties", {}))
        definitions = cast("JsonObject", each.get("$defs", {}))
        values = cast("list[object]", each.get("enum", []))
        properties += len(names)
        enum_values += len(values)
        value_chars = sum(len(value) for value in values if isinstance(value, str))
        chars += value_chars + sum(map(len, names)) + sum(map(len, definitions))
        if len(values) > LONG_ENUM_VALUES:
            what = f"characters in a choice of more than {LONG_ENUM_VALUES} values"
            _refuse_beyond(MAX_LONG_ENUM_CHARS, value_chars, what)
    _refuse_beyond(MAX_PROPERTIES, properties, "fields")
    _refuse_beyond(MAX_ENUM_VALUES, enum_values, "values in all choices together")
    _refuse_beyond(MAX_NAME_AND_ENUM_CHARS, chars, "characters in names and choices")
    _refuse_beyond(MAX_NESTING, _nesting(schema, schema, frozenset()), "levels of nested objects")


def _refuse_beyond(limit: int, found: int, what: str) -> None:
    if found > limit:
        raise SchemaNotSupportedError(
            f"the model has {found:,} {what}; OpenAI takes at most {limit:,}: "
            "use a smaller model, or ask in two passes"
        )


def _every_schema(schema: JsonObject) -> Iterator[JsonObject]:
    yield schema
    for child in subschemas(schema):
        yield from _every_schema(child)
    for definition in cast("dict[str, JsonObject]", schema.get("$defs", {})).values():
        yield from _every_schema(definition)


def _nesting(schema: JsonObject, root: JsonObject, entered: frozenset[str]) -> int:
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(REFERENCE_PREFIX)
        if name in entered:
            return 0
        definitions = cast("dict[str, JsonObject]", root["$defs"])
        return _nesting(definitions[name], root, entered | {name})
    below = max((_nesting(each, root, entered) for each in subschemas(schema)), default=0)
    return below + (1 if schema.get("type") == "object" else 0)
