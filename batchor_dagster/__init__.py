"""LLM batch APIs as partitioned Dagster assets."""
