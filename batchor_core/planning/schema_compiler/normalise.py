"""From JSON Schema to nodes: one spelling for each thing, and a refusal for what no dialect has.

Every keyword is either understood, kept as a hint, or refused; none is skipped.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict, cast

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.nodes import (
    AnyOf,
    Choice,
    Declaration,
    JsonObject,
    ListOf,
    MapOf,
    Node,
    Property,
    Record,
    Reference,
    Scalar,
    ScalarType,
    ScalarValue,
    TupleOf,
)
from batchor_core.planning.schema_compiler.source import HAS_DEFAULT, UNSUPPORTED

_SAID = {"title", "description", "default", "examples", "deprecated", "writeOnly", "readOnly"}
_WITHOUT_MEANING = {
    "contentMediaType",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "discriminator",
    HAS_DEFAULT,
}
_NUMBER_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
# In the order in which they are sent and said. Text has number bounds where it spells a Decimal.
_BOUNDS: dict[str, tuple[str, ...]] = {
    "string": (
        *("format", "pattern", "minLength", "maxLength"),
        *_NUMBER_BOUNDS,
        *("contentEncoding", "contentSchema"),
    ),
    "integer": (*_NUMBER_BOUNDS, "format"),
    "number": (*_NUMBER_BOUNDS, "format"),
    "boolean": (),
    "null": (),
}


def normalise(schema: Mapping[str, object]) -> Declaration:
    """Read a whole JSON Schema document.

    Raises:
        SchemaNotSupportedError: With the path of the field and a way out.
    """
    reader = _Reader(definitions_of(schema))
    root = reader.read(dict(schema), "")
    return Declaration(root=root, definitions=reader.definitions, ignored=tuple(reader.ignored))


def definitions_of(schema: Mapping[str, object]) -> dict[str, JsonObject]:
    """What references of a document may name, by the reference."""
    return {
        f"#/{keyword}/{name}": each
        for keyword in ("$defs", "definitions")
        for name, each in cast("dict[str, JsonObject]", schema.get(keyword, {})).items()
    }


class _Reader:
    """Reads nodes and collects the definitions in the order in which they are first referred to."""

    def __init__(self, sources: Mapping[str, JsonObject]) -> None:
        self._sources = sources
        self._names: dict[str, str] = {}
        self.definitions: dict[str, Node] = {}
        self.ignored: list[tuple[str, str]] = []

    def read(self, schema: object, path: str) -> Node:
        """Read one schema; `path` is where its value stands in the answer."""
        if not isinstance(schema, dict):
            raise _untyped(path)
        if UNSUPPORTED in schema:
            raise SchemaNotSupportedError(str(schema[UNSUPPORTED]), path=path)
        for keyword, read in (
            ("$ref", self._reference),
            ("anyOf", self._any_of),
            ("oneOf", self._any_of),
            ("allOf", self._any_of),
            ("enum", self._choice),
            ("const", self._choice),
        ):
            if keyword in schema:
                return read(schema, path)
        return self._typed(schema, path)

    def _typed(self, schema: JsonObject, path: str) -> Node:
        kind = schema.get("type")
        if isinstance(kind, list):
            return self._several_types(schema, kind, path)
        if kind is None and "properties" not in schema:
            raise _untyped(path)
        if kind == "array":
            return self._array(schema, path)
        if kind in (None, "object"):
            return self._object(schema, path)
        if kind not in _BOUNDS:
            raise SchemaNotSupportedError(f"type {kind!r} is not JSON", path=path)
        if str(schema.get("format")) == "binary":
            raise SchemaNotSupportedError(
                "raw bytes have no JSON form; use str, or Base64Bytes, or set "
                "val_json_bytes='base64' in the model's config",
                path=path,
            )
        bounds = _BOUNDS[str(kind)]
        self._check_keywords(schema, {"type", *bounds}, path)
        constraints = {key: schema[key] for key in bounds if key in schema}
        return Scalar(
            path=path, type=cast("ScalarType", kind), constraints=constraints, **_said(schema)
        )

    def _reference(self, schema: JsonObject, path: str) -> Node:
        self._check_keywords(schema, {"$ref"}, path)
        key = str(schema["$ref"])
        if key not in self._sources:
            raise SchemaNotSupportedError(
                f"the reference {key!r} is not defined under '$defs'", path=path
            )
        if key not in self._names:
            name = _definition_name(key, self._sources[key], set(self._names.values()))
            self._names[key] = name
            # Reserved before it is read, so that recursion ends and the order is that of use.
            self.definitions[name] = Reference(path=path, name=name)
            self.definitions[name] = self.read(self._sources[key], path)
        return Reference(path=path, name=self._names[key], **_said(schema))

    def _any_of(self, schema: JsonObject, path: str) -> Node:
        keyword = next(each for each in ("anyOf", "oneOf", "allOf") if each in schema)
        self._check_keywords(schema, {keyword}, path)
        variants = cast("list[object]", schema[keyword])
        if len(variants) == 1:
            return said_also(self.read(variants[0], path), Node(path=path, **_said(schema)))
        if keyword == "allOf":
            raise SchemaNotSupportedError("an intersection (allOf); declare one model", path=path)
        return AnyOf(
            path=path, variants=tuple(self.read(each, path) for each in variants), **_said(schema)
        )

    def _several_types(self, schema: JsonObject, kinds: list[object], path: str) -> Node:
        said = {key: value for key, value in schema.items() if key in _SAID}
        rest = {key: value for key, value in schema.items() if key not in _SAID}
        variants = [{**_for_type(rest, str(kind)), "type": kind} for kind in kinds]
        return self._any_of({**said, "anyOf": variants}, path)

    def _choice(self, schema: JsonObject, path: str) -> Node:
        self._check_keywords(schema, {"enum", "const", "type"}, path)
        values = cast("list[object]", schema["enum"] if "enum" in schema else [schema["const"]])
        groups: dict[ScalarType, list[ScalarValue]] = {}
        for value in values:
            groups.setdefault(_type_of(value, path), []).append(cast("ScalarValue", value))
        if "integer" in groups and "number" in groups:
            groups["number"] += groups.pop("integer")
        variants = [_values_node(kind, each, path) for kind, each in groups.items()]
        if len(variants) > 1:
            return AnyOf(path=path, variants=tuple(variants), **_said(schema))
        kind, same = next(iter(groups.items()))
        if kind == "null":
            return Scalar(path=path, type="null", **_said(schema))
        return Choice(path=path, type=kind, values=tuple(same), **_said(schema))

    def _array(self, schema: JsonObject, path: str) -> Node:
        if "prefixItems" in schema:
            return self._tuple(schema, path)
        self._check_keywords(schema, {"type", "items", "minItems", "maxItems", "uniqueItems"}, path)
        if schema.get("maxItems") == 0:
            raise SchemaNotSupportedError("an always empty array tells nothing", path=path)
        return ListOf(
            path=path,
            items=self.read(schema.get("items"), f"{path}[]"),
            min_items=cast("int | None", schema.get("minItems")),
            max_items=cast("int | None", schema.get("maxItems")),
            unique=bool(schema.get("uniqueItems")),
            **_said(schema),
        )

    def _tuple(self, schema: JsonObject, path: str) -> Node:
        self._check_keywords(schema, {"type", "prefixItems", "items", "minItems", "maxItems"}, path)
        positions = cast("list[object]", schema["prefixItems"])
        if schema.get("items") or schema.get("maxItems") != len(positions):
            raise SchemaNotSupportedError(
                "a tuple with a fixed start and a free rest; use a model with one field for the "
                "start and a list for the rest",
                path=path,
            )
        items = tuple(self.read(each, f"{path}[{i}]") for i, each in enumerate(positions))
        return TupleOf(path=path, items=items, **_said(schema))

    def _object(self, schema: JsonObject, path: str) -> Node:
        free = schema.get("additionalProperties", False) or schema.get("patternProperties")
        if "properties" not in schema:
            return self._map(schema, path)
        if free:
            raise SchemaNotSupportedError(
                "a model that takes extra keys (extra='allow') cannot be asked for; use "
                "extra='ignore' or 'forbid', or a field of type dict[str, …] for the free part",
                path=path,
            )
        self._check_keywords(
            schema, {"type", "properties", "required", "additionalProperties"}, path
        )
        required = cast("list[str]", schema.get("required", []))
        properties = cast("JsonObject", schema["properties"])
        return Record(
            path=path,
            properties=tuple(
                self._property(name, each, _below(path, name), required=name in required)
                for name, each in properties.items()
            ),
            **_said(schema),
        )

    def _property(self, name: str, schema: object, path: str, *, required: bool) -> Property:
        has_default = isinstance(schema, dict) and not {"default", HAS_DEFAULT}.isdisjoint(schema)
        return Property(
            name=name,
            node=self.read(schema, path),
            has_default=has_default,
            default_is_null=isinstance(schema, dict) and schema.get("default", "") is None,
            may_be_absent=not required and not has_default,
        )

    def _map(self, schema: JsonObject, path: str) -> Node:
        self._check_keywords(
            schema,
            {"type", "additionalProperties", "patternProperties", "propertyNames"}
            | {"minProperties", "maxProperties"},
            path,
        )
        key, value = _key_and_value(schema, path)
        return MapOf(
            path=path,
            key=self.read(key, f"{path}{{key}}"),
            value=self.read(value, f"{path}{{}}"),
            min_items=cast("int | None", schema.get("minProperties")),
            max_items=cast("int | None", schema.get("maxProperties")),
            **_said(schema),
        )

    def _check_keywords(self, schema: JsonObject, understood: set[str], path: str) -> None:
        for keyword in schema.keys() - understood - _SAID - _WITHOUT_MEANING:
            if not keyword.startswith("x-"):
                raise SchemaNotSupportedError(
                    f"the JSON Schema keyword {keyword!r} cannot be used here; leave it to a "
                    "validator of the model and say it in the description",
                    path=path,
                )
            self.ignored.append((path, keyword))


def said_also(node: Node, outer: Node) -> Node:
    """The node with what is said about the place that it stands in, losing neither."""
    descriptions = [each for each in (outer.description, node.description) if each]
    return replace(
        node,
        title=outer.title or node.title,
        description="\n".join(dict.fromkeys(descriptions)) or None,
        hints=tuple(dict.fromkeys((*outer.hints, *node.hints))),
    )


def without_null(node: Node) -> Node:
    """The node where it takes no null; the same node if it takes none anyway."""
    if not isinstance(node, AnyOf):
        return node
    solid = [each for each in node.variants if not _is_null(each)]
    if not solid or len(solid) == len(node.variants):
        return node
    return said_also(solid[0], node) if len(solid) == 1 else replace(node, variants=tuple(solid))


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.type == "null"


class _Said(TypedDict):
    title: str | None
    description: str | None
    hints: tuple[str, ...]


def _said(schema: JsonObject) -> _Said:
    hints = []
    if schema.get("default") is not None:
        hints.append(f"default: {_json(schema['default'])}")
    if schema.get("examples"):
        examples = cast("list[object]", schema["examples"])
        hints.append(f"for example: {', '.join(map(_json, examples))}")
    if schema.get("deprecated"):
        hints.append("deprecated")
    return _Said(
        title=cast("str | None", schema.get("title")),
        description=cast("str | None", schema.get("description")),
        hints=tuple(hints),
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _untyped(path: str) -> SchemaNotSupportedError:
    return SchemaNotSupportedError(
        "a value of any type (Any, object, JsonValue or a bare dict or list) cannot be asked for; "
        "declare its type, or use str and ask for JSON text in the description",
        path=path,
    )


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type_of(value: object, path: str) -> ScalarType:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    raise SchemaNotSupportedError(
        "a choice whose values are no JSON scalars; use strings or numbers", path=path
    )


def _values_node(kind: ScalarType, values: list[ScalarValue], path: str) -> Node:
    if kind == "null":
        return Scalar(path=path, type="null")
    return Choice(path=path, type=kind, values=tuple(values))


def _for_type(schema: JsonObject, kind: str) -> JsonObject:
    """The keywords that apply to one of several types; by JSON Schema the others do not."""
    if kind not in _BOUNDS:
        return schema
    return {key: value for key, value in schema.items() if key in _BOUNDS[kind]}


def _key_and_value(schema: JsonObject, path: str) -> tuple[object, object]:
    patterns = cast("JsonObject", schema.get("patternProperties", {}))
    if len(patterns) > 1 or (patterns and schema.get("additionalProperties")):
        raise SchemaNotSupportedError(
            "keys of several patterns; use one dict field for each", path=path
        )
    key = {"type": "string", **cast("JsonObject", schema.get("propertyNames") or {})}
    if "$ref" in key or "anyOf" in key or "enum" in key or "const" in key:
        key.pop("type")
    for pattern, value in patterns.items():
        return {**key, "pattern": pattern}, value
    return key, schema.get("additionalProperties")


def _definition_name(key: str, source: JsonObject, taken: set[str]) -> str:
    """A name that does not depend on the module: Pydantic adds it where two classes clash."""
    name = key.rsplit("/", 1)[-1].rsplit("__", 1)[-1]
    title = str(source.get("title") or name)
    base = re.sub(r"[^A-Za-z0-9_-]", "_", title)[:60] or "Definition"
    unique, number = base, 1
    while unique in taken:
        number += 1
        unique = f"{base}_{number}"
    return unique
