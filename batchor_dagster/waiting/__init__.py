"""Who waits for answers, what keeps their backfills open, and how they are served."""
