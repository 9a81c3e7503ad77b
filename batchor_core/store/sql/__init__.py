"""The control plane on SQLAlchemy Core, split by aggregate."""

from batchor_core.store.sql.store import PostgresStorage, SQLiteStorage, SqlStore

__all__ = ["PostgresStorage", "SQLiteStorage", "SqlStore"]
