"""What runs inside a Dagster run of a batch asset: the request, or the materialization."""
