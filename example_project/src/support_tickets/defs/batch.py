"""What batch assets need beside themselves: sensors, resources, and a place for results."""

import dagster as dg

from batchor_dagster import (
    BatchorResource,
    BatchParquetIOManager,
    OpenAIBatchResource,
    build_batch_sensors,
)
from support_tickets.settings import HOME, POLL_SECONDS, SENSOR_SECONDS


@dg.definitions
def batch() -> dg.Definitions:
    """Bundle them."""
    return dg.Definitions(
        # They find the batch assets of the project by themselves, in Python and in YAML.
        sensors=build_batch_sensors(minimum_interval_seconds=SENSOR_SECONDS),
        resources={
            "batchor": BatchorResource(
                state=str(HOME / "state.sqlite3"),
                artifacts=str(HOME / "artifacts"),
                poll_s=POLL_SECONDS,
            ),
            # Without base_url the SDK goes to $OPENAI_BASE_URL, else to OpenAI.
            "openai": OpenAIBatchResource(api_key=dg.EnvVar("OPENAI_API_KEY")),
            "io_manager": BatchParquetIOManager(base_path=str(HOME / "results")),
        },
        executor=dg.in_process_executor,
    )
