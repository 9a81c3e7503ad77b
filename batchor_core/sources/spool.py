"""Rows that can be read only once, or not from the middle: read once, then kept on this machine."""

import pickle
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import IO, Generic, NamedTuple, Protocol, Self, TypeVar

import zstandard

from batchor_core.errors import SourceError


class _Rows(Sized, Protocol):
    def __getitem__(self, rows: slice, /) -> Self: ...


Rows = TypeVar("Rows", bound=_Rows)


class _Place(NamedTuple):
    """Where some consecutive rows stand in the file."""

    first_row: int
    end_row: int
    offset: int
    size_bytes: int


class Spool(Generic[Rows]):
    """The rows of an input, read to its end when they are first asked for, then from a file.

    The file is a compressed one in the folder for temporary files (``TMPDIR``). It has no name, so
    that it is gone with the process, however that ends; no other process can see it. Reading from
    it starts at any row. May be used by several threads at once.

    Args:
        read: Opens the input; it yields lists of rows, or frames, none of them empty.
        label: What messages call it.
        is_once: Whether the input is used up by being read, even in part.
    """

    def __init__(self, read: Callable[[], Iterator[Rows]], label: str, *, is_once: bool) -> None:
        self._read = read
        self._label = label
        self._is_once = is_once
        self._is_used_up = False
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._places: list[_Place] = []

    def blocks(self, row: int = 0) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, rows) from a row on.

        Raises:
            SourceError: There are fewer rows, the disk is full, a value cannot be written, or the
                input was used up by a reading that failed.
        """
        with self._lock:
            file = self._file or self._filled()
        total = self._places[-1].end_row if self._places else 0
        if row and row >= total:  # a block's position is always that of a row
            raise SourceError(f"{self._label}: there is no row {row}, only {total}")
        for place in self._places:
            if place.end_row > row:
                rows = self._rows_at(file, place)
                skipped = max(row - place.first_row, 0)
                yield place.first_row + skipped, rows[skipped:] if skipped else rows

    def _filled(self) -> IO[bytes]:
        if self._is_used_up:
            raise SourceError(
                f"{self._label}: a first reading of it has failed, and it cannot be read twice; "
                "start the run again with a new one"
            )
        self._is_used_up = self._is_once
        places: list[_Place] = []
        file: IO[bytes] = tempfile.TemporaryFile(prefix="batchor-spool-")  # noqa: SIM115 - kept
        try:
            self._fill(file, places)
        except BaseException:
            file.close()
            raise
        weakref.finalize(self, file.close)
        self._places, self._file = places, file
        return file

    def _fill(self, file: IO[bytes], places: list[_Place]) -> None:
        row = offset = 0
        for rows in self._read():
            data = self._encoded(rows, row)
            try:
                file.write(data)
                file.flush()
            except OSError as error:
                raise SourceError(
                    f"{self._label} cannot be kept in the folder for temporary files "
                    f"({error.strerror}): name a larger one in TMPDIR"
                ) from error
            places.append(_Place(row, row + len(rows), offset, len(data)))
            row += len(rows)
            offset += len(data)

    def _encoded(self, rows: Rows, first_row: int) -> bytes:
        try:
            return zstandard.compress(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL), 1)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise SourceError(
                f"{self._label}, rows {first_row} to {first_row + len(rows) - 1}: a value cannot "
                f"be pickled ({error}); pass a list, which needs no copy on disk"
            ) from error

    def _rows_at(self, file: IO[bytes], place: _Place) -> Rows:
        with self._lock:
            file.seek(place.offset)
            data = file.read(place.size_bytes)
        rows: Rows = pickle.loads(zstandard.decompress(data))  # noqa: S301 - written by us, above
        return rows
