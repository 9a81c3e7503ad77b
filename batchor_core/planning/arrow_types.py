"""From Python annotations to Arrow columns.

The rules, in the order in which they are tried:

* ``Optional`` is nullable; so is everything else, because Parquet writers reject a null parent
  over a child that is declared non-null. ``Annotated``, ``NewType``, ``type`` aliases and
  ``RootModel`` are looked through.
* models, dataclasses, ``TypedDict`` and ``NamedTuple`` are structs; without fields, or where one
  contains itself, they are JSON text.
* lists, sets and variadic tuples are lists (sets sorted, so that files do not differ from run to
  run); a fixed tuple is a list if its positions have one type, else a struct ``item_0``, ….
* a dict is a map if its keys are scalars, else JSON text.
* an enum or ``Literal`` is a string; int64, double or bool if all of its values are such; JSON text
  if they are mixed.
* a union is its members' common type: one scalar type that all share; double for int and float;
  string for kinds of text (str, UUID, URL, path, textual enum); one struct of all fields for
  models whose fields of one name have one type; else JSON text.
* a ``datetime`` is ``timestamp[us, UTC]``, a naive one read as UTC; ``NaiveDatetime`` has no zone.
* a ``Decimal`` is ``decimal128(38, decimal_places)``, nine places if the field sets none.
* ``Any`` and classes that are not known here are JSON text.
"""

import re
import types
import typing
import uuid
from collections import abc, deque
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from operator import attrgetter, itemgetter
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin

import pyarrow as pa
import pydantic
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import to_json
from typing_extensions import TypeAliasType

from batchor_core.errors import ResultSchemaError
from batchor_core.planning.arrow_columns import Column, list_of, map_of, scalar, struct_of, via
from batchor_core.planning.arrow_records import RecordField, record_fields

DEFAULT_DECIMAL_PLACES = 9
_DECIMAL_DIGITS = 38
ROOT_COLUMN = "value"
"""The column of a model that is a `RootModel`. It is stored: never rename it."""

_Parents = tuple[object, ...]


def column_for(  # noqa: PLR0911 - one return for each kind
    annotation: Any, metadata: Sequence[object] = (), parents: _Parents = ()
) -> Column:
    """The column of one annotation.

    Args:
        annotation: Any annotation that Pydantic takes.
        metadata: What `Annotated` said about it, as `FieldInfo.metadata` has it.
        parents: The records that it stands in, to end recursion.

    Raises:
        ResultSchemaError: For secrets and one-pass iterables, which cannot be stored faithfully,
            and for a decimal of more places than Arrow has.
    """
    annotation, metadata, parents = _bare(annotation, metadata, parents)
    origin = get_origin(annotation) or annotation
    if annotation in parents:
        return json_text()
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation), metadata, parents)
    if origin is Literal:
        return _choice(get_args(annotation))
    if origin is tuple:
        return _tuple(get_args(annotation), parents)
    if origin in _LISTS or origin in _SETS:
        (item,) = get_args(annotation) or (Any,)
        return list_of(column_for(item, (), parents), _in_order if origin in _SETS else None)
    if origin in _MAPPINGS:
        return _mapping(get_args(annotation), parents)
    return _class(origin, annotation, metadata, parents)


def record_column(fields: Sequence[RecordField], parents: _Parents) -> Column:
    """A struct of fields, or JSON text where there are none: Parquet has no empty struct."""
    if not fields:
        return json_text()
    columns = {each.name: column_for(each.annotation, each.metadata, parents) for each in fields}
    return struct_of(
        {
            each.name: (arrow_field(each, columns[each.name]), columns[each.name], each.getter)
            for each in fields
        }
    )


def arrow_field(field: RecordField, column: Column) -> pa.Field:
    """A nullable Arrow field that carries the model's description."""
    said = {b"description": field.description.encode()} if field.description else None
    return pa.field(field.name, column.type, metadata=said)


def json_text() -> Column:
    """A column of JSON text, which the annotation can validate again."""
    return Column(type=pa.string(), build=scalar(pa.string(), _to_json_text).build, form="json")


