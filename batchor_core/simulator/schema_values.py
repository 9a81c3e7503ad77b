"""Values that conform to a JSON Schema, or to Gemini's subset of OpenAPI's schema object.

A schema is compiled once into closures; each then makes a value from a `Draw` in microseconds.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchor_core.simulator.draws import Draw
from batchor_core.simulator.strings import Generator, choice_generator, string_generator, word

_MAX_EXTRA_ITEMS = 3
_DEEP = 3
_TOO_DEEP = 30
_SPAN = 100


def compile_schema(schema: Mapping[str, Any]) -> Generator:
    """A maker of values for `schema`, which may refer to its own `$defs`.

    Raises:
        ValueError: A `$ref` points nowhere, or a type is unknown.
    """
    return _Compiler(schema).compile(schema)


class _Compiler:
    """Compiles the parts of one schema document; shared references are compiled once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._references: dict[str, Generator | None] = {}

    def compile(self, schema: Any) -> Generator:
        if not isinstance(schema, Mapping):
            return word
        if schema.get("nullable"):
            solid = {key: value for key, value in schema.items() if key != "nullable"}
            return self._any_of([solid, {"type": "null"}])
        makers: dict[str, Callable[[], Generator]] = {
            "$ref": lambda: self._reference(str(schema["$ref"])),
            "const": lambda: choice_generator([schema["const"]]),
            "enum": lambda: choice_generator(schema["enum"]),
            "anyOf": lambda: self._any_of(schema["anyOf"]),
            "oneOf": lambda: self._any_of(schema["oneOf"]),
            "allOf": lambda: self.compile(self._merged(schema)),
        }
        for keyword, make in makers.items():
            if keyword in schema:
                return make()
        return self._typed(schema)

    def _typed(self, schema: Mapping[str, Any]) -> Generator:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            return self._any_of([{**schema, "type": one} for one in kind])
        kind = str(kind).lower()  # OpenAPI's types are upper case
        makers: dict[str, Callable[[dict[str, Any]], Generator]] = {
            "object": self._object,
            "array": self._array,
            "string": string_generator,
            "integer": _integer,
            "number": _number,
            "boolean": lambda _: _boolean,
            "null": lambda _: _null,
        }
        if kind not in makers:
            raise ValueError(f"unknown type {kind!r} in a JSON schema")
        return makers[kind](dict(schema))

    def _reference(self, pointer: str) -> Generator:
        if pointer not in self._references:
            self._references[pointer] = None  # a recursive reference finds it once it is compiled
            self._references[pointer] = self.compile(_resolve(self._root, pointer))
        references = self._references

        def referred(draw: Draw) -> Any:
            generator = references[pointer]
            if generator is None or draw.depth > _TOO_DEEP or draw.references_left <= 0:
                return None  # only a schema that no finite value satisfies gets here
            draw.references_left -= 1
            draw.depth += 1
            value = generator(draw)
            draw.depth -= 1
            return value

        return referred

    def _any_of(self, options: list[Any]) -> Generator:
        """Null once in four; deep inside a recursion, an option that does not recurse."""
        solid = [option for option in options if not _is_null(option)]
        nullable = len(solid) < len(options)
        if not solid:
            return _null
        generators = [self.compile(option) for option in solid]
        shallow = [
            generator
            for option, generator in zip(solid, generators, strict=True)
            if not self._recurses(option)
        ]

        def choose(draw: Draw) -> Any:
            deep = draw.depth >= _DEEP
            if nullable and (deep or draw.below(4) == 0):
                return None
            pool = shallow if deep and shallow else generators
            return pool[draw.below(len(pool))](draw)

        return choose

    def _recurses(self, schema: Any, seen: frozenset[str] = frozenset()) -> bool:
        if isinstance(schema, list):
            return any(self._recurses(part, seen) for part in schema)
        if not isinstance(schema, Mapping):
            return False
        pointer = schema.get("$ref")
        if isinstance(pointer, str):
            return pointer in seen or self._recurses(
                _resolve(self._root, pointer), seen | {pointer}
            )
        return any(self._recurses(part, seen) for part in schema.values())

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            found = _resolve(self._root, part["$ref"]) if "$ref" in part else part
            properties = {**merged.get("properties", {}), **found.get("properties", {})}
            merged = {**merged, **found}
            if properties:
                merged["properties"] = properties
        return merged

    def _object(self, schema: dict[str, Any]) -> Generator:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        names = [*schema.get("propertyOrdering", ()), *properties]
        fields = [
            (name, self.compile(properties[name]), name in required)
            for name in dict.fromkeys(names)
            if name in properties
        ]
        extra = schema.get("additionalProperties")
        if not fields and isinstance(extra, Mapping):
            return self._mapping(extra)

        def build(draw: Draw) -> dict[str, Any]:
            if draw.depth < _DEEP:
                return {name: make(draw) for name, make, _ in fields}
            return {name: make(draw) for name, make, needed in fields if needed}

        return build

    def _mapping(self, schema: Mapping[str, Any]) -> Generator:
        make = self.compile(schema)
        return lambda draw: {word(draw): make(draw) for _ in range(draw.between(1, 2))}

    def _array(self, schema: dict[str, Any]) -> Generator:
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", least + _MAX_EXTRA_ITEMS))
        most = min(most, least + _MAX_EXTRA_ITEMS)
        make = self.compile(schema.get("items", {}))
        prefix = [self.compile(part) for part in schema.get("prefixItems", ())]
        if prefix:
            return lambda draw: [make_one(draw) for make_one in prefix]

        def build(draw: Draw) -> list[Any]:
            count = least if draw.depth >= _DEEP else draw.between(least, most)
            return [make(draw) for _ in range(count)]

        if schema.get("uniqueItems"):
            return _without_repeats(build, least)
        return _with_unique_keys(build) if self._is_mapping(schema.get("items")) else build

    def _is_mapping(self, items: Any) -> bool:
        """Whether an array stands for a mapping, as where free keys cannot be asked for."""
        if isinstance(items, Mapping) and "$ref" in items:
            items = _resolve(self._root, str(items["$ref"]))
        return isinstance(items, Mapping) and set(items.get("properties", ())) == {"key", "value"}


