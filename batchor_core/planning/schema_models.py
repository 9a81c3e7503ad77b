"""Pydantic models from JSON Schema.

A user's JSON Schema becomes a model, so that answers are validated and stored in one way only. The
model accepts what the schema accepts and rejects what it rejects; what a model cannot express is
refused. As in the schema compiler, ``properties`` mean an object also where no type is given.
Formats that Pydantic knows (dates, times, durations, UUIDs) are enforced, others are only said.
"""

import copy
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ForwardRef

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    WrapSerializer,
    create_model,
    model_serializer,
)

from batchor_core.errors import SchemaNotSupportedError
from batchor_core.planning.schema_compiler.normalise import definitions_of
from batchor_core.planning.schema_exclusion import exclude_each_other
from batchor_core.planning.schema_leaves import (
    ARRAY_BOUNDS,
    COMBINING,
    MAP_BOUNDS,
    Schema,
    bounded,
    check_keywords,
    check_shapes,
    check_type,
    choice,
    described,
    for_type,
    is_record,
    leaf,
    said_of,
    saying,
    says_nothing,
    union,
)


def model_of(schema: Mapping[str, object], name: str) -> type[BaseModel]:
    """Build the model that accepts what a JSON Schema accepts.

    Fields come in the schema's order. A key that is not required and has no default is None where
    it was left out; null itself stays invalid for it. Keys that no Python attribute can have get
    another field name and keep theirs as the alias.

    Args:
        schema: The JSON Schema; references are to its own ``$defs``.
        name: The model's name.

    Raises:
        SchemaNotSupportedError: With the path of what a model cannot express, and a way out.
    """
    check_shapes(schema, "")
    # A root that is a reference is called as the root is, and not as the definition.
    builder = _Builder(definitions_of(schema), {str(schema.get("$ref")): name})
    annotation = builder.annotation(schema, "", name)
    if not (isinstance(annotation, type) and issubclass(annotation, _FromSchema)):
        annotation = create_model(name, __base__=_Root, root=(annotation, ...), __doc__="")
    builder.finish(annotation)
    model: type[BaseModel] = annotation
    return model


def _unless_left_out(value: object, serialize: Callable[[Any], object]) -> object:
    return None if value is None else serialize(value)


_MAY_BE_ABSENT = WrapSerializer(_unless_left_out)
"""Marks a key that is neither required nor has a default; it is None where it was left out."""


