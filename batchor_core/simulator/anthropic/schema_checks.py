"""Why Anthropic's constrained decoding refuses a schema (facts: providers, section 2)."""

from collections.abc import Iterator, Mapping
from typing import Any

_MAX_OPTIONAL = 24
_MAX_UNIONS = 16


def schema_violation(schema: Any) -> str | None:
    """Return why the API refuses an output schema; None if it does not."""
    nodes = list(_nodes(schema))
    for node in nodes:
        is_object = node.get("type") == "object" or "properties" in node
        if is_object and node.get("additionalProperties") is not False:
            return (
                "output_config.format.schema: For 'object' type, 'additionalProperties' must be"
                " explicitly set to false"
            )
    optional = sum(
        len(set(node.get("properties") or {}) - set(node.get("required") or ())) for node in nodes
    )
    if optional > _MAX_OPTIONAL:
        return f"Schema has too many optional parameters ({optional}), at most {_MAX_OPTIONAL}"
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    if unions > _MAX_UNIONS:
        return f"Schema has too many parameters with union types ({unions}), at most {_MAX_UNIONS}"
    return None


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and every schema in it."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for name in ("properties", "$defs", "definitions"):
        group = schema.get(name)
        for each in group.values() if isinstance(group, Mapping) else ():
            yield from _nodes(each)
    for name in ("anyOf", "allOf", "oneOf", "prefixItems"):
        for each in schema.get(name) or ():
            yield from _nodes(each)
    yield from _nodes(schema.get("items"))
