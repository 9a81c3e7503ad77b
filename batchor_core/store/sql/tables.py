"""The tables of the control plane.

Column names equal the fields of ``model.records``. Every name carries the prefix ``batchor_``,
since the database may be shared (Dagster's own has a table ``runs``). Tables, columns and stored
words are never renamed; a change here needs a migration, and a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

from batchor_core.model.states import (
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
    WaiterState,
)
from batchor_core.store.sql.types import (
    Artifact,
    Artifacts,
    FreeText,
    Instant,
    Json,
    RowNumber,
    State,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _run_id(*, primary_key: bool = False) -> Column[str]:
    target = ForeignKey("batchor_runs.run_id")
    return Column("run_id", Text, target, nullable=False, primary_key=primary_key)


stores = Table("batchor_stores", metadata, Column("store_id", Text, primary_key=True))
"""One row: the store itself."""

runs = Table(
    "batchor_runs",
    metadata,
    Column("ordinal", RowNumber, primary_key=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("namespace", Text, nullable=False),
    Column("spec", Json, nullable=False),
    Column("account", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("state", State(RunState), nullable=False),
    Column("control", State(RunControlState), nullable=False),
    Column("control_reason", FreeText),
    Column("declaration_digest", Text, nullable=False),
    Column("fingerprint", Text),
    Column("checkpoint", Json),
    Column("total_items", BigInteger, nullable=False),
    Column("error_code", Text),
    Column("error_message", FreeText),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("predecessor", Text),
    Column("reuse_done", Boolean, nullable=False),
    Column("retry_of", Text),
    Column("exported_at", Instant),
    Column("pruned", Json, nullable=False),
    Column("budget_usd", Double),
    Column("budget_day_usd", Double),
    Column("setbacks", Integer, nullable=False),
    Column("rests_until", Instant),
    Index(None, "namespace", "state", "ordinal"),  # list_runs
    Index(None, "predecessor"),  # successor_of
    Index(None, "retry_of"),  # retries_of
    sqlite_autoincrement=True,
)

leases = Table(
    "batchor_leases",
    metadata,
    _run_id(primary_key=True),
    Column("owner", Text),  # NULL: given back; the token stays, since it only ever grows
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Instant, nullable=False),
)

chunks = Table(
    "batchor_chunks",
    metadata,
    _run_id(primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("token", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("parent_seq", Integer),
    Column("item_count", BigInteger, nullable=False),
    Column("first_row", BigInteger, nullable=False),
    Column("last_row", BigInteger, nullable=False),
    Column("items", Artifact, nullable=False),
    Column("requests", Artifact, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double),
    Column("not_before", Instant),
    Column("is_duplicate", Boolean, nullable=False),
    Column("is_unwanted", Boolean, nullable=False),
    Column("state", State(ChunkState), nullable=False),
    Column("refusals", Integer, nullable=False),
    Column("results", Artifact),
    Column("error_code", Text),
    Column("error_message", FreeText),
    Index(None, "run_id", "state", "seq"),  # list_chunks, counts
)

submissions = Table(
    "batchor_submissions",
    metadata,
    Column("ordinal", RowNumber, primary_key=True),
    Column("submission_id", Text, nullable=False, unique=True),
    Column("run_id", Text, nullable=False),
    Column("chunk_seq", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("credential", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("reserved_requests", BigInteger, nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_cost_usd", Double),
    Column("state", State(SubmissionState), nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("intended_at", Instant, nullable=False),
    Column("create_allowed_until", Instant),
    Column("create_ended_at", Instant),
    Column("create_server_time", Instant),
    Column("upload_ref", Text),
    Column("provider_batch_id", Text),
    Column("provider_status", FreeText),
    Column("provider_counts", Json),
    Column("provider_result", Json),
    Column("next_poll_at", Instant),
    Column("missing_polls", Integer, nullable=False),
    Column("next_cancel_at", Instant),
    Column("activated_at", Instant),
    Column("is_provisional", Boolean, nullable=False),
    Column("ended_at", Instant),
    Column("collected_at", Instant),
    Column("outcomes", Artifact),
    Column("raw", Artifacts),
    Column("ok_count", BigInteger, nullable=False),
    Column("failed_count", BigInteger, nullable=False),
    Column("retry_count", BigInteger, nullable=False),
    Column("reused_count", BigInteger, nullable=False),
    Column("retry_at", Instant),
    Column("retries_packed", Boolean, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("cached_input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("reasoning_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double),
    Column("quarantined", BigInteger, nullable=False),
    Column("void_reason", FreeText),
    Column("voided_at", Instant),
    Column("sweep_at", Instant),
    ForeignKeyConstraint(["run_id", "chunk_seq"], ["batchor_chunks.run_id", "batchor_chunks.seq"]),
    Index(None, "run_id", "state", "ordinal"),  # list_submissions, counts, usage
    Index(None, "scope", "state"),  # the room in a scope
    Index(None, "scope", "intended_at"),  # the day's budget of a scope
    Index(None, "account", "state", "next_poll_at"),  # due_polls
    Index(None, "sweep_at"),  # due_sweeps
    Index(  # the last line of defence against paying twice: one live submission per chunk
        "uq_batchor_submissions_live_chunk",
        "run_id",
        "chunk_seq",
        unique=True,
        sqlite_where=text("state IN ('intended', 'active', 'ended')"),
        postgresql_where=text("state IN ('intended', 'active', 'ended')"),
    ),
    sqlite_autoincrement=True,
)

scopes = Table(
    "batchor_scopes",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("max_requests", BigInteger),
    Column("max_tokens", BigInteger),
    Column("max_batches", BigInteger),
    Column("backoff_until", Instant),
)

members = Table(
    "batchor_members",
    metadata,
    _run_id(primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("namespace", Text, nullable=False),
    Column("asset", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("item_count", BigInteger, nullable=False),
    Column("ok_count", BigInteger),
    Column("is_open", Boolean, nullable=False),
    Column("is_wanted", Boolean, nullable=False),
    Index(  # the last line of defence: at most one open run per identity
        "uq_batchor_members_open_identity",
        "namespace",
        "asset",
        "partition",
        unique=True,
        sqlite_where=text("is_open = 1"),  # as SQLAlchemy writes it, so that look-ups use it
        postgresql_where=text("is_open"),
    ),
    Index(None, "namespace", "asset", "partition"),  # latest_runs
)

waiters = Table(
    "batchor_waiters",
    metadata,
    Column("ordinal", RowNumber, primary_key=True),
    Column("waiter_id", Text, nullable=False, unique=True),
    _run_id(),
    Column("namespace", Text, nullable=False),
    Column("asset", Text, nullable=False),
    Column("partitions", Json, nullable=False),
    Column("payload", Json, nullable=False),
    Column("progress", Json, nullable=False),
    Column("state", State(WaiterState), nullable=False),
    Column("reason", FreeText),
    Column("version", Integer, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("demand", Text),
    Index(None, "namespace", "state", "ordinal"),  # list_waiters of a namespace
    Index(None, "run_id", "state", "ordinal"),  # list_waiters of a run, the last open one
    sqlite_autoincrement=True,
)

events = Table(
    "batchor_events",
    metadata,
    Column("sequence", RowNumber, primary_key=True),
    _run_id(),
    Column("at", Instant, nullable=False),
    Column("kind", Text, nullable=False),
    Column("data", Json, nullable=False),
    Index(None, "run_id", "sequence"),  # list_events
    sqlite_autoincrement=True,
)

heartbeats = Table(
    "batchor_heartbeats",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("every_s", Double, nullable=False),
)
