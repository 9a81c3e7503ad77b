"""Writing a declaration in a dialect, by the dialect's rules.

Every dialect gets JSON Schema whose objects are closed and whose ``$ref`` stand alone; the rules
say which bounds may be sent and what must be asked for in another shape. What a dialect lacks is
rewritten so that it can be reversed, or said in the description, and noted.
"""

import json

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler import restore as restoring
from batchor_core.planning.schema_compiler.compiled import CompiledSchema, SchemaNote
from batchor_core.planning.schema_compiler.limits import schema_name
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
    TupleOf,
    children,
)
from batchor_core.planning.schema_compiler.normalise import said_also, without_null
from batchor_core.planning.schema_compiler.restore import Restorer
from batchor_core.planning.schema_compiler.rules import Rules
from batchor_core.planning.schema_compiler.shapes import REFERENCE_PREFIX, disjoint

_Emitted = tuple[JsonObject, Restorer | None]

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
    "minItems": "at least {} elements",
    "maxItems": "at most {} elements",
}


def emit(
    declaration: Declaration, rules: Rules, name: str, optional: frozenset[str] = frozenset()
) -> CompiledSchema:
    """Write the declaration in the dialect that the rules describe.

    Args:
        declaration: The output model.
        rules: The dialect.
        name: The schema's name.
        optional: The paths of the keys that are not required; all others are.

    Raises:
        SchemaNotSupportedError: If that would lose something.
    """
    emitter = _Emitter(declaration, rules, optional)
    schema, restorer = emitter.document()
    return CompiledSchema(
        name=schema_name(name), schema=schema, notes=tuple(emitter.notes), restorer=restorer
    )


