"""The two sensors of a code location, and the op job that does what is heavy."""
