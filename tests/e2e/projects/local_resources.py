"""What the code locations of the stories have: a store, a provider, a folder on this machine."""

from pathlib import Path
from typing import Any

import dagster as dg

from batchor_dagster import BatchorResource, BatchParquetIOManager, HoldKind, OpenAIBatchResource


def resources(folder: Path, hold: HoldKind = HoldKind.QUEUED, **settings: Any) -> dict[str, Any]:
    """Return the resources of one code location.

    Args:
        folder: For state, artifacts and outputs.
        hold: How backfills are kept open.
        settings: Others of :class:`BatchorResource`.
    """
    return {
        "batchor": BatchorResource(
            state=str(folder / "state.sqlite3"),
            artifacts=str(folder / "artifacts"),
            poll_s=2,
            hold=hold.value,
            **settings,
        ),
        "openai": OpenAIBatchResource(
            api_key=dg.EnvVar("OPENAI_API_KEY"), base_url=dg.EnvVar("OPENAI_BASE_URL")
        ),
        "io_manager": BatchParquetIOManager(base_path=str(folder / "out")),
    }
