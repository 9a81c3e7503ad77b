"""Annotations for the parts of a JSON Schema that contain no others, and what is said of a part."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal, TypeAlias, Union
from uuid import UUID

from pydantic import BeforeValidator, Field

from batchor_core.errors import SchemaNotSupportedError

Schema: TypeAlias = Mapping[str, Any]

ARRAY_BOUNDS = {"minItems": "min_length", "maxItems": "max_length"}
MAP_BOUNDS = {"minProperties": "min_length", "maxProperties": "max_length"}
_NUMBER_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_TEXT_BOUNDS = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
_FORMATS: dict[str, Any] = {
    "date": date,
    "time": time,
    "date-time": datetime,
    "duration": timedelta,
    "uuid": UUID,
}
_KEYWORDS: dict[str, set[str]] = {
    "string": {*_TEXT_BOUNDS, "format", "contentEncoding"},
    "integer": {*_NUMBER_BOUNDS, "format"},
    "number": {*_NUMBER_BOUNDS, "format"},
    "boolean": set(),
    "null": set(),
    "array": {*ARRAY_BOUNDS, "items", "prefixItems", "uniqueItems"},
    "object": {*MAP_BOUNDS, "properties", "required", "additionalProperties"}
    | {"patternProperties", "propertyNames"},
}
_SAID = {"title", "description", "examples", "deprecated", "readOnly", "writeOnly"}
_WITHOUT_MEANING = {"default", "discriminator", "contentMediaType", "$comment", "$schema", "$id"}
_WITHOUT_MEANING |= {"$defs", "definitions"}
COMBINING = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""Keywords beside which ``properties`` do not define an object."""

