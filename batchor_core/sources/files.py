"""Which source reads a file, by the ending of its name."""

import os

from batchor_core.errors import SourceError
from batchor_core.sources.csv import CsvItemSource
from batchor_core.sources.jsonl import JsonlItemSource
from batchor_core.sources.parquet import ParquetItemSource
from batchor_core.sources.protocol import CheckpointedItemSource
from batchor_core.sources.streams import InputFile


def open_source(
    path: str | os.PathLike[str], id_column: str | None = None
) -> CheckpointedItemSource:
    """Return the source for a ``.csv``, ``.jsonl``, ``.ndjson`` or ``.parquet`` file.

    The first three may be compressed (``.csv.gz``, ``.jsonl.zst``). The file is not opened yet.

    Args:
        path: Local path or fsspec URL.
        id_column: Column that holds the items' keys; None: the row number is the key.

    Raises:
        SourceError: The name ends in something else.
    """
    file = InputFile(path)
    match file.suffixes:
        case (".csv", _):
            return CsvItemSource(path, id_column)
        case (".jsonl" | ".ndjson", _):
            return JsonlItemSource(path, id_column)
        case (".parquet", ""):
            return ParquetItemSource(path, id_column)
        case _:
            raise SourceError(
                f"cannot tell what {file.label!r} holds: its name must end in .csv, .jsonl, "
                ".ndjson (or these with .gz or .zst) or .parquet"
            )
