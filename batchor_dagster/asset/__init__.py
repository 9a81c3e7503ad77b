"""The definition of a batch asset: declaration, options, checks, metadata, lineage."""