def _with_unique_keys(build: Generator) -> Generator:
    def unique(draw: Draw) -> list[Any]:
        return list({entry.get("key"): entry for entry in build(draw)}.values())

    return unique


def _without_repeats(build: Generator, least: int) -> Generator:
    def unique(draw: Draw) -> list[Any]:
        kept: list[Any] = []
        for _ in range(20):
            for value in build(draw):
                if value not in kept:
                    kept.append(value)
            if len(kept) >= least:
                break
        return kept[: max(least, _MAX_EXTRA_ITEMS)]

    return unique


def _boolean(draw: Draw) -> bool:
    return draw.below(2) == 1


def _null(_: Draw) -> None:
    return None


def _is_null(option: Any) -> bool:
    return isinstance(option, Mapping) and str(option.get("type")).lower() == "null"


def _resolve(root: Mapping[str, Any], pointer: str) -> Any:
    part: Any = root
    if not pointer.startswith("#"):
        raise ValueError(f"$ref {pointer!r} is not inside the schema")
    for step in pointer[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(part, Mapping) or key not in part:
            raise ValueError(f"$ref {pointer!r} points nowhere")
        part = part[key]
    return part


def _limits(schema: Mapping[str, Any]) -> tuple[float | None, float | None]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    return (max(lows) if lows else None), (min(highs) if highs else None)


def _range(schema: Mapping[str, Any]) -> tuple[float, float]:
    low, high = _limits(schema)
    if low is None:
        return (0, _SPAN) if high is None else (min(0, high - _SPAN), high)
    return low, low + _SPAN if high is None else high


def _integer(schema: dict[str, Any]) -> Generator:
    low, high = _range(schema)
    step = schema.get("multipleOf", 1)
    first, last = math.ceil(low / step), math.floor(high / step)
    if first * step == schema.get("exclusiveMinimum"):
        first += 1
    if last * step == schema.get("exclusiveMaximum"):
        last -= 1
    last = max(first, last)
    return lambda draw: int(draw.between(first, last) * step)


def _number(schema: dict[str, Any]) -> Generator:
    if "multipleOf" in schema:
        low, high = _range(schema)
        step = schema["multipleOf"]
        first, last = math.ceil(low / step), math.floor(high / step)
        first += first * step == schema.get("exclusiveMinimum")
        last -= last * step == schema.get("exclusiveMaximum")
        last = max(first, last)
        return lambda draw: round(draw.between(first, last) * step, 10)
    low, high = _range(schema)
    # The ends are left out, so that exclusive limits need no case of their own.
    return lambda draw: low + (high - low) * (1 + draw.below(998)) / 1000
