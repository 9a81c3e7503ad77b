"""Building Arrow arrays from Python values, column by column.

Values are never turned into dictionaries row by row: each column reads its attribute of every
answer and hands the whole list to Arrow, and nested lists are flattened first. That is several
times faster than ``model_dump`` and ``pa.Table.from_pylist``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

Values: TypeAlias = Sequence[Any]
Getter: TypeAlias = Callable[[Any], object]


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one Python type becomes Arrow.

    Attributes:
        type: The Arrow type. Everything inside is nullable, except a map's keys.
        build: Turns a list of values, None for null, into an array of that type. Raises
            `pa.ArrowException`, ValueError, TypeError or OverflowError for a value that the type
            cannot hold.
        form: What the values stand for, which decides how unions combine: columns of one type
            but of different forms do not mix.
    """

    type: pa.DataType
    build: Callable[[Values], pa.Array]
    form: Literal["scalar", "text", "json", "nested"]


def scalar(data_type: pa.DataType, convert: Callable[[Any], object] | None = None) -> Column:
    """A column of plain values, each converted first where Arrow does not know its class."""
    if convert is None:
        return Column(
            type=data_type, build=lambda values: pa.array(values, data_type), form="scalar"
        )
    return via(scalar(data_type), convert)


def via(column: Column, convert: Callable[[Any], object]) -> Column:
    """A column whose values are converted before the given column takes them."""

    def build(values: Values) -> pa.Array:
        return column.build([None if value is None else convert(value) for value in values])

    return Column(type=column.type, build=build, form=column.form)


def list_of(item: Column, order: Callable[[Any], Iterable[object]] | None = None) -> Column:
    """A list column; `order` brings unordered collections into an order that is always the same."""
    data_type = pa.list_(pa.field("element", item.type))

    def build(values: Values) -> pa.Array:
        flat: list[object] = []
        offsets = [0]
        for value in values:
            if value is not None:
                flat.extend(value if order is None else order(value))
            offsets.append(len(flat))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), item.build(flat), type=data_type, mask=_nulls(values)
        )

    return Column(type=data_type, build=build, form="nested")


def map_of(key: Column, value: Column) -> Column:
    """A map column, its entries in the order of the answer."""
    data_type = pa.map_(key.type, value.type)

    def build(values: Values) -> pa.Array:
        keys: list[object] = []
        items: list[object] = []
        offsets = [0]
        for each in values:
            if each is not None:
                keys.extend(each)
                items.extend(each.values())
            offsets.append(len(keys))
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()),
            key.build(keys),
            value.build(items),
            type=data_type,
            mask=_nulls(values),
        )

    return Column(type=data_type, build=build, form="nested")


def struct_of(fields: Mapping[str, tuple[pa.Field, Column, Getter]]) -> Column:
    """A struct column; each getter takes a value that is not None."""
    arrow_fields = [field for field, _, _ in fields.values()]

    def build(values: Values) -> pa.Array:
        mask = _nulls(values)
        children = [
            column.build(
                [getter(each) for each in values]
                if mask is None
                else [None if each is None else getter(each) for each in values]
            )
            for _, column, getter in fields.values()
        ]
        return pa.StructArray.from_arrays(children, fields=arrow_fields, mask=mask)

    return Column(type=pa.struct(arrow_fields), build=build, form="nested")


def _nulls(values: Values) -> pa.Array | None:
    if None not in values:
        return None
    return pa.array([value is None for value in values], pa.bool_())
