"""What ``dagster dev`` and ``dg`` load: everything under ``defs``."""

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """Collect the assets, sensors and resources."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