def _bare(
    annotation: Any, metadata: Sequence[object], parents: _Parents
) -> tuple[Any, tuple[object, ...], _Parents]:
    """Look through what only wraps a type; aliases count as parents, since they may recurse."""
    said = list(metadata)
    while True:
        origin = get_origin(annotation)
        if origin is typing.Annotated:
            annotation, *more = get_args(annotation)
            for each in more:
                said += each.metadata if isinstance(each, FieldInfo) else [each]
        elif origin in _QUALIFIERS:
            (annotation,) = get_args(annotation)
        elif isinstance(annotation, TypeAliasType) and annotation not in parents:
            parents = (*parents, annotation)
            annotation = annotation.__value__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        else:
            return annotation, tuple(said), parents


def _class(  # noqa: PLR0911 - one return for each kind
    origin: Any, annotation: Any, metadata: Sequence[object], parents: _Parents
) -> Column:
    if not isinstance(origin, type):
        return json_text()
    if issubclass(origin, _SECRETS) or origin in _ONE_PASS:
        raise ResultSchemaError(
            f"a field of type {origin.__name__} cannot be stored: "
            "use str or bytes instead of a secret, and list instead of an iterable"
        )
    if issubclass(origin, Enum):
        return _choice([each.value for each in origin])
    if issubclass(origin, RootModel):
        root = origin.model_fields["root"]
        inner = column_for(root.annotation, root.metadata, (*parents, annotation))
        return via(inner, attrgetter("root"))
    fields = record_fields(annotation)
    if fields is not None:
        return record_column(fields, (*parents, annotation))
    if issubclass(origin, Decimal):
        return scalar(pa.decimal128(_DECIMAL_DIGITS, _decimal_places(metadata)))
    for known, column in _SCALARS.items():
        if issubclass(origin, known):
            return column
    if issubclass(origin, _TEXTS) or _is_network_type(origin):
        return _text_column()
    return json_text()


def _union(variants: Sequence[Any], metadata: Sequence[object], parents: _Parents) -> Column:
    variants = [each for each in variants if each is not type(None)]
    if not variants:
        return scalar(pa.null())
    columns = [column_for(each, metadata, parents) for each in variants]
    if len(columns) == 1:
        return columns[0]
    forms = {each.form for each in columns}
    data_types = {each.type for each in columns}
    if forms == {"text"}:
        return _text_column()
    if forms == {"scalar"} and len(data_types) == 1:
        return via(columns[0], _enum_value)
    if forms == {"scalar"} and data_types == {pa.int64(), pa.float64()}:
        return scalar(pa.float64(), _enum_value)
    return _merged_models(variants, parents) or json_text()


def _merged_models(variants: Sequence[Any], parents: _Parents) -> Column | None:
    """One struct with the fields of all variants, if fields of one name have one Arrow type."""
    bare = [_bare(each, (), parents)[0] for each in variants]
    by_name: dict[str, list[RecordField]] = {}
    for variant in bare:
        if not _is_plain_model(variant) or variant in parents:
            return None
        for each in record_fields(variant) or ():
            by_name.setdefault(each.name, []).append(each)
    inside = (*parents, *bare)
    merged = {}
    for name, fields in by_name.items():
        column = _merged_field(fields, inside)
        if column is None:
            return None
        described = next((each for each in fields if each.description), fields[0])
        merged[name] = (arrow_field(described, column), column, _own_value(name))
    return struct_of(merged) if merged else None


def _merged_field(fields: Sequence[RecordField], parents: _Parents) -> Column | None:
    first, *others = [column_for(each.annotation, each.metadata, parents) for each in fields]
    if any((each.type, each.form) != (first.type, first.form) for each in others):
        return None
    if all(each.annotation == fields[0].annotation for each in fields):
        return first
    together = column_for(
        Union[tuple(typing.Annotated[each.annotation, *each.metadata, ""] for each in fields)],  # noqa: UP007 - built from a list
        (),
        parents,
    )
    return together if together.type == first.type and together.form == first.form else None


def _choice(values: Sequence[object]) -> Column:
    plain = [_enum_value(value) for value in values if value is not None]
    kinds = {type(value) for value in plain}
    if all(issubclass(kind, str) for kind in kinds):
        return _text_column()
    if kinds == {bool}:
        return scalar(pa.bool_(), _enum_value)
    if kinds == {int}:
        return scalar(pa.int64(), _enum_value)
    if kinds <= {int, float}:
        return scalar(pa.float64(), _enum_value)
    return json_text()


