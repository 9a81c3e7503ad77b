"""Which source reads what a user hands in."""

from collections.abc import Iterable
from typing import Any

import polars as pl
import pyarrow.dataset as pads

from batchor_core.errors import ConfigurationError
from batchor_core.sources.frames import FrameItemSource
from batchor_core.sources.items import BatchItemSource
from batchor_core.sources.protocol import ItemSource


def source_of(items: Any, id_column: str | None = None) -> ItemSource:
    """Return the source of items, of a frame or of an Arrow object; a source stays what it is.

    Args:
        items: What a job's ``items`` may be.
        id_column: Column that holds the keys of a frame's rows.

    Raises:
        ConfigurationError: Rows cannot be read from it.
    """
    if hasattr(type(items), "blocks"):
        return items  # type: ignore[no-any-return]  # a protocol; checked by its use
    if isinstance(items, (pl.LazyFrame, pads.Dataset)) or hasattr(items, "__arrow_c_stream__"):
        return FrameItemSource(items, id_column)
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise ConfigurationError(
            f"items is a {type(items).__name__}: give BatchItems, a frame or a source (a file is "
            "opened with batchor_core.open_source)"
        )
    return BatchItemSource(items)
