"""The cycle that advances one batch run: bounded steps, each of which may run twice."""
