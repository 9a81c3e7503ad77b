"""The step of a batch asset: as a request it asks, as a materialize run it stores the answers."""
