"""Answers become Arrow columns, and survive Parquet."""

import io
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AnyUrl,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NaiveDatetime,
    PositiveInt,
    RootModel,
    SecretStr,
    computed_field,
    create_model,
)
from typing_extensions import TypeAliasType, TypedDict

from batchor_core.errors import ResultSchemaError
from batchor_core.planning.arrow_mapper import ModelColumns, arrow_fields, to_arrow
from tests.planning.generated_models import decode, storable_models_and_values

Key = NewType("Key", int)
Item = TypeVar("Item")
Texts = TypeAliasType("Texts", list[str])


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Mixed(Enum):
    ONE = 1
    TWO = "two"


class Sub(BaseModel):
    x: int
    note: str | None = Field(None, description="a note")


class Empty(BaseModel):
    pass


class Node(BaseModel):
    label: str
    children: list["Node"] = []
    parent: Optional["Node"] = None


class Cat(BaseModel):
    kind: Literal["cat"]
    name: str
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str
    json_: list[str] = []


class Clash(BaseModel):
    kind: Literal["clash"]
    name: int


class Box(BaseModel, Generic[Item]):
    inside: Item


class Pair(NamedTuple):
    left: int
    right: str


class Typed(TypedDict, total=False):
    a: int


@dataclass
class Point:
    x: float
    y: float = 0.0


SUB = pa.struct([("x", pa.int64()), ("note", pa.string())])
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")


def type_of(annotation: Any) -> pa.DataType:
    """The Arrow type of a field of that type."""
    return arrow_fields(create_model("Answer", f=(annotation, ...))).field("f").type


def through_parquet(table: pa.Table) -> pa.Table:
    """Write and read back."""
    file = io.BytesIO()
    pq.write_table(table, file)
    return pq.read_table(file)


def through_polars(table: pa.Table) -> pl.DataFrame:
    """Write with Arrow and scan with Polars."""
    file = io.BytesIO()
    pq.write_table(table, file)
    file.seek(0)
    return pl.scan_parquet(file).collect()


@settings(max_examples=150)
@given(st.data(), storable_models_and_values)
def test_every_instance_survives_parquet(data: st.DataObject, drawn: Any) -> None:
    """If it failed, a value would be changed or lost between the answer and the user's file."""
    model, values = drawn
    instances = data.draw(st.lists(st.none() | values, max_size=4))
    table = to_arrow(instances, model)
    assert table.schema == arrow_fields(model)
    table.validate(full=True)
    for row, instance in zip(through_parquet(table).to_pylist(), instances, strict=True):
        if instance is None:
            assert set(row.values()) == {None}
        else:
            assert model.model_validate(decode(model, row)) == instance


