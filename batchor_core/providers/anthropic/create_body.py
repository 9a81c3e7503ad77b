"""The body of a create call, made from a request file while it is sent."""

import time
from collections.abc import Iterator
from pathlib import Path

_BLOCK_BYTES = 1 << 20


class CreateBody:
    r"""The requests of a file, as one JSON object; never in memory as a whole.

    Args:
        path: A request file: lines, each ending in ``\n``.
        budget_s: How long sending may take.

    Attributes:
        size: Of the whole body, in bytes.
    """

    _BEGIN, _END = b'{"requests":[', b"]}"

    def __init__(self, path: Path, budget_s: float) -> None:
        self._path = path
        self._budget_s = budget_s
        self.size = len(self._BEGIN) + path.stat().st_size - 1 + len(self._END)

    def __iter__(self) -> Iterator[bytes]:
        r"""Yield the lines, with commas for the ``\n`` between them, which JSON texts never hold.

        Raises:
            TimeoutError: Sending takes longer than it may.
        """
        end = time.monotonic() + self._budget_s
        yield self._BEGIN
        left = self._path.stat().st_size - 1  # without the last line's end
        with self._path.open("rb") as file:
            while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
                if time.monotonic() > end:
                    raise TimeoutError("sending the requests takes too long")
                left -= len(block)
                yield block.replace(b"\n", b",")
        yield self._END
