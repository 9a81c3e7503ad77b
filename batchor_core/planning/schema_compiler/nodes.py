"""What an output model asks for, free of any provider's dialect.

The normaliser turns JSON Schema into these nodes once; each dialect then writes its own JSON
from them. A node keeps everything the model declares: a dialect that cannot enforce something
says it in words instead of losing it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

JsonObject: TypeAlias = dict[str, object]
ScalarType: TypeAlias = Literal["string", "integer", "number", "boolean", "null"]
ScalarValue: TypeAlias = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Node:
    """One place in the answer.

    Attributes:
        path: Where it stands, as ``ticket.lines[].price``; empty for the root.
        title: A title that the user wrote; generated ones are left out.
        description: What the user says about it.
        hints: What is true of it and that no JSON Schema keyword enforces in any dialect.
    """

    path: str
    title: str | None = None
    description: str | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scalar(Node):
    """A string, number, boolean or null, with the JSON Schema keywords that bound it."""

    type: ScalarType
    constraints: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Choice(Node):
    """One of some values of one type."""

    type: ScalarType
    values: tuple[ScalarValue, ...]


@dataclass(frozen=True, kw_only=True)
class Property:
    """One key of a record.

    Attributes:
        name: The key in the answer.
        node: Its value.
        has_default: Whether the model fills the key in where it is left out.
        default_is_null: Whether it fills in null.
        may_be_absent: Whether leaving the key out has a meaning of its own (``NotRequired``).
    """

    name: str
    node: Node
    has_default: bool = False
    default_is_null: bool = False
    may_be_absent: bool = False


@dataclass(frozen=True, kw_only=True)
class Record(Node):
    """An object with known keys and no others."""

    properties: tuple[Property, ...]


@dataclass(frozen=True, kw_only=True)
class ListOf(Node):
    """An array of any length within the bounds."""

    items: Node
    min_items: int | None = None
    max_items: int | None = None
    unique: bool = False


@dataclass(frozen=True, kw_only=True)
class TupleOf(Node):
    """An array of fixed length whose positions have their own types."""

    items: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class MapOf(Node):
    """An object with free keys."""

    key: Node
    value: Node
    min_items: int | None = None
    max_items: int | None = None


@dataclass(frozen=True, kw_only=True)
class AnyOf(Node):
    """Any one of the variants."""

    variants: tuple[Node, ...]


@dataclass(frozen=True, kw_only=True)
class Reference(Node):
    """A definition by name, which may be recursive."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A whole output model.

    Attributes:
        root: The answer.
        definitions: What references name, in the order of first use.
        ignored: Extension keywords (``x-…``) that say nothing about the answer: path, keyword.
    """

    root: Node
    definitions: Mapping[str, Node]
    ignored: tuple[tuple[str, str], ...] = ()

    def resolve(self, node: Node) -> Node:
        """Follow references until something else is found."""
        while isinstance(node, Reference):
            node = self.definitions[node.name]
        return node

    def is_recursive(self, name: str) -> bool:
        """Whether the definition contains itself, at any depth."""
        return self._contains(name, name)

    def recursive_references(self) -> Iterator[tuple[Reference, tuple[Property, ...]]]:
        """The references that close a cycle, with the keys around each, the nearest last.

        Keys are told as far as the definition that the reference stands in.
        """
        for name, node in self.definitions.items():
            for reference, around in _references(node, ()):
                if reference.name == name or self._contains(reference.name, name):
                    yield reference, around

    def _contains(self, name: str, searched: str) -> bool:
        pending = [self.definitions[name]]
        seen: set[str] = set()
        while pending:
            node = pending.pop()
            if isinstance(node, Reference):
                if node.name == searched:
                    return True
                if node.name in seen:
                    continue
                seen.add(node.name)
                pending.append(self.definitions[node.name])
            pending.extend(children(node))
        return False


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside; a reference has none."""
    match node:
        case Record(properties=properties):
            return tuple(each.node for each in properties)
        case ListOf(items=items):
            return (items,)
        case TupleOf(items=positions):
            return positions
        case MapOf(key=key, value=value):
            return (key, value)
        case AnyOf(variants=variants):
            return variants
        case _:
            return ()


def _references(
    node: Node, around: tuple[Property, ...]
) -> Iterator[tuple[Reference, tuple[Property, ...]]]:
    if isinstance(node, Reference):
        yield node, around
    elif isinstance(node, Record):
        for each in node.properties:
            yield from _references(each.node, (*around, each))
    else:
        for child in children(node):
            yield from _references(child, around)
