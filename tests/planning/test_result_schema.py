"""The result table's schema."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pydantic import BaseModel

from batchor_core.errors import ResultSchemaError
from batchor_core.planning.result_schema import (
    RESULT_COLUMNS,
    ResultDeclaration,
    arrow_type,
    build_result_schema,
)

FIXED = [
    "batch_status",
    "batch_error_code",
    "batch_error_message",
    "batch_output_text",
    "batch_finish_reason",
    "batch_attempts",
    "batch_reused",
    "batch_model",
    "batch_input_tokens",
    "batch_cached_input_tokens",
    "batch_output_tokens",
    "batch_reasoning_tokens",
    "batch_cost_usd",
    "batch_provider_batch_id",
    "batch_request_id",
]


class Answer(BaseModel):
    label: str
    score: float


def test_columns_come_in_the_documented_order() -> None:
    """If it failed, users' files would change their column order."""
    declaration = ResultDeclaration(keep={"city": pa.string(), "n": pa.int64()}, output=Answer)
    schema = build_result_schema(declaration)
    assert schema.names == ["item_id", "city", "n", "label", "score", *FIXED]
    assert schema.field("n").type == pa.int64()


def test_fixed_columns_are_typed_and_only_the_id_is_never_null() -> None:
    """If it failed, a failed row could not be written, or counts be of another type."""
    schema = build_result_schema(ResultDeclaration(keep={}, output=None))
    assert [field.name for field in schema if not field.nullable] == ["item_id"]
    types = {field.name: str(field.type) for field in RESULT_COLUMNS}
    assert types.pop("batch_attempts") == "int32"
    assert types.pop("batch_reused") == "bool"
    assert types.pop("batch_cost_usd") == "double"
    assert {name for name, each in types.items() if each == "int64"} == {
        name for name in FIXED if name.endswith("_tokens")
    }


def test_plain_text_and_embeddings() -> None:
    """If it failed, jobs without an output model would have no column for their answers."""
    text = build_result_schema(ResultDeclaration(keep={}, output=None))
    assert text.names == ["item_id", "output_text", *FIXED]
    vectors = build_result_schema(ResultDeclaration(keep={}, output=None, embedding_dimensions=3))
    assert vectors.field("embedding").type == pa.list_(pa.float32(), 3)


@pytest.mark.parametrize(
    ("keep", "fields", "sides"),
    [
        ({"item_id": pa.string()}, ["label"], ["'item_id'", "the item's id", "keep"]),
        ({"label": pa.string()}, ["label"], ["'label'", "keep", "the model Clash"]),
        ({"batch_model": pa.string()}, ["label"], ["'batch_model'", "keep", "the batch columns"]),
        ({}, ["batch_status"], ["'batch_status'", "the model Clash", "the batch columns"]),
        ({}, ["item_id"], ["'item_id'", "the item's id", "the model Clash"]),
    ],
)
def test_clashes_name_both_sides(
    keep: dict[str, pa.DataType], fields: list[str], sides: list[str]
) -> None:
    """If it failed, one column would silently hide another."""
    model = type("Clash", (BaseModel,), {"__annotations__": dict.fromkeys(fields, str)})
    with pytest.raises(ResultSchemaError) as caught:
        build_result_schema(ResultDeclaration(keep=keep, output=model))
    assert all(side in str(caught.value) for side in sides)


@pytest.mark.parametrize(
    ("output", "dimensions", "message"),
    [(Answer, 3, "one or the other"), (None, 0, "at least one dimension")],
)
def test_impossible_embeddings_are_refused(
    output: type[BaseModel] | None, dimensions: int, message: str
) -> None:
    """If it failed, a declaration without sense would be found out only at the end of the run."""
    with pytest.raises(ResultSchemaError, match=message):
        build_result_schema(
            ResultDeclaration(keep={}, output=output, embedding_dimensions=dimensions)
        )


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (pa.int16(), pa.int16()),
        (pl.Int32, pa.int32()),
        (pl.String, pa.string()),
        (pl.String(), pa.string()),
        (pl.Binary, pa.binary()),
        (pl.Categorical, pa.string()),
        (pl.Enum(["a"]), pa.string()),
        (pl.Datetime("us", "UTC"), pa.timestamp("us", tz="UTC")),
        (pl.List(pl.String), pa.list_(pa.string())),
        (pl.Array(pl.Float32, 3), pa.list_(pa.float32(), 3)),
        (pl.Struct({"a": pl.List(pl.String)}), pa.struct([("a", pa.list_(pa.string()))])),
        (str, pa.string()),
        (int, pa.int64()),
        (date, pa.date32()),
        (datetime, pa.timestamp("us", tz="UTC")),
        (Decimal, pa.decimal128(38, 9)),
        (list[int], pa.list_(pa.int64())),
        ("string", pa.string()),
        ("str", pa.string()),
        ("Int64", pa.int64()),
        ("datetime", pa.timestamp("us", tz="UTC")),
        ("timestamp[us]", pa.timestamp("us")),
    ],
)
def test_types_are_read_as_users_write_them(dtype: Any, expected: pa.DataType) -> None:
    """If it failed, ``keep={"city": pl.String}`` and its like would not work."""
    assert arrow_type(dtype) == expected


@pytest.mark.parametrize("dtype", ["no such type", object, 5])
def test_what_is_no_type_is_refused(dtype: Any) -> None:
    """If it failed, a typing error in ``keep`` would surface after the money was spent."""
    with pytest.raises(ResultSchemaError, match="column type"):
        arrow_type(dtype)
