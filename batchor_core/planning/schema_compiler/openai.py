"""The dialect of OpenAI's strict structured outputs.

Source of the rules: OpenAI's guide to structured outputs, "Supported schemas". Every object is
closed and every key required; ``$ref`` stands alone; bounds of strings are not known. What the
dialect lacks is rewritten so that it can be reversed, or said in the description, and noted.
"""

import json
import re

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler import restore as restoring
from batchor_core.planning.schema_compiler.compiled import CompiledSchema, SchemaNote
from batchor_core.planning.schema_compiler.limits import check_openai_limits, schema_name
from batchor_core.planning.schema_compiler.nodes import (
    AnyOf,
    Choice,
    Declaration,
    JsonObject,
    ListOf,
    MapOf,
    Node,
    Record,
    Reference,
    Scalar,
    TupleOf,
    children,
)
from batchor_core.planning.schema_compiler.normalise import said_also
from batchor_core.planning.schema_compiler.restore import Restorer
from batchor_core.planning.schema_compiler.shapes import REFERENCE_PREFIX, disjoint

_Emitted = tuple[JsonObject, Restorer | None]

_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_NUMBER_BOUNDS = {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
_LOOK_AROUND_OR_BACK_REFERENCE = re.compile(r"\(\?<?[=!]|\(\?P=|\\[1-9]")

_SAYINGS = {
    "minLength": "length at least {}",
    "maxLength": "length at most {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "pattern": "matching the regular expression {}",
    "contentSchema": "JSON text of this schema: {}",
}


def compile_openai(declaration: Declaration, name: str) -> CompiledSchema:
    """Write the declaration in the strict dialect.

    Raises:
        SchemaNotSupportedError: If that would lose something, or exceeds one of OpenAI's limits.
    """
    emitter = _Emitter(declaration)
    schema, restorer = emitter.document()
    check_openai_limits(schema)
    return CompiledSchema(
        name=schema_name(name), schema=schema, notes=tuple(emitter.notes), restorer=restorer
    )


class _Emitter:
    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._definitions: dict[str, JsonObject] = {}
        self._restorers: dict[str, Restorer | None] = {}
        self._unions: list[tuple[AnyOf, list[_Emitted]]] = []
        self.notes = [
            SchemaNote(path=path, what=f"{keyword} is not sent")
            for path, keyword in declaration.ignored
        ]

    def document(self) -> _Emitted:
        root = self._declaration.resolve(self._declaration.root)
        if isinstance(root, Record):
            schema, restorer = self._node(root)
        else:
            schema, restorer = self._wrapped(self._declaration.root)
        self._emit_definitions()
        self._check_unions()
        if self._definitions:
            schema = {**schema, "$defs": self._definitions}
        return schema, restorer

    def _wrapped(self, root: Node) -> _Emitted:
        self._note(root, f"the root is no object: asked for as {{{restoring.VALUE!r}: …}}")
        schema, restorer = self._node(root)
        return _closed({restoring.VALUE: schema}), restoring.restore_wrapped(restorer)

    def _emit_definitions(self) -> None:
        """Emit what is referred to, in the order of first use; emitting may refer to more."""
        pending = [name for name in self._declaration.definitions if name in self._definitions]
        while pending:
            for name in pending:
                node = self._declaration.definitions[name]
                self._definitions[name], self._restorers[name] = self._node(node)
            pending = [name for name, each in self._definitions.items() if not each]

    def _node(self, node: Node) -> _Emitted:  # noqa: PLR0911 - one return for each kind
        match node:
            case Reference():
                return self._reference(node)
            case Record():
                return self._record(node)
            case ListOf():
                return self._list(node)
            case TupleOf():
                return self._tuple(node)
            case MapOf():
                return self._map(node)
            case AnyOf():
                return self._any_of(node)
            case Choice():
                return _about(node, {"type": node.type, "enum": list(node.values)}), None
            case Scalar():
                return self._scalar(node), None
        raise AssertionError(node)

    def _scalar(self, node: Scalar) -> JsonObject:
        kept: JsonObject = {}
        hints: list[str] = []
        for keyword, value in node.constraints.items():
            if _is_supported(node, keyword, value):
                kept[keyword] = value
                continue
            hint = _SAYINGS.get(keyword, keyword + ": {}").format(_plain(value))
            hints.append(hint)
            self._note(node, f"{keyword} moved into the description: {hint}")
        return _about(node, {"type": node.type, **kept}, *hints)

    def _record(self, node: Record) -> _Emitted:
        properties: dict[str, JsonObject] = {}
        restorers: dict[str, Restorer] = {}
        absent: set[str] = set()
        for each in node.properties:
            schema, restorer = self._node(each.node)
            if each.may_be_absent and _nullable(schema) == schema:
                self._note(each.node, "may be left out or null: both are answered as null")
            elif each.may_be_absent:
                schema = _nullable(schema)
                absent.add(each.name)
                self._note(each.node, "may be left out: asked for as null, which is left out again")
            elif each.has_default:
                self._note(each.node, "has a default: required, the provider always answers it")
            properties[each.name] = schema
            if restorer is not None:
                restorers[each.name] = restorer if not absent & {each.name} else _or_null(restorer)
        schema = _about(node, _closed(properties))
        if not restorers and not absent:
            return schema, None
        return schema, restoring.restore_record(restorers, frozenset(absent))

    def _list(self, node: ListOf) -> _Emitted:
        schema, restorer = self._node(node.items)
        hints = ["no element twice"] if node.unique else []
        if hints:
            self._note(node, "uniqueItems moved into the description: no element twice")
        array = {"type": "array", "items": schema, **_length(node)}
        return (
            _about(node, array, *hints),
            None if restorer is None else restoring.restore_list(restorer),
        )

    def _tuple(self, node: TupleOf) -> _Emitted:
        emitted = [self._node(each) for each in node.items]
        schemas = [schema for schema, _ in emitted]
        length = len(emitted)
        if all(each == emitted[0] and each[1] is None for each in emitted):
            array = {"type": "array", "items": schemas[0], "minItems": length, "maxItems": length}
            self._note(node, f"a tuple of {length} alike: an array of that length")
            return _about(node, array), None
        keys = [restoring.position_key(index) for index in range(length)]
        self._note(node, f"a tuple: asked for as an object with the keys {', '.join(keys)}")
        return (
            _about(node, _closed(dict(zip(keys, schemas, strict=True)))),
            restoring.restore_tuple([restorer for _, restorer in emitted]),
        )

    def _map(self, node: MapOf) -> _Emitted:
        key, key_restorer = self._node(node.key)
        if key_restorer is not None:
            raise SchemaNotSupportedError("keys that are no scalars; use strings", path=node.path)
        value, restorer = self._node(node.value)
        self._note(node, "free keys: asked for as a list of {key, value} objects")
        entry = _closed({restoring.KEY: key, restoring.VALUE: value})
        array = {"type": "array", "items": entry, **_length(node)}
        return (
            _about(node, array, "one entry for each key, no key twice"),
            restoring.restore_entries(restorer, node.path),
        )

    def _any_of(self, node: AnyOf) -> _Emitted:
        emitted = [self._node(each) for each in node.variants]
        schema = _about(node, {"anyOf": [schema for schema, _ in emitted]})
        if not any(self._is_rewritten(each) for each in node.variants):
            return schema, None
        self._unions.append((node, emitted))
        return schema, restoring.restore_union(emitted, self._definitions)

    def _reference(self, node: Reference) -> _Emitted:
        target = self._declaration.definitions[node.name]
        said = _about(node, {})
        if said and not self._declaration.is_recursive(node.name):
            # As the OpenAI SDK does: ``$ref`` may not have siblings, so the target stands here.
            return self._node(said_also(target, node))
        self._definitions.setdefault(node.name, {})
        reference: JsonObject = {"$ref": REFERENCE_PREFIX + node.name}
        schema = {**said, "anyOf": [reference]} if said else reference
        if not self._is_rewritten(node):
            return schema, None
        return schema, restoring.restore_reference(node.name, self._restorers)

    def _is_rewritten(self, node: Node) -> bool:
        """Whether anything within reach of the node has another shape in this dialect."""
        pending, seen = [node], set[str]()
        while pending:
            each = pending.pop()
            match each:
                case MapOf():
                    return True
                case TupleOf() if not self._is_uniform(each):
                    return True
                case Record(properties=properties) if any(p.may_be_absent for p in properties):
                    return True
                case Reference(name=name) if name not in seen:
                    seen.add(name)
                    pending.append(self._declaration.definitions[name])
            pending.extend(children(each))
        return False

    def _is_uniform(self, node: TupleOf) -> bool:
        quiet = _Emitter(self._declaration)
        schemas = [quiet._node(each)[0] for each in node.items]
        return all(each == schemas[0] for each in schemas) and not any(
            map(self._is_rewritten, node.items)
        )

    def _check_unions(self) -> None:
        """Refuse unions in which the variant cannot be told from the answer."""
        for node, emitted in self._unions:
            for index, (left, left_restorer) in enumerate(emitted):
                for right, right_restorer in emitted[index + 1 :]:
                    if left_restorer is right_restorer is None:
                        continue
                    if not disjoint(left, right, self._definitions):
                        raise SchemaNotSupportedError(
                            "a union of a dict or tuple with something that is asked for in the "
                            "same way: its answers could not be told apart; give the variants a "
                            "Literal tag, or separate fields",
                            path=node.path,
                        )

    def _note(self, node: Node, what: str) -> None:
        note = SchemaNote(path=node.path, what=what)
        if note not in self.notes:
            self.notes.append(note)


def _is_supported(node: Scalar, keyword: str, value: object) -> bool:
    if node.type in ("integer", "number"):
        return keyword in _NUMBER_BOUNDS
    if keyword == "format":
        return value in _FORMATS
    return keyword == "pattern" and not _LOOK_AROUND_OR_BACK_REFERENCE.search(str(value))


def _about(node: Node, schema: JsonObject, *hints: str) -> JsonObject:
    """Put title and description, with the hints in brackets, before the schema itself."""
    said: JsonObject = {} if node.title is None else {"title": node.title}
    every_hint = "; ".join((*node.hints, *hints))
    description = node.description or ""
    if every_hint:
        description = f"{description} ({every_hint})" if description else every_hint
    if description:
        said["description"] = description
    return {**said, **schema}


def _closed(properties: dict[str, JsonObject]) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _nullable(schema: JsonObject) -> JsonObject:
    variants = schema.get("anyOf")
    if isinstance(variants, list):
        null: JsonObject = {"type": "null"}
        return schema if null in variants else {**schema, "anyOf": [*variants, null]}
    said: JsonObject = {key: schema[key] for key in ("title", "description") if key in schema}
    rest = {key: value for key, value in schema.items() if key not in said}
    return {**said, "anyOf": [rest, {"type": "null"}]}


def _or_null(restorer: Restorer) -> Restorer:
    return lambda answer: None if answer is None else restorer(answer)


def _length(node: ListOf | MapOf) -> JsonObject:
    bounds = {"minItems": node.min_items, "maxItems": node.max_items}
    return {keyword: value for keyword, value in bounds.items() if value is not None}


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
