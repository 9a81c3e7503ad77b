"""Turn what a batch asset's function returns into rows that the core reads."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg
import polars as pl
import pyarrow as pa

from batchor_core import BatchItem, ConfigurationError
from batchor_core.integration import Items
from batchor_dagster.asset.pandas_frames import arrow_of_pandas, is_pandas_frame

_WANTED = (
    "return the rows: a Polars or pandas frame, a lazy frame, an Arrow table, a list of dicts, "
    "BatchItems or an item source"
)
_NOTHING = object()
_NO_ROWS = (pl.Series, str, bytes, Mapping, dg.MaterializeResult, dg.Output)


def rows_of(given: Any, asset: str) -> Items:
    """Return the rows of a function's return value, in a form that the core reads.

    A list of dicts becomes a frame with the union of their keys; a pandas frame becomes an Arrow
    table with the named levels of its index as columns.

    Raises:
        ConfigurationError: The value holds no rows, or a column has values of several types.
    """
    if is_pandas_frame(given):
        return _of_pandas(given, asset)
    if isinstance(given, _NO_ROWS) or _is_of_pandas(given):
        raise _refusal(given, asset)
    if hasattr(type(given), "blocks") or hasattr(given, "__arrow_c_stream__"):
        return given
    if isinstance(given, pl.LazyFrame) or type(given).__module__.startswith("pyarrow"):
        return given
    if not isinstance(given, Iterable):
        raise _refusal(given, asset)
    return _of_iterable(given, asset)


def _of_iterable(given: Iterable[Any], asset: str) -> Items:
    """Tell the kind of rows by the first one; read no more of a generator than needed."""
    rest: Iterator[Any] = iter(given)
    first = next(rest, _NOTHING)
    if first is _NOTHING:
        return []
    everything = itertools.chain([first], rest) if rest is given else given
    if isinstance(first, BatchItem):
        return everything
    if not isinstance(first, Mapping):
        raise _refusal(given, asset, f" of {type(first).__name__}")
    return _of_dicts(list(everything), asset)


def _of_dicts(rows: list[Any], asset: str) -> pl.DataFrame:
    odd = next((row for row in rows if not isinstance(row, Mapping)), None)
    if odd is not None:
        raise _refusal(rows, asset, f" of dicts and {type(odd).__name__}")
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:
        raise _refusal(rows, asset, " of empty dicts")
    return pl.DataFrame([_column(name, [row.get(name) for row in rows], asset) for name in names])


def _column(name: Any, values: list[Any], asset: str) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    try:
        return pl.Series(str(name), values, strict=kinds != {int, float})
    except (TypeError, pl.exceptions.PolarsError):
        told = " and ".join(sorted(kind.__name__ for kind in kinds))
        # Without the cause: it quotes a value.
        raise ConfigurationError(
            f"the dicts that {asset!r} returned hold {told} under {name!r}: give the values of a "
            "key one type"
        ) from None


def _is_of_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas"


def _of_pandas(given: Any, asset: str) -> pa.Table:
    try:
        return arrow_of_pandas(given)
    except (pa.ArrowException, TypeError, ValueError):  # quotes a value, so it is no cause
        raise ConfigurationError(
            f"a column of the pandas frame that {asset!r} returned holds values of several types: "
            "give each column one type, as with astype"
        ) from None


def _refusal(given: Any, asset: str, of_what: str = "") -> ConfigurationError:
    kind = "nothing" if given is None else f"a {type(given).__name__}{of_what}"
    return ConfigurationError(f"the function of {asset!r} returned {kind}: {_WANTED}")
