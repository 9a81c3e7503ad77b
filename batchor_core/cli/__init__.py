"""The command line: ``batchor``. One module per command or concern; ``main`` is the entry point."""

from batchor_core.cli.app import main

__all__ = ["main"]
