"""The first schema."""

import sqlalchemy as sa
from alembic import op

from batchor_core.ids import new_store_id

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_stores()
    _create_runs()
    _create_scopes()
    _create_chunks()
    _create_events()
    _create_leases()
    _create_members()
    _create_waiters()
    _create_submissions()
    _create_heartbeats()


def _create_stores() -> None:
    stores = op.create_table(
        "batchor_stores",
        sa.Column("store_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("store_id", name=op.f("pk_batchor_stores")),
    )
    op.bulk_insert(stores, [{"store_id": new_store_id()}])


def _create_runs() -> None:
    op.create_table(
        "batchor_runs",
        sa.Column("ordinal", _ROW_NUMBER, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("control", sa.Text(), nullable=False),
        sa.Column("control_reason", sa.Text()),
        sa.Column("declaration_digest", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("checkpoint", sa.Text()),
        sa.Column("total_items", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("predecessor", sa.Text()),
        sa.Column("reuse_done", sa.Boolean(), nullable=False),
        sa.Column("retry_of", sa.Text()),
        sa.Column("exported_at", sa.BigInteger()),
        sa.Column("pruned", sa.Text(), nullable=False),
        sa.Column("budget_usd", sa.Double()),
        sa.Column("budget_day_usd", sa.Double()),
        sa.Column("setbacks", sa.Integer(), nullable=False),
        sa.Column("rests_until", sa.BigInteger()),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_batchor_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_batchor_runs_run_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_batchor_runs_predecessor"),
        "batchor_runs",
        ["predecessor"],
    )
    op.create_index(
        op.f("ix_batchor_runs_retry_of"),
        "batchor_runs",
        ["retry_of"],
    )
    op.create_index(
        op.f("ix_batchor_runs_namespace_state_ordinal"),
        "batchor_runs",
        ["namespace", "state", "ordinal"],
    )


def _create_scopes() -> None:
    op.create_table(
        "batchor_scopes",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("max_requests", sa.BigInteger()),
        sa.Column("max_tokens", sa.BigInteger()),
        sa.Column("max_batches", sa.BigInteger()),
        sa.Column("backoff_until", sa.BigInteger()),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_batchor_scopes")),
    )


def _create_chunks() -> None:
    op.create_table(
        "batchor_chunks",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("parent_seq", sa.Integer()),
        sa.Column("item_count", sa.BigInteger(), nullable=False),
        sa.Column("first_row", sa.BigInteger(), nullable=False),
        sa.Column("last_row", sa.BigInteger(), nullable=False),
        sa.Column("items", sa.Text(), nullable=False),
        sa.Column("requests", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Double()),
        sa.Column("not_before", sa.BigInteger()),
        sa.Column("is_duplicate", sa.Boolean(), nullable=False),
        sa.Column("is_unwanted", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("refusals", sa.Integer(), nullable=False),
        sa.Column("results", sa.Text()),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.ForeignKeyConstraint(
            ["run_id"], ["batchor_runs.run_id"], name=op.f("fk_batchor_chunks_run_id")
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_batchor_chunks")),
    )
    op.create_index(
        op.f("ix_batchor_chunks_run_id_state_seq"), "batchor_chunks", ["run_id", "state", "seq"]
    )


def _create_events() -> None:
    op.create_table(
        "batchor_events",
        sa.Column("sequence", _ROW_NUMBER, nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["batchor_runs.run_id"], name=op.f("fk_batchor_events_run_id")
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_batchor_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_batchor_events_run_id_sequence"), "batchor_events", ["run_id", "sequence"]
    )


def _create_leases() -> None:
    op.create_table(
        "batchor_leases",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["batchor_runs.run_id"], name=op.f("fk_batchor_leases_run_id")
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_batchor_leases")),
    )


def _create_members() -> None:
    op.create_table(
        "batchor_members",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("asset", sa.Text(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("item_count", sa.BigInteger(), nullable=False),
        sa.Column("ok_count", sa.BigInteger()),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("is_wanted", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["batchor_runs.run_id"], name=op.f("fk_batchor_members_run_id")
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_batchor_members")),
    )
    op.create_index(
        op.f("ix_batchor_members_namespace_asset_partition"),
        "batchor_members",
        ["namespace", "asset", "partition"],
    )
    op.create_index(
        op.f("uq_batchor_members_open_identity"),
        "batchor_members",
        ["namespace", "asset", "partition"],
        unique=True,
        sqlite_where=sa.text("is_open = 1"),
        postgresql_where=sa.text("is_open"),
    )


def _create_waiters() -> None:
    op.create_table(
        "batchor_waiters",
        sa.Column("ordinal", _ROW_NUMBER, nullable=False),
        sa.Column("waiter_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("asset", sa.Text(), nullable=False),
        sa.Column("partitions", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("demand", sa.Text()),
        sa.ForeignKeyConstraint(
            ["run_id"], ["batchor_runs.run_id"], name=op.f("fk_batchor_waiters_run_id")
        ),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_batchor_waiters")),
        sa.UniqueConstraint("waiter_id", name=op.f("uq_batchor_waiters_waiter_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_batchor_waiters_namespace_state_ordinal"),
        "batchor_waiters",
        ["namespace", "state", "ordinal"],
    )
    op.create_index(
        op.f("ix_batchor_waiters_run_id_state_ordinal"),
        "batchor_waiters",
        ["run_id", "state", "ordinal"],
    )


def _create_submissions() -> None:
    op.create_table(
        "batchor_submissions",
        sa.Column("ordinal", _ROW_NUMBER, nullable=False),
        sa.Column("submission_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("chunk_seq", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("reserved_requests", sa.BigInteger(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reserved_cost_usd", sa.Double()),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("intended_at", sa.BigInteger(), nullable=False),
        sa.Column("create_allowed_until", sa.BigInteger()),
        sa.Column("create_ended_at", sa.BigInteger()),
        sa.Column("create_server_time", sa.BigInteger()),
        sa.Column("upload_ref", sa.Text()),
        sa.Column("provider_batch_id", sa.Text()),
        sa.Column("provider_status", sa.Text()),
        sa.Column("provider_counts", sa.Text()),
        sa.Column("provider_result", sa.Text()),
        sa.Column("next_poll_at", sa.BigInteger()),
        sa.Column("missing_polls", sa.Integer(), nullable=False),
        sa.Column("next_cancel_at", sa.BigInteger()),
        sa.Column("activated_at", sa.BigInteger()),
        sa.Column("is_provisional", sa.Boolean(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("collected_at", sa.BigInteger()),
        sa.Column("outcomes", sa.Text()),
        sa.Column("raw", sa.Text()),
        sa.Column("ok_count", sa.BigInteger(), nullable=False),
        sa.Column("failed_count", sa.BigInteger(), nullable=False),
        sa.Column("retry_count", sa.BigInteger(), nullable=False),
        sa.Column("reused_count", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.BigInteger()),
        sa.Column("retries_packed", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_usd", sa.Double()),
        sa.Column("quarantined", sa.BigInteger(), nullable=False),
        sa.Column("void_reason", sa.Text()),
        sa.Column("voided_at", sa.BigInteger()),
        sa.Column("sweep_at", sa.BigInteger()),
        sa.ForeignKeyConstraint(
            ["run_id", "chunk_seq"],
            ["batchor_chunks.run_id", "batchor_chunks.seq"],
            name=op.f("fk_batchor_submissions_run_id_chunk_seq"),
        ),
        sa.PrimaryKeyConstraint("ordinal", name=op.f("pk_batchor_submissions")),
        sa.UniqueConstraint("submission_id", name=op.f("uq_batchor_submissions_submission_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        op.f("ix_batchor_submissions_account_state_next_poll_at"),
        "batchor_submissions",
        ["account", "state", "next_poll_at"],
    )
    op.create_index(
        op.f("ix_batchor_submissions_sweep_at"),
        "batchor_submissions",
        ["sweep_at"],
    )
    op.create_index(
        op.f("ix_batchor_submissions_run_id_state_ordinal"),
        "batchor_submissions",
        ["run_id", "state", "ordinal"],
    )
    op.create_index(
        op.f("ix_batchor_submissions_scope_state"), "batchor_submissions", ["scope", "state"]
    )
    op.create_index(
        op.f("ix_batchor_submissions_scope_intended_at"),
        "batchor_submissions",
        ["scope", "intended_at"],
    )
    op.create_index(
        op.f("uq_batchor_submissions_live_chunk"),
        "batchor_submissions",
        ["run_id", "chunk_seq"],
        unique=True,
        sqlite_where=sa.text("state IN ('intended', 'active', 'ended')"),
        postgresql_where=sa.text("state IN ('intended', 'active', 'ended')"),
    )


def _create_heartbeats() -> None:
    op.create_table(
        "batchor_heartbeats",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("every_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", name=op.f("pk_batchor_heartbeats")),
    )
