"""Alembic's entry: migrates on the connection that it is handed, inside its transaction."""

from alembic import context

from batchor_core.store.sql.migrations import VERSION_TABLE
from batchor_core.store.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
)
context.run_migrations()
