"""The definitions, one module each."""
