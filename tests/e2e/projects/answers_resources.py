"""What the code locations of the answers story share: one store, one provider, one folder."""

from pathlib import Path
from typing import Any

import dagster as dg

from batchor_dagster import BatchorResource, BatchParquetIOManager, HoldKind, OpenAIBatchResource


def resources(folder: Path, hold: HoldKind = HoldKind.QUEUED) -> dict[str, Any]:
    """Return the resources of one code location."""
    return {
        "batchor": BatchorResource(
            state=str(folder / "state.sqlite3"),
            artifacts=str(folder / "artifacts"),
            poll_s=2,
            hold=hold.value,
        ),
        "openai": OpenAIBatchResource(
            api_key=dg.EnvVar("OPENAI_API_KEY"), base_url=dg.EnvVar("OPENAI_BASE_URL")
        ),
        "io_manager": BatchParquetIOManager(base_path=str(folder / "out")),
    }
