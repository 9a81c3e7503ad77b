"""Keep the answers of a rejected partition as a Parquet file that users can read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import BatchorError
from batchor_dagster.constants import META_REJECTED_URI
from batchor_dagster.resources.io_manager import BatchParquetIOManager
from batchor_dagster.step.step import Step

_MOST_NAMED = 100  # in a failure's metadata


@dataclass(frozen=True, kw_only=True)
class RejectedTables:
    """Where the tables of rejected partitions can be read.

    Attributes:
        uris: URIs of their files, by partition; empty if the asset's IO manager keeps none.
        run_id: The batch run, from which the command line can export the answers.
    """

    uris: Mapping[str, str]
    run_id: str

    @property
    def text(self) -> str:
        """Where to find the answers, for the description of a failure."""
        if not self.uris:
            return f"batchor results --run-id {self.run_id} exports the answers"
        first = next(iter(self.uris.values()))
        more = f" and {len(self.uris) - 1} more" if len(self.uris) > 1 else ""
        return f"the answers are in {first}{more}"

    @property
    def metadata(self) -> dict[str, Any]:
        """The files, for the metadata of a failure."""
        named = dict([*self.uris.items()][:_MOST_NAMED])
        if len(named) == 1:
            return {META_REJECTED_URI: dg.MetadataValue.text(*named.values())}
        return {META_REJECTED_URI: dg.MetadataValue.json(named)} if named else {}


def keep_rejected(step: Step, run_id: str, frames: Mapping[str, pl.LazyFrame]) -> RejectedTables:
    """Write the tables of rejected partitions if the IO manager is a ``BatchParquetIOManager``.

    If a file cannot be written, the log says so, and the step still fails with its verdict.

    Args:
        step: The step that rejects the partitions.
        run_id: The batch run that answered them.
        frames: Their tables, by partition; the key of an asset without partitions is empty.
    """
    manager = _io_manager(step)
    uris = {}
    if isinstance(manager, BatchParquetIOManager):
        for partition, frame in frames.items():
            try:
                uris[partition] = manager.store_rejected(
                    step.declaration.key.path, partition or None, frame
                )
            except (OSError, pl.exceptions.PolarsError, BatchorError) as exc:
                step.context.log.warning(
                    "the rejected table of %r could not be written: %s",
                    partition or step.declaration.name,
                    exc,
                )
                break
    return RejectedTables(uris=uris, run_id=run_id)


def _io_manager(step: Step) -> object:
    """Return the IO manager of the asset."""
    outputs = step.context.assets_def.keys_by_output_name
    (name,) = (name for name, key in outputs.items() if key == step.context.asset_key)
    output = step.context.op_execution_context.op_def.output_def_named(name)
    return getattr(step.context.resources, output.io_manager_key)