@settings(max_examples=40)
@given(st.data(), storable_models_and_values)
def test_polars_reads_every_schema(data: st.DataObject, drawn: Any) -> None:
    """If it failed, our own IO manager could not scan a result file."""
    model, values = drawn
    instances = data.draw(st.lists(st.none() | values, max_size=3))
    frame = through_polars(to_arrow(instances, model))
    assert (frame.columns, frame.height) == (list(model.model_fields), len(instances))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, pa.string()),
        (PositiveInt, pa.int64()),
        (float | None, pa.float64()),
        (bool, pa.bool_()),
        (bytes, pa.binary()),
        (None, pa.null()),
        (Key, pa.int64()),
        (Texts, pa.list_(pa.string())),
        (datetime, UTC_TIMESTAMP),
        (AwareDatetime, UTC_TIMESTAMP),
        (NaiveDatetime, pa.timestamp("us")),
        (date, pa.date32()),
        (time, pa.time64("us")),
        (timedelta, pa.duration("us")),
        (UUID, pa.string()),
        (AnyUrl, pa.string()),
        (PurePosixPath, pa.string()),
        (Decimal, pa.decimal128(38, 9)),
        (Annotated[Decimal, Field(decimal_places=2)], pa.decimal128(38, 2)),
        (list[Annotated[Decimal, Field(decimal_places=2)]], pa.list_(pa.decimal128(38, 2))),
        (Annotated[Decimal | None, Field(decimal_places=2)], pa.decimal128(38, 2)),
        (Colour, pa.string()),
        (Level, pa.int64()),
        (Literal["a", "b", None], pa.string()),
        (Literal[1, 2], pa.int64()),
        (Literal[True], pa.bool_()),
        (Sub, SUB),
        (Box[int], pa.struct([("inside", pa.int64())])),
        (RootModel[list[int]], pa.list_(pa.int64())),
        (Pair, pa.struct([("left", pa.int64()), ("right", pa.string())])),
        (Typed, pa.struct([("a", pa.int64())])),
        (Point, pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        (Sequence[int], pa.list_(pa.int64())),
        (deque[int], pa.list_(pa.int64())),
        (frozenset[Colour], pa.list_(pa.string())),
        (tuple[int, ...], pa.list_(pa.int64())),
        (tuple[int, int], pa.list_(pa.int64())),
        (tuple[int, str], pa.struct([("item_0", pa.int64()), ("item_1", pa.string())])),
        (dict[str, Sub], pa.map_(pa.string(), SUB)),
        (Mapping[int, list[str]], pa.map_(pa.int64(), pa.list_(pa.string()))),
        (int | float | None, pa.float64()),
        (UUID | Colour | str, pa.string()),
        (Level | int, pa.int64()),
    ],
)
def test_types(annotation: Any, expected: pa.DataType) -> None:
    """If it failed, a result file would change its schema under the user's feet."""
    assert type_of(annotation) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Any, {"a": [1]}, '{"a":[1]}'),
        (JsonValue, "x", '"x"'),
        (Mixed, Mixed.TWO, '"two"'),
        (int | str, 5, "5"),
        (Empty, Empty(), "{}"),
        (dict[str, Any] | int, {"a": 1}, '{"a":1}'),
        (list[int] | list[str], ["b"], '["b"]'),
        (Cat | Clash, Clash(kind="clash", name=3), '{"kind":"clash","name":3}'),
        (dict[Any, int], {"k": 1}, '{"k":1}'),
    ],
)
def test_what_has_no_one_type_is_json_text(annotation: Any, value: object, text: str) -> None:
    """If it failed, a value without a single Arrow type would crash or be lost."""
    model = create_model("Answer", f=(annotation, ...))
    table = to_arrow([model(f=value), None], model)
    assert table.column("f").to_pylist() == [text, None]


def test_recursion_ends_in_json_text() -> None:
    """If it failed, a recursive output model could have no result table."""
    leaf = Node(label="b")
    table = to_arrow([Node(label="a", children=[leaf], parent=leaf)], Node)
    (row,) = through_parquet(table).to_pylist()
    assert Node.model_validate_json(row["children"][0]) == leaf
    assert Node.model_validate_json(row["parent"]) == leaf


