"""OpenAI's rules for `strict: true` schemas, as its API states them when it refuses one.

Source: the structured outputs guide (facts/providers section 2).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_UNSUPPORTED = frozenset(
    {
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "prefixItems",
        "patternProperties",
        "unevaluatedProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "unevaluatedItems",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
    }
)
_DESCRIBED_BY = ("type", "enum", "const", "anyOf", "$ref")
_MAX_PROPERTIES = 5_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Path = tuple[str, ...]


def strict_violation(name: Any, schema: Any) -> str | None:
    """Why a strict format is refused, in the words of the API, or None if it is accepted."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"Invalid format name {name!r}: it must match ^[a-zA-Z0-9_-]{{1,64}}$."
    prefix = f"Invalid schema for response_format '{name}': "
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        return (
            f"{prefix}schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        )
    if "anyOf" in schema:
        return f"{prefix}schema must not have 'anyOf' at the top level."
    properties = 0
    for path, part in _parts(schema, ()):
        reason = _violation(part)
        if reason:
            return f"{prefix}In context={path!r}, {reason}"
        properties += len(part.get("properties", ()))
    if properties > _MAX_PROPERTIES:
        return f"{prefix}it has {properties} properties, more than {_MAX_PROPERTIES}."
    return None


def _violation(part: Mapping[str, Any]) -> str | None:
    unsupported = sorted(_UNSUPPORTED.intersection(part))
    if unsupported:
        return f"'{unsupported[0]}' is not permitted."
    if not any(key in part for key in _DESCRIBED_BY):
        return "schema must have a 'type' key."
    kind = part.get("type")
    if kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in part:
        return _object_violation(part)
    if kind == "array" and "items" not in part:
        return "array schema missing items."
    return None


def _object_violation(part: Mapping[str, Any]) -> str | None:
    if part.get("additionalProperties") is not False:
        return "'additionalProperties' is required to be supplied and to be false."
    names = part.get("properties", {})
    missing = [name for name in names if name not in part.get("required", ())]
    if missing:
        return (
            "'required' is required to be supplied and to be an array including every key in"
            f" properties. Missing '{missing[0]}'."
        )
    return None


def _parts(schema: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The schema and every schema inside it, with where it is."""
    if not isinstance(schema, Mapping):
        return
    yield path, schema
    for keyword in ("properties", "$defs", "definitions"):
        for name, part in dict(schema.get(keyword) or {}).items():
            yield from _parts(part, (*path, keyword, name))
    for number, part in enumerate(schema.get("anyOf") or ()):
        yield from _parts(part, (*path, "anyOf", str(number)))
    yield from _parts(schema.get("items"), (*path, "items"))
