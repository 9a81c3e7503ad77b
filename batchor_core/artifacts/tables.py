"""The Parquet files of the data plane, as Arrow schemas.

Column names are stored: they are never renamed.
"""

import pyarrow as pa

ITEM_FIELDS = (
    pa.field("row", pa.int64(), nullable=False),
    pa.field("item_id", pa.string(), nullable=False),
    pa.field("request_key", pa.binary(16), nullable=False),
    pa.field("attempts", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("length", pa.int32(), nullable=False),
    pa.field("tokens", pa.int32(), nullable=False),
    pa.field("member", pa.int32(), nullable=False),
    pa.field("request", pa.int32(), nullable=False),
)
"""Of every items file. ``offset`` and ``length`` say where the item's line lies in the request file
beside it (of an input that shares its request with others: its piece), ``request`` the number of
the line, from 0."""

KEPT, METADATA = "kept", "metadata"
"""Further columns in chunks of round 0: a struct of the kept columns, and JSON of the item."""

OUTPUT = "output"
"""In outcome files of structured runs: a struct with the output model's fields."""

OUTCOME_FIELDS = (
    pa.field("row", pa.int64(), nullable=False),
    pa.field("verdict", pa.string(), nullable=False),
    pa.field("attempts", pa.int32(), nullable=False),
    pa.field("error_code", pa.string()),
    pa.field("error_message", pa.string()),
    pa.field("text", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("model", pa.string()),
    pa.field("input_tokens", pa.int64()),
    pa.field("cached_input_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("reasoning_tokens", pa.int64()),
    pa.field("cost_usd", pa.float64()),
    pa.field("request_id", pa.string()),
    pa.field("reused", pa.bool_(), nullable=False),
)
"""``text``: the answer as the provider gave it, valid or not. ``reused``: whether an earlier run's
request was answered so; tokens and cost are then what it cost now: nothing."""

ITEMS_SCHEMA = pa.schema(ITEM_FIELDS)


def outcome_schema(output: pa.Schema | None) -> pa.Schema:
    """Return the schema of outcome files; ``output`` holds the model's columns, if any."""
    fields = list(OUTCOME_FIELDS)
    if output is not None:
        fields.append(pa.field(OUTPUT, pa.struct(list(output))))
    return pa.schema(fields)
