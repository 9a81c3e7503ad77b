"""What came of materializing batch assets in a test."""

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
    """The outcome of ``materialize_batch_assets``.

    Attributes:
        success: Whether every asset that was selected is materialized, for each partition that was
            asked for, and no blocking check of theirs has failed.
        problems: Why something is not there, for people; what only lacks what it builds on is not
            named.
        requests: The Dagster runs that asked, in their order.
        dagster_runs: All Dagster runs of assets: those that asked, and those that the sensor
            launched to materialize what was answered.
        batch_runs: The batch runs that were opened, with their counts and costs, oldest first.
        ledger: What the simulated provider knows since it was started: its batches, how many
            requests it executed (``executed``), and each of them (``entries``).
        folder: Where the state and, unless you gave another IO manager, the results are. A folder
            that was not given is removed together with the result.
        instance: The Dagster instance.
        definitions: What was run.
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
        """How many requests the provider has executed since it was started."""
        return int(self.ledger["executed"])

    def value(
        self, asset: AssetName, partition_key: str | None = None, *, python_type: Any = pl.DataFrame
    ) -> Any:
        """Return what is stored of an asset or of one of its partitions, by its IO manager.

        Args:
            asset: Any asset of the code location.
            partition_key: One of its partitions.
            python_type: What the IO manager is asked for.
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
            KeyError: It was not materialized.
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
