"""Cutting items' lines out of sealed request files: prompts are never rebuilt."""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

_BATCH_ROWS = 4096


class ItemLines:
    """Reads lines of one request file by the offsets in its items file.

    Args:
        path: The checked request file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def of(self, items: pa.Table) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield (item, line) in the table's order, a few thousand rows at a time in memory."""
        assert self._file is not None
        columns = [
            "row",
            "item_id",
            "request_key",
            "attempts",
            "offset",
            "length",
            "tokens",
            "member",
        ]
        for batch in items.select(columns).to_batches(max_chunksize=_BATCH_ROWS):
            for item in batch.to_pylist():
                self._file.seek(item["offset"])
                yield item, self._file.read(item["length"])

    def __enter__(self) -> "ItemLines":
        self._file = self._path.open("rb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