class _Emitter:
    def __init__(self, declaration: Declaration, rules: Rules, optional: frozenset[str]) -> None:
        self._declaration = declaration
        self._rules = rules
        self._optional = optional
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
                return self._choice(node)
            case Scalar():
                return self._scalar(node), None
        raise AssertionError(node)

    def _scalar(self, node: Scalar) -> JsonObject:
        kept, hints = self._bounds(node, node.type, dict(node.constraints))
        return _about(node, {"type": node.type, **kept}, *hints)

    def _bounds(self, node: Node, kind: str, bounds: JsonObject) -> tuple[JsonObject, list[str]]:
        """Part what the dialect enforces from what can only be said."""
        kept: JsonObject = {}
        hints: list[str] = []
        for keyword, value in bounds.items():
            if self._rules.takes(kind, keyword, value):
                kept[keyword] = value
                continue
            hint = _SAYINGS.get(keyword, keyword + ": {}").format(_plain(value))
            hints.append(hint)
            self._note(node, f"{keyword} moved into the description: {hint}")
        return kept, hints

    def _choice(self, node: Choice) -> _Emitted:
        if node.type in self._rules.enums:
            return _about(node, {"type": node.type, "enum": list(node.values)}), None
        values = {json.dumps(value): value for value in node.values}
        self._note(node, f"a choice of type {node.type}: asked for as text")
        schema = _about(node, {"type": "string", "enum": list(values)})
        return schema, restoring.restore_choice(values)

    def _record(self, node: Record) -> _Emitted:
        properties: dict[str, JsonObject] = {}
        restorers: dict[str, Restorer] = {}
        absent: set[str] = set()
        for each in node.properties:
            schema, restorer, null_is_absent = self._property(each)
            properties[each.name] = schema
            if null_is_absent:
                absent.add(each.name)
            if restorer is not None:
                restorers[each.name] = _or_null(restorer) if null_is_absent else restorer
        optional = {each.name for each in node.properties if each.node.path in self._optional}
        schema = _about(node, _closed(properties, optional))
        if not restorers and not absent:
            return schema, None
        return schema, restoring.restore_record(restorers, frozenset(absent))

    def _property(self, each: Property) -> tuple[JsonObject, Restorer | None, bool]:
        """The schema, the restorer, and whether null stands for leaving the key out."""
        if each.node.path in self._optional:
            self._note(each.node, "not required: it may be left out, as the model allows")
            node = without_null(each.node) if each.default_is_null else each.node
            return *self._node(node), False
        schema, restorer = self._node(each.node)
        if each.may_be_absent and _nullable(schema) == schema:
            self._note(each.node, "may be left out or null: both are answered as null")
        elif each.may_be_absent:
            self._note(each.node, "may be left out: asked for as null, which is left out again")
            return _nullable(schema), restorer, True
        elif each.has_default:
            self._note(each.node, "has a default: required, the provider always answers it")
        return schema, restorer, False

    def _list(self, node: ListOf) -> _Emitted:
        schema, restorer = self._node(node.items)
        hints = ["no element twice"] if node.unique else []
        if hints:
            self._note(node, "uniqueItems moved into the description: no element twice")
        kept, said = self._bounds(node, "array", _length(node))
        array = {"type": "array", "items": schema, **kept}
        return (
            _about(node, array, *hints, *said),
            None if restorer is None else restoring.restore_list(restorer),
        )

    def _tuple(self, node: TupleOf) -> _Emitted:
        emitted = [self._node(each) for each in node.items]
        schemas = [schema for schema, _ in emitted]
        restorers = [restorer for _, restorer in emitted]
        length = len(emitted)
        bounds: JsonObject = {"minItems": length, "maxItems": length}
        if self._rules.tuples == "positions":
            array = {"type": "array", "prefixItems": schemas, **bounds}
            restorer = restoring.restore_positions(restorers) if any(restorers) else None
            return _about(node, array), restorer
        if self._are_alike(emitted):
            array = {"type": "array", "items": schemas[0], **bounds}
            self._note(node, f"a tuple of {length} alike: an array of that length")
            return _about(node, array), None
        keys = [restoring.position_key(index) for index in range(length)]
        self._note(node, f"a tuple: asked for as an object with the keys {', '.join(keys)}")
        return (
            _about(node, _closed(dict(zip(keys, schemas, strict=True)))),
            restoring.restore_tuple(restorers),
        )

    def _are_alike(self, positions: list[_Emitted]) -> bool:
        return self._rules.tuples == "alike" and all(
            each == positions[0] and each[1] is None for each in positions
        )

    def _map(self, node: MapOf) -> _Emitted:
        if not self._is_scalar(node.key):
            raise SchemaNotSupportedError("keys that are no scalars; use strings", path=node.path)
        # A key's restorer is not needed: a JSON key is the text that stands for its value.
        key, _ = self._node(node.key)
        value, restorer = self._node(node.value)
        self._note(node, "free keys: asked for as a list of {key, value} objects")
        entry = _closed({restoring.KEY: key, restoring.VALUE: value})
        kept, said = self._bounds(node, "array", _length(node))
        array = {"type": "array", "items": entry, **kept}
        return (
            _about(node, array, "one entry for each key, no key twice", *said),
            restoring.restore_entries(restorer, node.path),
        )

    def _is_scalar(self, node: Node) -> bool:
        node = self._declaration.resolve(node)
        if isinstance(node, AnyOf):
            return all(map(self._is_scalar, node.variants))
        return isinstance(node, Scalar | Choice)

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
                case TupleOf() if self._is_tuple_rewritten(each):
                    return True
                case Choice(type=kind) if kind not in self._rules.enums:
                    return True
                case Record(properties=properties) if any(map(self._null_is_absent, properties)):
                    return True
                case Reference(name=name) if name not in seen:
                    seen.add(name)
                    pending.append(self._declaration.definitions[name])
            pending.extend(children(each))
        return False

    def _null_is_absent(self, each: Property) -> bool:
        return each.may_be_absent and each.node.path not in self._optional

    def _is_tuple_rewritten(self, node: TupleOf) -> bool:
        if self._rules.tuples != "alike":
            return self._rules.tuples == "none"
        quiet = _Emitter(self._declaration, self._rules, self._optional)
        schemas = [quiet._node(each)[0] for each in node.items]
        return any(each != schemas[0] for each in schemas) or any(
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
                            "a union in which two variants are asked for in the same way, at "
                            "least one of them rewritten: its answers could not be told apart; "
                            "give the variants a Literal tag, or separate fields",
                            path=node.path,
                        )

    def _note(self, node: Node, what: str) -> None:
        note = SchemaNote(path=node.path, what=what)
        if note not in self.notes:
            self.notes.append(note)


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


def _closed(
    properties: dict[str, JsonObject], optional: set[str] | frozenset[str] = frozenset()
) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
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
