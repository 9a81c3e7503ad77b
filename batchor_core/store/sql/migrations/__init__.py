"""The schema's history. Released migrations are never edited; each change adds one."""

import threading
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from batchor_core.errors import StoreError
from batchor_core.store.sql.engine import Database

HEAD = "0001"
"""The newest revision; a test compares it with the files in ``versions``."""

VERSION_TABLE = "batchor_schema_version"
"""Ours alone, since the database may hold another program's ``alembic_version``."""


_ONE_AT_A_TIME = threading.Lock()
"""Alembic's ``op`` and ``context`` belong to the process: two threads that open new stores at once
would make each other's tables."""


def upgrade(database: Database) -> None:
    """Bring the schema up to date: one SELECT where it is, else all missing migrations or none.

    Any number of processes may call it at once: one migrates, the others wait and find it done.

    Raises:
        StoreError: The database was written by a newer version of this library.
    """
    with database.read() as connection:
        if schema_version(connection) == HEAD:
            return
    with database.migration() as connection:
        version = schema_version(connection)
        if version != HEAD:
            with _ONE_AT_A_TIME:
                _migrate(connection, version, database.location)


def schema_version(connection: Connection) -> str | None:
    """Return the revision that a database is at; None for one without our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    statement = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - a constant
    version: str | None = connection.execute(statement).scalar_one_or_none()
    return version


def _migrate(connection: Connection, version: str | None, location: str) -> None:
    # Imported here: alembic takes longer to import than all else, and most processes find the
    # schema up to date.
    from alembic import command  # noqa: PLC0415 - see above
    from alembic.config import Config  # noqa: PLC0415 - see above
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see above

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise StoreError(
            f"{location} has schema {version!r}, which this version of batchor-dagster does not "
            f"know (its newest is {HEAD!r}): upgrade batchor-dagster, or use another store"
        )
    command.upgrade(config, "head")
