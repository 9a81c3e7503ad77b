"""``python -m batchor_core.cli`` is ``batchor``."""

from batchor_core.cli.app import main

main(prog_name="batchor")