def _tuple(positions: Sequence[Any], parents: _Parents) -> Column:
    if not positions:
        return list_of(json_text())
    if Ellipsis in positions:
        return list_of(column_for(positions[0], (), parents))
    if all(each == positions[0] for each in positions):
        return list_of(column_for(positions[0], (), parents))
    return record_column(
        [
            RecordField(name=f"item_{index}", annotation=each, getter=itemgetter(index))
            for index, each in enumerate(positions)
        ],
        parents,
    )


def _mapping(arguments: Sequence[Any], parents: _Parents) -> Column:
    key_type, value_type = arguments or (str, Any)
    key = column_for(key_type, (), parents)
    if key.form not in ("scalar", "text"):
        return json_text()
    return map_of(key, column_for(value_type, (), parents))


def _text_column() -> Column:
    return Column(type=pa.string(), build=scalar(pa.string(), _to_text).build, form="text")


def _own_value(name: str) -> Callable[[Any], object]:
    """Read a field that only some variants have; ``getattr`` would find methods of that name."""
    return lambda model: model.__dict__.get(name)


def _is_plain_model(variant: object) -> bool:
    return (
        isinstance(variant, type)
        and issubclass(variant, BaseModel)
        and not issubclass(variant, RootModel)
    )


def _is_network_type(origin: type) -> bool:
    """URLs, e-mail and IP addresses of Pydantic, whose common bases are private."""
    return any(each.__module__ == "pydantic.networks" for each in origin.__mro__)


def _decimal_places(metadata: Sequence[object]) -> int:
    found = [getattr(each, "decimal_places", None) for each in metadata]
    places: int = next((each for each in found if each is not None), DEFAULT_DECIMAL_PLACES)
    if places > _DECIMAL_DIGITS:
        raise ResultSchemaError(
            f"a decimal of {places} places cannot be stored: use at most {_DECIMAL_DIGITS}, or str"
        )
    return places


def _enum_value(value: object) -> object:
    return value.value if isinstance(value, Enum) else value


def _to_text(value: object) -> str:
    value = _enum_value(value)
    if isinstance(value, str):
        return value
    return str(value.pattern) if isinstance(value, re.Pattern) else str(value)


def _to_json_text(value: object) -> str:
    return to_json(value, by_alias=True, bytes_mode="base64", inf_nan_mode="strings").decode()


def _in_order(values: Any) -> list[object]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _wall_time(value: time) -> time:
    """Drop a zero offset, which JSON Schema's format ``time`` demands; others cannot be stored."""
    if value.tzinfo is not None and value.utcoffset() != timedelta(0):
        raise ValueError("a time of day with a UTC offset; the column has no place for it")
    return value


_QUALIFIERS = (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar)
_LISTS = (list, deque, abc.Sequence, abc.MutableSequence, abc.Collection)
_SETS = (set, frozenset, abc.Set, abc.MutableSet)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_SECRETS = (pydantic.Secret, pydantic.SecretStr, pydantic.SecretBytes)
_ONE_PASS = (abc.Iterable, abc.Iterator, abc.Generator)
_TEXTS: tuple[type, ...] = (uuid.UUID, PurePath, re.Pattern, complex)
_TEXTS += (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)

_UTC_TIMESTAMP = scalar(pa.timestamp("us", tz="UTC"))
_DATE = scalar(pa.date32())
# In the order of lookup: bool is an int and datetime is a date.
_SCALARS: dict[type, Column] = {
    bool: scalar(pa.bool_()),
    int: scalar(pa.int64()),
    float: scalar(pa.float64()),
    str: Column(type=pa.string(), build=scalar(pa.string()).build, form="text"),
    bytes: scalar(pa.binary()),
    bytearray: scalar(pa.binary()),
    datetime: _UTC_TIMESTAMP,
    pydantic.AwareDatetime: _UTC_TIMESTAMP,
    pydantic.PastDatetime: _UTC_TIMESTAMP,
    pydantic.FutureDatetime: _UTC_TIMESTAMP,
    pydantic.NaiveDatetime: scalar(pa.timestamp("us")),
    date: _DATE,
    pydantic.PastDate: _DATE,
    pydantic.FutureDate: _DATE,
    time: scalar(pa.time64("us"), _wall_time),
    timedelta: scalar(pa.duration("us")),
    type(None): scalar(pa.null()),
}
