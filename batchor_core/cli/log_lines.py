"""The warnings of the library, for people."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Write what is logged as a warning or worse to stderr, one line each."""
    handler = _OneLine(logging.WARNING)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        # Looked up each time: a progress bar replaces sys.stderr, to keep itself below the text.
        sys.stderr.write(f"{record.levelname.capitalize()}: {text}\n")
        sys.stderr.flush()
