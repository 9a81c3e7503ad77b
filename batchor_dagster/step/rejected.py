"""Keeping what a partition was answered that is not materialized, so that it can be looked at."""

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
        uris: Of their files, by partition; empty where the asset's IO manager keeps none.
        run_id: The batch run that has the answers in any case.
    """

    uris: Mapping[str, str]
    run_id: str

    @property
    def text(self) -> str:
        """Where to look, for the description of a failure."""
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
    """Write the tables of rejected partitions beside the stored ones, if the IO manager is ours.

    What cannot be written is told in the log: the verdict is not held up by it.

    Args:
        step: The step that rejects them.
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
    """Return the IO manager that would have been given the asset's table."""
    outputs = step.context.assets_def.keys_by_output_name
    (name,) = (name for name, key in outputs.items() if key == step.context.asset_key)
    output = step.context.op_execution_context.op_def.output_def_named(name)
    return getattr(step.context.resources, output.io_manager_key)