_NUMBER = (int, float)
_SHAPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("$defs", "definitions", "properties", "patternProperties"), Mapping),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "enum", "required", "prefixItems"), list),
    **dict.fromkeys(("title", "description", "format", "pattern", "$ref"), str),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), int),
    **dict.fromkeys(MAP_BOUNDS, int),
    **dict.fromkeys(_NUMBER_BOUNDS, _NUMBER),
    "additionalProperties": (bool, Mapping),
    "propertyNames": Mapping,
    "type": (str, list),
    "uniqueItems": bool,
}
_POSITIVE = dict.fromkeys((*ARRAY_BOUNDS, *MAP_BOUNDS, "minLength", "maxLength"), 0.0)
_POSITIVE["multipleOf"] = 5e-324
_ELEMENTS: dict[str, type | tuple[type, ...]] = {
    "type": str,
    "required": str,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), (bool, Mapping)),
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class Says:
    """Keywords that Pydantic has no argument for, as JSON, put into the schema of the place."""

    keywords: tuple[tuple[str, str], ...]

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Add the keywords to what Pydantic writes."""
        return {**handler(core_schema), **{key: json.loads(each) for key, each in self.keywords}}


def saying(keywords: Mapping[str, object]) -> Says:
    """Keywords to put into the schema of a place."""
    return Says(tuple((key, json.dumps(value)) for key, value in keywords.items()))


def leaf(schema: Schema, kind: str, path: str) -> Any:
    """The annotation of a scalar type.

    Raises:
        SchemaNotSupportedError: For a pattern that Python does not understand.
    """
    if kind == "string":
        return _text(schema, path)
    if kind == "integer":
        whole = bounded(int, schema, _NUMBER_BOUNDS)
        return Annotated[_with_format(whole, schema), BeforeValidator(_whole)]
    if kind == "number":
        return _with_format(bounded(float, schema, _NUMBER_BOUNDS), schema)
    return bool if kind == "boolean" else None


def choice(schema: Schema, path: str) -> Any:
    """The annotation of ``enum`` or ``const``.

    Raises:
        SchemaNotSupportedError: If a value is an array or object, or none is of the type given.
    """
    check_keywords(schema, {"enum", "const", "type"}, path)
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    kinds = schema.get("type", list(_PYTHON_TYPES))
    kept = [each for each in values if any(map(_is_of(each), one_or_many(kinds)))]
    if not kept or any(isinstance(each, list | dict) for each in values):
        raise SchemaNotSupportedError(
            "a choice of no values, or of arrays or objects; list strings or numbers", path=path
        )
    # Apart, because True equals 1 in Python and not in JSON.
    truths = [each for each in kept if isinstance(each, bool)]
    others = [each for each in kept if not isinstance(each, bool)]
    variants = []
    if truths:
        variants.append(Annotated[Literal[tuple(truths)], BeforeValidator(_truth)])
    if others:
        variants.append(Annotated[Literal[tuple(others)], BeforeValidator(_no_truth)])
    return union(variants)


def union(variants: Iterable[Any]) -> Any:
    """Any one of the annotations."""
    return Union[tuple(variants)]  # noqa: UP007 - built from a list


def bounded(annotation: Any, schema: Schema, bounds: Mapping[str, str]) -> Any:
    """The annotation within the bounds that the schema gives, named as Pydantic names them."""
    given = {name: schema[keyword] for keyword, name in bounds.items() if keyword in schema}
    return Annotated[annotation, Field(**given)] if given else annotation


def described(annotation: Any, schema: Schema) -> Any:
    """The annotation with what is said about the place."""
    said = said_of(schema)
    known = {key: said.pop(key) for key in ("title", "description") if key in said}
    metadata = [*([Field(**known)] if known else []), *([saying(said)] if said else [])]
    for each in metadata:
        annotation = Annotated[annotation, each]
    return annotation


def said_of(schema: Schema) -> dict[str, Any]:
    """What is said about a place, without what is enforced."""
    return {key: each for key, each in schema.items() if key in _SAID or key.startswith("x-")}


def for_type(schema: Schema, kind: str) -> dict[str, Any]:
    """The keywords that apply to one of several types; by JSON Schema the others do not."""
    known = _KEYWORDS.get(kind, set())
    return {"type": kind, **{key: each for key, each in schema.items() if key in known}}


def one_or_many(kinds: object) -> list[str]:
    """The types that ``type`` names."""
    return [str(each) for each in kinds] if isinstance(kinds, list) else [str(kinds)]


def check_type(schema: Schema, kind: object, path: str) -> str:
    """The type, if JSON Schema has it and the schema holds nothing that is not understood.

    Raises:
        SchemaNotSupportedError: With the keyword.
    """
    known = _KEYWORDS.get(str(kind), set().union(*_KEYWORDS.values()))
    check_keywords(schema, {"type", *known}, path)
    if kind not in _KEYWORDS:
        raise SchemaNotSupportedError(
            f"a schema of type {kind!r}; give it one of JSON's types", path=path
        )
    return str(kind)


def check_keywords(schema: Schema, understood: set[str], path: str) -> None:
    """Refuse keywords that would not be enforced.

    Raises:
        SchemaNotSupportedError: With the keyword.
    """
    for keyword in schema.keys() - understood - _SAID - _WITHOUT_MEANING:
        if not keyword.startswith("x-"):
            raise SchemaNotSupportedError(
                f"the JSON Schema keyword {keyword!r} cannot be used here; say it in the "
                "description instead",
                path=path,
            )


def check_shapes(schema: Schema, path: str) -> None:
    """Refuse what is no JSON Schema, so that nothing further on stumbles over it.

    Raises:
        SchemaNotSupportedError: With the keyword.
    """
    for keyword, shape in _SHAPES.items():
        value = schema.get(keyword, ...)
        inner = _ELEMENTS.get(keyword)
        is_wrong = value is not ... and not isinstance(value, shape)
        if inner and isinstance(value, list):
            is_wrong = not all(isinstance(each, inner) for each in value)
            is_wrong |= not value and keyword != "required"
        if isinstance(value, int | float) and keyword in _POSITIVE:
            is_wrong = isinstance(value, bool) or value < _POSITIVE[keyword]
        if is_wrong:
            raise SchemaNotSupportedError(
                f"{keyword!r} is not what JSON Schema says it is; correct it", path=path
            )


def is_record(schema: Schema) -> bool:
    """Whether the schema defines an object with named keys."""
    return (
        "properties" in schema
        and schema.get("type", "object") == "object"
        and schema.keys().isdisjoint(COMBINING)
    )


def says_nothing(schema: Schema) -> bool:
    """Whether the schema takes anything."""
    return not schema.keys() - _SAID - _WITHOUT_MEANING


def _text(schema: Schema, path: str) -> Any:
    if not schema.keys() & _TEXT_BOUNDS and schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    try:
        re.compile(schema.get("pattern", ""))
    except re.error as exc:
        raise SchemaNotSupportedError(
            f"the pattern {schema['pattern']!r} is no regular expression of Python ({exc}); "
            "spell it differently, or say it in the description",
            path=path,
        ) from exc
    return _with_format(bounded(str, schema, _TEXT_BOUNDS), schema)


def _with_format(annotation: Any, schema: Schema) -> Any:
    kept = {key: schema[key] for key in ("format", "contentEncoding") if key in schema}
    return Annotated[annotation, saying(kept)] if kept else annotation


def _is_of(value: object) -> Any:
    def is_of(kind: str) -> bool:
        if isinstance(value, bool):
            return kind == "boolean"
        return isinstance(value, _PYTHON_TYPES.get(kind, ()))

    return is_of


def _truth(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("not true or false")  # noqa: TRY004 - Pydantic takes ValueErrors
    return value


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - Pydantic takes ValueErrors
    return _whole(value)


def _whole(value: object) -> object:
    """JSON Schema takes 1.0 for an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
