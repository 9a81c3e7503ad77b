"""``BatchMaterializeResult``: the result of materializing batch assets in a test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from batchor_core import RunSummary

AssetName = dg.AssetKey | str
"""An asset key, or its text as ``a/b``."""


@dataclass(frozen=True, kw_only=True)
class BatchMaterializeResult:
    """The result of ``materialize_batch_assets``.

    Attributes:
        success: Whether every selected asset was materialized for every requested partition, and no
            blocking check failed.
        problems: Why assets were not materialized, as texts; assets that only lack an upstream
            asset are not named.
        requests: The requests, in order.
        dagster_runs: The requests, then the materialize runs that the sensor launched.
        batch_runs: The batch runs of this call, with their counts and costs, oldest first.
        ledger: The simulator's report since it was started: its batches, how many requests it
            executed (``executed``), and each of them (``entries``).
        folder: Where the state and, unless you gave another IO manager, the results are. A folder
            that was not given is removed together with the result.
        instance: The Dagster instance.
        definitions: The definitions that were run.
    """

    success: bool
    problems: Sequence[str]
    requests: Sequence[dg.ExecuteInProcessResult]
    dagster_runs: Sequence[dg.ExecuteInProcessResult]
    batch_runs: Sequence[RunSummary]
    ledger: Mapping[str, Any]
    folder: Path
    instance: dg.DagsterInstance
    definitions: dg.Definitions

    @property
    def executed_requests(self) -> int:
        """How many requests the simulator has executed since it was started."""
        return int(self.ledger["executed"])

    def value(
        self, asset: AssetName, partition_key: str | None = None, *, python_type: Any = pl.DataFrame
    ) -> Any:
        """Load an asset, or one of its partitions, with its IO manager.

        Args:
            asset: Any asset of the code location.
            partition_key: One of its partitions.
            python_type: The type to load.
        """
        return self.definitions.load_asset_value(
            _key(asset),
            python_type=python_type,
            partition_key=partition_key,
            instance=self.instance,
        )

    def table(self, asset: AssetName, partition_key: str | None = None) -> pl.DataFrame:
        """Return the stored table of an asset or of one of its partitions."""
        table = self.value(asset, partition_key)
        assert isinstance(table, pl.DataFrame)
        return table

    def materializations(self, asset: AssetName) -> list[dg.AssetMaterialization]:
        """Return an asset's materializations, oldest first."""
        key = _key(asset)
        found = [
            event.step_materialization_data.materialization
            for run in self.dagster_runs
            for event in run.get_asset_materialization_events()
        ]
        return [each for each in found if each.asset_key == key]

    def partitions(self, asset: AssetName) -> list[str | None]:
        """Return the partitions of an asset that were materialized, oldest first."""
        return [each.partition for each in self.materializations(asset)]

    def metadata(self, asset: AssetName, partition_key: str | None = None) -> dict[str, Any]:
        """Return the metadata of an asset's newest materialization, as plain values.

        Raises:
            KeyError: The asset, or the partition, was not materialized.
        """
        for each in reversed(self.materializations(asset)):
            if partition_key in (None, each.partition):
                return {name: entry.value for name, entry in each.metadata.items()}
        raise KeyError(
            f"{_key(asset).to_user_string()!r} {partition_key or ''} was not materialized"
        )

    def checks(self, asset: AssetName) -> list[dg.AssetCheckEvaluation]:
        """Return the evaluations of an asset's checks, oldest first."""
        key = _key(asset)
        found = [check for run in self.dagster_runs for check in run.get_asset_check_evaluations()]
        return [each for each in found if each.asset_key == key]


def _key(asset: AssetName) -> dg.AssetKey:
    return asset if isinstance(asset, dg.AssetKey) else dg.AssetKey.from_user_string(asset)
