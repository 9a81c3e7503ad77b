"""The two dialects of Gemini.

``responseSchema`` takes a subset of OpenAPI 3.0's schema object: no references, no null type, text
as the only values of an enum. ``responseJsonSchema`` takes a subset of JSON Schema. Source of the
rules: the descriptions of both fields in the API reference of ``GenerationConfig`` and ``Schema``,
and "Structured output", "Supported schemas". Both take ``propertyOrdering``, without which keys may
come in alphabetical order and a verdict before its reasons.
"""

from dataclasses import replace
from typing import cast

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.compiled import CompiledSchema
from batchor_core.planning.schema_compiler.emitter import emit
from batchor_core.planning.schema_compiler.nodes import Declaration, JsonObject
from batchor_core.planning.schema_compiler.rules import ARRAY_BOUNDS, Rules
from batchor_core.planning.schema_compiler.shapes import follow, rewrite_subschemas

_RANGE = frozenset({"minimum", "maximum"})

GEMINI = Rules(
    keywords={
        "string": frozenset({"minLength", "maxLength", "pattern"}),
        "integer": _RANGE,
        "number": _RANGE,
        "array": ARRAY_BOUNDS,
    },
    formats={
        # The Developer API refuses the other formats of text that OpenAPI knows.
        "string": frozenset({"date-time"}),
        "integer": frozenset({"int32", "int64"}),
        "number": frozenset({"float", "double"}),
    },
    enums=frozenset({"string"}),
)
GEMINI_JSON_SCHEMA = Rules(
    keywords={"integer": _RANGE, "number": _RANGE, "array": ARRAY_BOUNDS},
    formats={"string": frozenset({"date-time", "date", "time"})},
    enums=frozenset({"string", "integer", "number"}),
    tuples="positions",
)


def compile_gemini(declaration: Declaration, name: str) -> CompiledSchema:
    """Write the declaration as a ``responseSchema``.

    Raises:
        SchemaNotSupportedError: If that would lose something; a model that contains itself.
    """
    for reference, _ in declaration.recursive_references():
        raise SchemaNotSupportedError(
            "a model that contains itself; Gemini's responseSchema has no references: nest as "
            "many models as you need, or use responseJsonSchema, or OpenAI",
            path=reference.path,
        )
    compiled = emit(declaration, GEMINI, name)
    definitions = cast("dict[str, JsonObject]", compiled.schema.get("$defs", {}))
    return replace(compiled, schema=_openapi(compiled.schema, definitions))


def compile_gemini_json_schema(declaration: Declaration, name: str) -> CompiledSchema:
    """Write the declaration as a ``responseJsonSchema``.

    Recursive references may only be used within keys that are not required.

    Raises:
        SchemaNotSupportedError: If that would lose something.
    """
    compiled = emit(declaration, GEMINI_JSON_SCHEMA, name, _recursive_keys(declaration))
    return replace(compiled, schema=_ordered(compiled.schema))


def _recursive_keys(declaration: Declaration) -> frozenset[str]:
    paths = set()
    for reference, around in declaration.recursive_references():
        free = [each for each in around if each.has_default or each.may_be_absent]
        if not free:
            raise SchemaNotSupportedError(
                "a model that contains itself in a required field; Gemini takes that only where "
                "the field may be left out: give it a default (= None, = []), or use OpenAI",
                path=reference.path,
            )
        paths.add(free[-1].node.path)
    return frozenset(paths)


def _ordered(schema: JsonObject) -> JsonObject:
    """Add ``propertyOrdering`` to every object, at any depth."""
    written = rewrite_subschemas(schema, _ordered)
    if schema.get("type") == "object":
        written["propertyOrdering"] = list(cast("JsonObject", schema["properties"]))
    return written


def _openapi(schema: JsonObject, definitions: dict[str, JsonObject]) -> JsonObject:
    """Respell JSON Schema in OpenAPI's words, with every definition where it is used."""
    schema = {key: value for key, value in follow(schema, definitions).items() if key != "$defs"}
    written = rewrite_subschemas(schema, lambda part: _openapi(part, definitions))
    if "anyOf" in written:
        return _without_null_type(written)
    if schema["type"] == "object":
        del written["additionalProperties"]
        written["propertyOrdering"] = list(cast("JsonObject", schema["properties"]))
    written["type"] = str(schema["type"]).upper()
    return written


def _without_null_type(schema: JsonObject) -> JsonObject:
    """Say ``nullable`` instead of a variant that is null, and drop a union of one."""
    variants = cast("list[JsonObject]", schema["anyOf"])
    solid = [each for each in variants if each.get("type") != "NULL"]
    nullable: JsonObject = {} if len(solid) == len(variants) else {"nullable": True}
    if len(solid) != 1:
        return {**schema, "anyOf": solid or variants, **nullable}
    (only,) = solid
    said: JsonObject = {}
    for key, separator in (("title", None), ("description", "\n")):
        both = [str(each[key]) for each in (schema, only) if key in each]
        if both:
            said[key] = both[0] if separator is None else separator.join(dict.fromkeys(both))
    return {**said, **{key: each for key, each in only.items() if key not in said}, **nullable}
