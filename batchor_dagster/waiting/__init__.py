"""Waiters: what each request asked for, the holds of their backfills, and their Dagster runs."""
