"""The dialect of Anthropic's ``output_config.format``.

Source of the rules: Anthropic's guide to structured outputs, "JSON Schema limitations", and what
its SDK's ``transform_schema`` takes out. Objects are closed; nothing recurses; of all bounds only
``minItems`` of 0 or 1 is enforced, so that tuples become objects. At most 24 optional and 16
union-typed keys, seen as live errors (facts/providers 2).

Required keys are answered first, in their order, and then the optional ones. Hence every key is
required, as long as the unions with null that this costs fit; beyond that, keys whose absence
means the same are optional, the last ones first.
"""

from collections.abc import Callable, Iterator
from typing import cast

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.compiled import CompiledSchema
from batchor_core.planning.schema_compiler.emitter import emit
from batchor_core.planning.schema_compiler.nodes import (
    AnyOf,
    Declaration,
    JsonObject,
    Node,
    Property,
    Record,
    children,
)
from batchor_core.planning.schema_compiler.normalise import without_null
from batchor_core.planning.schema_compiler.rules import Rules
from batchor_core.planning.schema_compiler.shapes import follow, subschemas

MAX_OPTIONAL = 24
MAX_UNIONS = 16

ANTHROPIC = Rules(
    keywords={"array": frozenset({"minItems"})},
    formats={
        "string": frozenset(
            {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6"}
            | {"uuid"}
        )
    },
    largest_min_items=1,
    tuples="none",
)


def compile_anthropic(declaration: Declaration, name: str) -> CompiledSchema:
    """Write the declaration for Anthropic.

    Raises:
        SchemaNotSupportedError: If that would lose something, or exceeds one of the limits.
    """
    for reference, _ in declaration.recursive_references():
        raise SchemaNotSupportedError(
            "a model that contains itself; Anthropic's structured outputs do not recurse: ask for "
            "a flat list whose elements name their parent, or nest as many models as you need",
            path=reference.path,
        )
    candidates = list(dict.fromkeys(_may_be_optional(declaration)))
    compiled = emit(declaration, ANTHROPIC, name)
    unions = _count(compiled.schema, _union)
    for optional in range(1, min(len(candidates), MAX_OPTIONAL) + 1):
        if unions <= MAX_UNIONS:
            break
        compiled = emit(declaration, ANTHROPIC, name, frozenset(candidates[-optional:]))
        unions = _count(compiled.schema, _union)
    _refuse_beyond(MAX_UNIONS, unions, "fields of more than one type, null included")
    _refuse_beyond(MAX_OPTIONAL, _count(compiled.schema, _optional), "optional fields")
    return compiled


def _may_be_optional(declaration: Declaration) -> Iterator[str]:
    """The paths of keys for which leaving them out saves a union and changes nothing."""
    pending: list[Node] = [declaration.root, *declaration.definitions.values()]
    while pending:
        node = pending.pop(0)
        if isinstance(node, Record):
            yield from (each.node.path for each in node.properties if _saves_a_union(each))
        pending[:0] = children(node)


def _saves_a_union(each: Property) -> bool:
    if each.default_is_null:
        inner = without_null(each.node)
        return inner is not each.node and not isinstance(inner, AnyOf)
    return each.may_be_absent and not isinstance(each.node, AnyOf)


def _count(schema: JsonObject, counted: Callable[[JsonObject], int]) -> int:
    """Count in a whole document, a definition as often as it is referred to."""
    definitions = cast("dict[str, JsonObject]", schema.get("$defs", {}))
    known: dict[int, int] = {}

    def count(part: JsonObject) -> int:
        part = follow(part, definitions)
        if id(part) not in known:
            known[id(part)] = counted(part) + sum(map(count, subschemas(part)))
        return known[id(part)]

    return count(schema)


def _union(schema: JsonObject) -> int:
    return 1 if "anyOf" in schema else 0


def _optional(schema: JsonObject) -> int:
    if schema.get("type") != "object":
        return 0
    properties = cast("JsonObject", schema["properties"])
    return len(properties) - len(cast("list[str]", schema["required"]))


def _refuse_beyond(limit: int, found: int, what: str) -> None:
    if found > limit:
        raise SchemaNotSupportedError(
            f"the model has {found} {what}; Anthropic takes at most {limit}: make fields "
            "required and of one type (an empty text or list for nothing), or ask in two passes"
        )
