"""What a code location defines now, and for how long ticks have seen it like this."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.partitions import DefinedPartitions, partitions_defs

_LONGEST_GAP_S = 300.0
"""A longer gap between two ticks counts as this long: nobody saw what was defined meanwhile."""


class Seen(BaseModel):
    """How the latest ticks saw an asset defined.

    Attributes:
        definition: A digest of its partitions definition; None if the asset was not defined.
        for_s: For how many seconds ticks have seen the same.
    """

    model_config = ConfigDict(frozen=True)

    definition: str | None
    for_s: float = 0.0


class CodeLocation:
    """The batch assets that the sensors of a code location serve, during one tick.

    A definition that is missing for a moment (a rollback, another environment) must not cancel
    batches that were paid for. So an asset counts as gone only after ticks have missed it for
    ``gone_after_s`` seconds.

    Args:
        declarations: The batch assets, by name.
        repository: The code location's definitions.
        label: Of the repository, as ``name@location``; None for one that is not deployed.
        only: The assets that the sensors serve; None for all of the repository.
        gone_after_s: Seconds after which a missing definition counts as gone.
        instance: Holds the dynamic partitions.
    """

    def __init__(
        self,
        declarations: Mapping[str, BatchAssetDeclaration],
        repository: dg.RepositoryDefinition,
        label: str | None,
        *,
        only: frozenset[str] | None,
        gone_after_s: float,
        instance: dg.DagsterInstance,
    ) -> None:
        self.declarations = declarations
        self.repository = repository
        self.partitions = DefinedPartitions(instance)
        self._label = label
        self._only = only
        self._gone_after_s = gone_after_s
        self._seen: Mapping[str, Seen] = {}

    def see(
        self, assets: Iterable[str], before: Mapping[str, Seen], elapsed_s: float
    ) -> dict[str, Seen]:
        """Look at the definitions of some assets; return what the next tick needs as ``before``.

        Args:
            assets: The assets that have waiters.
            before: What the previous tick returned.
            elapsed_s: Seconds since the previous tick.
        """
        seen = {}
        for asset in assets:
            now, last = self._definition(asset), before.get(asset)
            known_s = min(elapsed_s, _LONGEST_GAP_S)
            is_same = last is not None and last.definition == now
            for_s = last.for_s + known_s if last is not None and is_same else 0.0
            seen[asset] = Seen(definition=now, for_s=for_s)
        self._seen = seen
        return seen

    def serves(self, asset: str, repository: str | None) -> bool:
        """Whether these sensors serve the waiters of an asset in a repository (None: unknown)."""
        if self._only is not None and asset not in self._only:
            return False
        return None in (repository, self._label) or repository == self._label

    @cached_property
    def only_assets(self) -> list[str] | None:
        """The assets whose waiters these sensors look at; None for all."""
        return None if self._only is None else sorted(self._only)

    def has(self, asset: str) -> bool:
        """Whether a batch asset of this name is defined now."""
        return asset in self.declarations

    def has_partition(self, asset: str, key: str) -> bool:
        """Whether a batch asset, which is defined, has this partition now."""
        return self.partitions.has(self.declarations[asset].partitions_def, key)

    def is_settled(self, asset: str) -> bool:
        """Whether a missing asset, or missing partitions of an asset, count as gone.

        A user deletes dynamic partitions, and no deployment does: these are gone at once.
        """
        declaration = self.declarations.get(asset)
        if declaration and isinstance(declaration.partitions_def, dg.DynamicPartitionsDefinition):
            return True
        seen = self._seen.get(asset)
        return seen is not None and seen.for_s >= self._gone_after_s

    def why_gone(self, asset: str) -> str | None:
        """Return why an asset's waiters are cancelled; None unless the asset counts as gone."""
        if self.has(asset) or not self.is_settled(asset):
            return None
        return f"asset {asset!r} is not defined any more"

    def missing(self) -> list[str]:
        """Return a warning for each asset that is missing and does not count as gone yet."""
        left_s = {asset: self._gone_after_s - seen.for_s for asset, seen in self._seen.items()}
        return [
            f"batch asset {asset!r} is not defined now, and requests wait for it: unless it is "
            f"defined again, they are cancelled in {seconds / 60:.0f} minutes"
            for asset, seconds in left_s.items()
            if not self.has(asset) and not self.is_settled(asset)
        ]

    def without_partitions(self, names: Iterable[str]) -> list[dg.AssetKey]:
        """Return which of these assets have no partitions."""
        found = partitions_defs(self.repository.asset_graph, names)
        return [key for key, definition in found.items() if definition is None]

    def _definition(self, asset: str) -> str | None:
        declaration = self.declarations.get(asset)
        if declaration is None:
            return None
        return hashlib.blake2b(_text_of(declaration.partitions_def).encode()).hexdigest()


def _text_of(definition: dg.PartitionsDefinition[Any] | None) -> str:
    """Return a partitions definition as text: of dynamic partitions the name, not the keys."""
    match definition:
        case dg.MultiPartitionsDefinition():
            dimensions = definition.partitions_defs
            return str([(one.name, _text_of(one.partitions_def)) for one in dimensions])
        case dg.DynamicPartitionsDefinition():
            return str(definition.name)
        case _:
            return repr(definition)
