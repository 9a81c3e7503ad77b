"""The control plane: what a batch run is doing. Rows of data never enter it."""
