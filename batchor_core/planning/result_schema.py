"""The schema of the result table, from the declaration alone."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
from pydantic import BaseModel

from batchor_core.errors import ResultSchemaError
from batchor_core.planning.arrow_mapper import arrow_fields
from batchor_core.planning.arrow_types import column_for

ITEM_ID = pa.field("item_id", pa.string(), nullable=False)
OUTPUT_TEXT = pa.field("output_text", pa.string())
EMBEDDING_COLUMN = "embedding"

# Column names are stored in users' files: never rename one, add new ones at the end.
RESULT_COLUMNS: tuple[pa.Field, ...] = (
    pa.field("batch_status", pa.string()),
    pa.field("batch_error_code", pa.string()),
    pa.field("batch_error_message", pa.string()),
    pa.field("batch_output_text", pa.string()),
    pa.field("batch_finish_reason", pa.string()),
    pa.field("batch_attempts", pa.int32()),
    pa.field("batch_reused", pa.bool_()),
    pa.field("batch_model", pa.string()),
    pa.field("batch_input_tokens", pa.int64()),
    pa.field("batch_cached_input_tokens", pa.int64()),
    pa.field("batch_output_tokens", pa.int64()),
    pa.field("batch_reasoning_tokens", pa.int64()),
    pa.field("batch_cost_usd", pa.float64()),
    pa.field("batch_provider_batch_id", pa.string()),
    pa.field("batch_request_id", pa.string()),
)
"""What every result table ends with, in this order."""


@dataclass(frozen=True, kw_only=True)
class ResultDeclaration:
    """What decides the result table's columns.

    Attributes:
        keep: Input columns to carry over, in order, with their types.
        output: The output model; None for plain text or embeddings.
        embedding_dimensions: The length of the embeddings; None if the job makes none.
    """

    keep: Mapping[str, pa.DataType]
    output: type[BaseModel] | None
    embedding_dimensions: int | None = None


def build_result_schema(declaration: ResultDeclaration) -> pa.Schema:
    """The result table's schema: id, kept columns, output, and what is known about each row.

    Raises:
        ResultSchemaError: If two columns have the same name, or a field cannot be stored.
    """
    origins = (
        ("the item's id", [ITEM_ID]),
        ("keep", [pa.field(name, dtype) for name, dtype in declaration.keep.items()]),
        (_origin_of_output(declaration), output_fields(declaration)),
        ("the batch columns", list(RESULT_COLUMNS)),
    )
    _refuse_clashes({origin: [field.name for field in fields] for origin, fields in origins})
    return pa.schema([field for _, fields in origins for field in fields])


def output_fields(declaration: ResultDeclaration) -> list[pa.Field]:
    """The columns that hold the answers themselves.

    Raises:
        ResultSchemaError: If both a model and embeddings are declared, or a field cannot be stored.
    """
    dimensions = declaration.embedding_dimensions
    if dimensions is None:
        return (
            [OUTPUT_TEXT] if declaration.output is None else list(arrow_fields(declaration.output))
        )
    if declaration.output is not None:
        raise ResultSchemaError("embeddings have no output model: declare one or the other")
    if dimensions < 1:
        raise ResultSchemaError(f"embeddings need at least one dimension, not {dimensions}")
    return [embedding_field(dimensions)]


def embedding_field(dimensions: int) -> pa.Field:
    """The column that holds embedding vectors of this length."""
    return pa.field(EMBEDDING_COLUMN, pa.list_(pa.float32(), dimensions))


def arrow_type(dtype: Any) -> pa.DataType:
    """Read a column type that a user wrote.

    Args:
        dtype: An Arrow type, a Polars type (class or instance), a Python type or annotation
            (``str``, ``list[int]``), or a name (``"string"``, ``"int64"``, ``"timestamp[us]"``).

    Raises:
        ResultSchemaError: If it is none of these.
    """
    if isinstance(dtype, pa.DataType):
        return dtype
    if isinstance(dtype, str):
        return _named_type(dtype)
    if isinstance(dtype, pl.DataType) or (
        isinstance(dtype, type) and issubclass(dtype, pl.DataType)
    ):
        return _small(pl.Series([], dtype=dtype).to_arrow().type)
    column = column_for(dtype)
    if column.form == "json":
        raise ResultSchemaError(f"{dtype!r} is no column type; use a Polars, Arrow or Python type")
    return column.type


_OTHER_NAMES = {
    "str": pa.string(),
    "utf8": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "datetime": pa.timestamp("us", tz="UTC"),
}


def _named_type(name: str) -> pa.DataType:
    lowered = name.strip().lower()
    if lowered in _OTHER_NAMES:
        return _OTHER_NAMES[lowered]
    for spelling in (name.strip(), lowered):
        try:
            return pa.type_for_alias(spelling)
        except ValueError:
            continue
    raise ResultSchemaError(
        f"{name!r} names no column type; use one as 'string', 'int64', 'float64', 'bool', 'date32'"
    )


def _small(data_type: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one return for each kind
    """The usual Arrow type for what Polars exports as large, view or dictionary."""
    types = pa.types
    if types.is_dictionary(data_type):
        return _small(data_type.value_type)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_large_list(data_type):
        return pa.list_(pa.field("element", _small(data_type.value_type)))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_small(data_type.value_type), data_type.list_size)
    if types.is_struct(data_type):
        return pa.struct([pa.field(each.name, _small(each.type)) for each in data_type])
    return data_type


def _origin_of_output(declaration: ResultDeclaration) -> str:
    return (
        "the output" if declaration.output is None else f"the model {declaration.output.__name__}"
    )


def _refuse_clashes(names_by_origin: Mapping[str, list[str]]) -> None:
    counts = Counter(name for names in names_by_origin.values() for name in names)
    for name, count in counts.items():
        if count > 1:
            sides = " and ".join(
                origin for origin, names in names_by_origin.items() if name in names
            )
            raise ResultSchemaError(
                f"the result table would have two columns {name!r}: from {sides}; rename one"
            )
