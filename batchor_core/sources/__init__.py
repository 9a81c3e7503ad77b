"""Where items come from: files, frames, queries and Python objects, in blocks to go on from."""

from batchor_core.sources.composite import CompositeItemSource
from batchor_core.sources.csv import CsvItemSource
from batchor_core.sources.files import FilesItemSource, open_source
from batchor_core.sources.frames import FrameItemSource
from batchor_core.sources.items import BatchItemSource
from batchor_core.sources.jsonl import JsonlItemSource
from batchor_core.sources.objects import source_of
from batchor_core.sources.parquet import ParquetItemSource
from batchor_core.sources.protocol import (
    BLOCK_ROWS,
    LINEAGE,
    CheckpointedItemSource,
    ItemBlock,
    ItemSource,
    Position,
)
from batchor_core.sources.rows import items_of, rows_as_dicts
from batchor_core.sources.sql import SqlItemSource

__all__ = [
    "BLOCK_ROWS",
    "LINEAGE",
    "BatchItemSource",
    "CheckpointedItemSource",
    "CompositeItemSource",
    "CsvItemSource",
    "FilesItemSource",
    "FrameItemSource",
    "ItemBlock",
    "ItemSource",
    "JsonlItemSource",
    "ParquetItemSource",
    "Position",
    "SqlItemSource",
    "items_of",
    "open_source",
    "rows_as_dicts",
    "source_of",
]