class _FromSchema(BaseModel):
    model_config = ConfigDict(
        strict=True, regex_engine="python-re", protected_namespaces=(), allow_inf_nan=False
    )

    @model_serializer(mode="wrap")
    def _leave_out(self, serialize: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Keep a dump valid for the schema: a key that was left out is not null."""
        dump = serialize(self)
        for name, info in type(self).model_fields.items():
            if _MAY_BE_ABSENT in info.metadata and name not in self.model_fields_set:
                dump.pop(name, None)
                dump.pop(info.alias or name, None)
        return dump


class _Root(RootModel[Any]):
    model_config = ConfigDict(strict=True, regex_engine="python-re", allow_inf_nan=False)


@dataclass(kw_only=True)
class _Default:
    """A default, which can be read when every model is known."""

    annotation: Any
    text: str
    path: str
    value: object = None

    def read(self, known: Mapping[str, Any]) -> None:
        holder = create_model("Default", __base__=_FromSchema, value=(self.annotation, ...))
        holder.model_rebuild(force=True, _types_namespace=known)
        try:
            instance = holder.model_validate_json(f'{{"value": {self.text}}}')
        except ValidationError as exc:
            raise SchemaNotSupportedError(
                "the default is not valid for its own schema; correct it", path=self.path
            ) from exc
        self.value = instance.value  # type: ignore[attr-defined]  # created above

    def __call__(self) -> object:
        return copy.deepcopy(self.value)


class _Builder:
    """Builds annotations; every schema with properties becomes a model."""

    def __init__(self, sources: Mapping[str, Schema], names: Mapping[str, str]) -> None:
        self._sources = sources
        self._names = names
        self._built: dict[str, Any] = {}
        self._open: dict[str, ForwardRef | None] = {}
        self._models: list[type[BaseModel]] = []
        self._defaults: list[_Default] = []

    def annotation(self, schema: object, path: str, name: str) -> Any:
        """The annotation of one schema, with what is said about it.

        Args:
            schema: The schema.
            path: Where its value stands, as ``ticket.lines[].price``.
            name: What a model is called that is defined here.
        """
        bare = self._bare(schema, path, name)
        if not isinstance(schema, Mapping) or is_record(schema):
            return bare
        return described(bare, schema)

    def finish(self, root: type[BaseModel]) -> None:
        """Resolve what was referred to before it was built, and read the defaults."""
        known = {
            forward.__forward_arg__: self._built[ref]
            for ref, forward in self._open.items()
            if forward is not None
        }
        for model in (*self._models, root):
            model.model_rebuild(force=True, _types_namespace=known)
        for default in self._defaults:
            default.read(known)

    def _bare(self, schema: object, path: str, name: str) -> Any:  # noqa: PLR0911 - one return for each kind
        if schema is True:
            return Any
        if not isinstance(schema, Mapping):
            raise SchemaNotSupportedError(f"{schema!r} as a schema takes nothing", path=path)
        check_shapes(schema, path)
        if "$ref" in schema:
            check_keywords(schema, {"$ref"}, path)
            return self._definition(str(schema["$ref"]), path)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                check_keywords(schema, {keyword}, path)
                return self._variants(keyword, schema[keyword], path, name)
        if "enum" in schema or "const" in schema:
            return choice(schema, path)
        if says_nothing(schema):
            return Any
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            check_keywords(schema, set(schema), path)
            parts = [for_type(schema, each) for each in kind]
            return union(self.annotation(each, path, name) for each in parts)
        kind = check_type(schema, kind, path)
        if kind == "object":
            return self._object(schema, path, name)
        return self._array(schema, path, name) if kind == "array" else leaf(schema, kind, path)

    def _definition(self, ref: str, path: str) -> Any:
        if ref in self._built:
            return self._built[ref]
        if not isinstance(self._sources.get(ref), Mapping):
            raise SchemaNotSupportedError(
                f"the reference {ref!r} is not defined under '$defs'", path=path
            )
        if ref in self._open:
            return self._recursive(ref, path)
        source = self._sources[ref]
        has_model = is_record(source)
        self._open[ref] = ForwardRef(f"_Definition{len(self._open)}") if has_model else None
        title = source.get("title") if has_model else None
        name = re.sub(r"\W", "_", str(title or ref.rsplit("/", 1)[-1]))
        self._built[ref] = self.annotation(source, path, self._names.get(ref, name))
        return self._built[ref]

    def _recursive(self, ref: str, path: str) -> ForwardRef:
        forward = self._open[ref]
        if forward is None:
            raise SchemaNotSupportedError(
                f"{ref!r} contains itself and is no object; give the recursion an object with "
                "properties",
                path=path,
            )
        return forward

    def _variants(self, keyword: str, variants: Sequence[Schema], path: str, name: str) -> Any:
        if keyword == "allOf" and len(variants) > 1:
            raise SchemaNotSupportedError("an intersection (allOf); write one object", path=path)
        annotations = [self.annotation(each, path, name) for each in variants]
        if keyword == "oneOf":
            resolved = [self._resolved(each) for each in variants]
            if not all(
                exclude_each_other(left, right)
                for index, left in enumerate(resolved)
                for right in resolved[index + 1 :]
            ):
                raise SchemaNotSupportedError(
                    "oneOf whose variants might fit both; give each object a required property "
                    "with a const of its own, or use anyOf",
                    path=path,
                )
        return union(annotations)

    def _resolved(self, schema: object) -> Schema:
        """What a reference names; nothing for what is no schema of its own (true and false)."""
        seen = set[str]()
        while isinstance(schema, Mapping) and schema.get("$ref") in self._sources.keys() - seen:
            seen.add(schema["$ref"])
            schema = self._sources[schema["$ref"]]
        return schema if isinstance(schema, Mapping) else {}

    def _array(self, schema: Schema, path: str, name: str) -> Any:
        if "prefixItems" in schema:
            return self._tuple(schema, path, name)
        item = self.annotation(schema.get("items", True), f"{path}[]", f"{name}Item")
        array = bounded(list.__class_getitem__(item), schema, ARRAY_BOUNDS)
        if not schema.get("uniqueItems"):
            return array
        return Annotated[array, AfterValidator(_without_repeats), saying({"uniqueItems": True})]

    def _tuple(self, schema: Schema, path: str, name: str) -> Any:
        positions = schema["prefixItems"]
        length = len(positions)
        is_closed = schema.get("maxItems") == length or schema.get("items") is False
        if not is_closed or schema.get("minItems") != length or schema.get("uniqueItems"):
            raise SchemaNotSupportedError(
                f"prefixItems of an array that is free in length; set minItems and maxItems to "
                f"{length}, or use an object",
                path=path,
            )
        items = [
            self.annotation(each, f"{path}[{index}]", f"{name}Item{index}")
            for index, each in enumerate(positions)
        ]
        return tuple.__class_getitem__(tuple(items))

    def _object(self, schema: Schema, path: str, name: str) -> Any:
        extra = schema.get("additionalProperties", True)
        if "properties" not in schema:
            return self._map(schema, extra, path, name)
        names = schema["properties"].keys()
        other = {"patternProperties", "propertyNames", *MAP_BOUNDS} & schema.keys()
        if other or not isinstance(extra, bool):
            raise SchemaNotSupportedError(
                "an object with both named and free keys; put the free ones into an object of "
                "their own",
                path=path,
            )
        if not names >= set(schema.get("required", ())):
            raise SchemaNotSupportedError(
                "requires a key that it does not describe; add it to properties", path=path
            )
        return self._model(schema, path, name)

    def _map(self, schema: Schema, extra: object, path: str, name: str) -> Any:
        patterns = schema.get("patternProperties", {})
        if schema.get("required") or len(patterns) > 1 or (patterns and extra is not False):
            raise SchemaNotSupportedError(
                "free keys of which some are required, or which may match a pattern or not; use "
                "properties, or one pattern with additionalProperties false",
                path=path,
            )
        keys = schema.get("propertyNames", {})
        value = extra
        for pattern, each in patterns.items():
            keys, value = {**keys, "pattern": pattern}, each
        keys = {"type": "string", **keys} if keys.keys().isdisjoint(COMBINING) else keys
        key = self.annotation(keys, f"{path}{{key}}", name)
        item = self.annotation(value, f"{path}{{}}", f"{name}Value")
        return bounded(dict.__class_getitem__((key, item)), schema, MAP_BOUNDS)

    def _model(self, schema: Schema, path: str, name: str) -> type[BaseModel]:
        properties: Mapping[str, object] = schema["properties"]
        names = _field_names(properties)
        required = schema.get("required", ())
        model: type[BaseModel] = create_model(
            name,
            __base__=_FromSchema,
            __doc__=schema.get("description", ""),
            __cls_kwargs__={
                "extra": _EXTRA[schema.get("additionalProperties")],
                "title": schema.get("title"),
                "json_schema_extra": _said_on_model(schema),
            },
            **{
                names[key]: self._field(
                    key, each, f"{path}.{key}" if path else key, is_required=key in required
                )
                for key, each in properties.items()
            },
        )
        self._models.append(model)
        return model

    def _field(self, key: str, schema: object, path: str, *, is_required: bool) -> Any:
        annotation = self.annotation(schema, path, re.sub(r"\W", "_", key).title() or "Field")
        default = schema.get("default", ...) if isinstance(schema, Mapping) else ...
        said = {} if default is ... else {"default": default}
        if is_required:
            return annotation, Field(alias=key, json_schema_extra=said)
        if said:
            unread = _Default(annotation=annotation, text=json.dumps(default), path=path)
            self._defaults.append(unread)
            return annotation, Field(alias=key, default_factory=unread, json_schema_extra=said)
        absent = Field(None, alias=key, json_schema_extra=_without_default)
        return Annotated[annotation, _MAY_BE_ABSENT], absent


_EXTRA = {False: "forbid", True: "allow", None: "ignore"}


def _said_on_model(schema: Schema) -> Callable[[dict[str, Any]], None]:
    said = {key: each for key, each in said_of(schema).items() if key != "description"}

    def write(json_schema: dict[str, Any]) -> None:
        del json_schema["title"]  # Pydantic gives the model's name
        json_schema.update(said)

    return write


def _without_default(json_schema: dict[str, Any]) -> None:
    """Tell a key that may be left out from one whose default is null."""
    del json_schema["default"]


def _field_names(keys: Collection[str]) -> dict[str, str]:
    """The keys with names that attributes can have: no dots, no underscore first, no methods."""
    names: dict[str, str] = {}
    taken = set(keys)
    for key in keys:
        name = key.replace(".", "_").lstrip("_") or "field"
        while (name != key and name in taken) or hasattr(BaseModel, name):
            name += "_"
        taken.add(name)
        names[key] = name
    return names


def _without_repeats(values: list[Any]) -> list[Any]:
    kinds = [(type(each), each) for each in values]  # because 1 equals True in Python
    if any(each in kinds[:index] for index, each in enumerate(kinds)):
        raise ValueError("an element comes twice")
    return values