def test_models_of_a_union_merge() -> None:
    """If it failed, the usual tagged union could not be queried by its fields."""
    model = create_model("Answer", pet=(Cat | Dog, Field(discriminator="kind")))
    pets = [Cat(kind="cat", name="a"), Dog(kind="dog", name="b", json_=["x"]), None]
    table = to_arrow([None if each is None else model(pet=each) for each in pets], model)
    assert table.column("pet").to_pylist() == [
        {"kind": "cat", "name": "a", "lives": 9, "json_": None},
        {"kind": "dog", "name": "b", "lives": None, "json_": ["x"]},
        None,
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_whose_field_is_text_in_one_and_json_in_the_other_do_not_merge(
    order: tuple[int, int],
) -> None:
    """If it failed, plain text would be stored in quotation marks, or not, by the order."""
    variants = [create_model("Text", f=(str, ...)), create_model("Json", f=(Mixed, ...))]
    first, second = (variants[index] for index in order)
    model = create_model("Answer", u=(first | second, ...))  # type: ignore[valid-type]  # built
    assert type_of(first | second) == pa.string()
    table = to_arrow([model(u=variants[0](f="x"))], model)
    assert table.column("u").to_pylist() == ['{"f":"x"}']


def test_values_are_converted() -> None:
    """If it failed, zones, sets, enums or maps would come out differently from the model."""

    class Answer(BaseModel):
        at: datetime
        noon: time
        colours: set[Colour]
        numbers: set[int]
        counts: dict[Colour, int]
        pair: tuple[int, str] | None
        typed: Typed

    answer = Answer(
        at=datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        noon=time(12, tzinfo=UTC),
        colours={Colour.RED},
        numbers={3, 1, 2},
        counts={Colour.RED: 1},
        pair=(1, "a"),
        typed={},
    )
    assert to_arrow([answer], Answer).to_pylist() == [
        {
            "at": datetime(2024, 1, 1, tzinfo=UTC),
            "noon": time(12),
            "colours": ["red"],
            "numbers": [1, 2, 3],
            "counts": [("red", 1)],
            "pair": {"item_0": 1, "item_1": "a"},
            "typed": {"a": None},
        }
    ]


def test_schema_carries_descriptions_and_leaves_out_what_is_excluded() -> None:
    """If it failed, the catalogue would lack descriptions, or hold fields the user keeps out."""

    class Answer(BaseModel):
        reasoning: str = Field(exclude=True)
        sub: Sub = Field(description="the part", alias="Sub")

        @computed_field
        @property
        def twice(self) -> int:
            return self.sub.x * 2

    schema = arrow_fields(Answer)
    assert schema.names == ["sub"]
    assert schema.field("sub").metadata == {b"description": b"the part"}
    assert schema.field("sub").type.field("note").metadata == {b"description": b"a note"}
    assert all(field.nullable for field in schema)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**63),
        (float | int, 2**60 + 1),
        (Decimal, Decimal("1.0000000001")),
        (Decimal, Decimal(10) ** 29),
        (dict[Decimal, int], {Decimal(10) ** 29: 1}),
        (time, time(1, tzinfo=timezone(timedelta(hours=1)))),
        (timedelta, timedelta(days=999_999_999)),
        (str, "\ud800"),
        (list[dict[str, int]], [{"a": -(2**70)}]),
    ],
)
def test_a_value_that_does_not_fit_spoils_its_own_row_only(annotation: Any, value: Any) -> None:
    """If it failed, one extreme answer would crash a batch of fifty thousand."""
    model = create_model("Answer", ok=(str, ...), f=(annotation, ...))
    good = model.model_construct(ok="a", f=None)
    bad = model.model_construct(ok="b", f=value)
    converted = ModelColumns(model).convert([good, bad, None])
    assert list(converted.invalid) == [1]
    assert converted.invalid[1].startswith("f: the value does not fit")
    assert converted.columns[0].to_pylist() == ["a", None, None]
    with pytest.raises(ResultSchemaError, match="answer 1: f"):
        ModelColumns(model).columns([good, bad, None])


@pytest.mark.parametrize(
    "annotation",
    [
        SecretStr,
        Iterable[int],
        list[SecretStr],
        Annotated[Decimal, Field(decimal_places=39)],
    ],
)
def test_what_cannot_be_stored_is_refused(annotation: Any) -> None:
    """If it failed, stars would be stored for a secret, or a file be written that none can read."""
    with pytest.raises(ResultSchemaError, match=r"Answer\.f: "):
        type_of(annotation)


def test_mappings_are_validated_and_root_models_have_one_column() -> None:
    """If it failed, rows that come as dictionaries would bypass the model."""
    assert to_arrow([{"x": "3"}, None], Sub).to_pylist() == [
        {"x": 3, "note": None},
        {"x": None, "note": None},
    ]
    model = RootModel[list[int]]
    assert to_arrow([model([1])], model).to_pylist() == [{"value": [1]}]


def test_polars_reads_maps_durations_and_times() -> None:
    """If it failed, the types that engines disagree on would be unreadable for Polars users."""

    class Answer(BaseModel):
        counts: dict[str, int]
        span: timedelta
        at: time
        price: Decimal

    answer = Answer(counts={"a": 1}, span=timedelta(1), at=time(2), price=Decimal("1.5"))
    (row,) = through_polars(to_arrow([answer], Answer)).to_dicts()
    # Polars reads a map as Map since 2.x, as a list of {key, value} structs before.
    assert row.pop("counts") in ({"a": 1}, [{"key": "a", "value": 1}])
    assert row == {"span": timedelta(1), "at": time(2), "price": Decimal("1.5")}


def test_no_answers_have_the_same_schema() -> None:
    """If it failed, an empty partition would break the table that it belongs to."""
    for answers in ([], [None], [Cat(kind="cat", name="a")]):
        table = to_arrow(answers, Cat)
        assert table.schema.equals(arrow_fields(Cat), check_metadata=True)
        assert len(table) == len(answers)


def test_json_text_is_by_alias() -> None:
    """If it failed, JSON text in the result could not be validated by the model again."""

    class Aliased(BaseModel):
        model_config = ConfigDict(extra="forbid")
        x: int = Field(alias="X")

    model = create_model("Answer", f=(Aliased | int, ...))
    text = to_arrow([model(f={"X": 1})], model).column("f")[0].as_py()
    assert json.loads(text) == {"X": 1}
