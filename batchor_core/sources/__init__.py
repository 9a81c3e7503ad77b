"""Where items come from: files, frames and Python objects, read in blocks that can be reopened."""

from batchor_core.sources.csv import CsvItemSource
from batchor_core.sources.files import open_source
from batchor_core.sources.frames import FrameItemSource
from batchor_core.sources.items import BatchItemSource
from batchor_core.sources.jsonl import JsonlItemSource
from batchor_core.sources.parquet import ParquetItemSource
from batchor_core.sources.protocol import (
    BLOCK_ROWS,
    CheckpointedItemSource,
    ItemBlock,
    ItemSource,
    Position,
)
from batchor_core.sources.rows import items_of, rows_as_dicts

__all__ = [
    "BLOCK_ROWS",
    "BatchItemSource",
    "CheckpointedItemSource",
    "CsvItemSource",
    "FrameItemSource",
    "ItemBlock",
    "ItemSource",
    "JsonlItemSource",
    "ParquetItemSource",
    "Position",
    "items_of",
    "open_source",
    "rows_as_dicts",
]
