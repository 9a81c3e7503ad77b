"""Pandas frames, which are taken wherever somebody has imported pandas."""

import sys
from typing import Any

import pyarrow as pa


def is_pandas_frame(value: object) -> bool:
    """Whether a value is a pandas frame; pandas is not imported for it."""
    pandas = sys.modules.get("pandas")  # who has a pandas frame has imported it
    return pandas is not None and isinstance(value, pandas.DataFrame)


def arrow_of_pandas(frame: Any) -> pa.Table:
    """Return a pandas frame's columns, and those levels of its index that have a name.

    Raises:
        pyarrow.ArrowException: A column has values of several types; the text quotes one. Some
            raise TypeError or ValueError instead.
    """
    named = [name for name in frame.index.names if name is not None]
    return pa.Table.from_pandas(frame.reset_index(level=named), preserve_index=False)
