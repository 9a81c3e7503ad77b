"""The result table: how it is joined, and how it is read."""
