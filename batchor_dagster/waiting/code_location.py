"""What a code location defines, and for how long it has been so."""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict

from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.partitions import DefinedPartitions

_LONGEST_GAP_S = 300.0
"""Of two ticks: what was defined in between is not known for longer."""


class Seen(BaseModel):
    """How an asset was defined in the ticks so far.

    Attributes:
        definition: Identifies its partitions, as code defines them; None: it was not defined.
        for_s: For how many seconds ticks have seen that.
    """

    model_config = ConfigDict(frozen=True)

    definition: str | None
    for_s: float = 0.0


class CodeLocation:
    """What the sensors of a code location are there for, during one tick.

    A definition that is gone for a moment (a rollback, another environment) must not cancel what
    was paid for: it is believed to be gone when ticks have seen nothing else for a while.

    Args:
        declarations: The batch assets, by name.
        repository: Its definitions.
        label: Of the repository, as ``name@location``; None for one that is not deployed.
        only: The assets that the sensors serve, where they do not serve all of the repository:
            all others are none of their business.
        gone_after_s: For how many seconds a definition has to be missing.
        instance: Knows the dynamic partitions.
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
        """Look at the definitions of some assets; return what the next tick has to be told.

        Args:
            assets: Those that somebody waits for.
            before: What the tick before has returned.
            elapsed_s: Seconds since then.
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
        """Whether a waiter is the business of these sensors."""
        if self._only is not None and asset not in self._only:
            return False
        return None in (repository, self._label) or repository == self._label

    @cached_property
    def only_assets(self) -> list[str] | None:
        """The assets whose waiters are looked at; None for all."""
        return None if self._only is None else sorted(self._only)

    def has(self, asset: str) -> bool:
        """Whether there is a batch asset of this name now."""
        return asset in self.declarations

    def has_partition(self, asset: str, key: str) -> bool:
        """Whether a batch asset has a partition now."""
        return self.partitions.has(self.declarations[asset].partitions_def, key)

    def is_settled(self, asset: str) -> bool:
        """Whether what is missing of an asset is taken to be gone.

        Dynamic partitions are deleted by somebody, and not by a deployment: they are gone at once.
        """
        declaration = self.declarations.get(asset)
        if declaration and isinstance(declaration.partitions_def, dg.DynamicPartitionsDefinition):
            return True
        seen = self._seen.get(asset)
        return seen is not None and seen.for_s >= self._gone_after_s

    def why_gone(self, asset: str) -> str | None:
        """Return the reason that ends all waiters of an asset that is gone; None if it is not."""
        if self.has(asset) or not self.is_settled(asset):
            return None
        return f"asset {asset!r} is not defined any more"

    def missing(self) -> list[str]:
        """Return what is to be said of assets that are missing, and not yet taken to be gone."""
        return [
            f"batch asset {asset!r} is not defined now, and somebody waits for it: in "
            f"{(self._gone_after_s - seen.for_s) / 60:.0f} minutes its batch runs are cancelled"
            for asset, seen in self._seen.items()
            if not self.has(asset) and not self.is_settled(asset)
        ]

    def without_partitions(self, names: Iterable[str]) -> list[dg.AssetKey]:
        """Return those of some assets that have no partitions."""
        graph = self.repository.asset_graph
        keys = map(dg.AssetKey.from_user_string, names)
        return [key for key in keys if graph.has(key) and graph.get(key).partitions_def is None]

    def _definition(self, asset: str) -> str | None:
        declaration = self.declarations.get(asset)
        if declaration is None:
            return None
        return hashlib.blake2b(_text_of(declaration.partitions_def).encode()).hexdigest()


def _text_of(definition: dg.PartitionsDefinition[Any] | None) -> str:
    """Return what code says of partitions; of dynamic ones, not which there are."""
    match definition:
        case dg.MultiPartitionsDefinition():
            dimensions = definition.partitions_defs
            return str([(one.name, _text_of(one.partitions_def)) for one in dimensions])
        case dg.DynamicPartitionsDefinition():
            return str(definition.name)
        case _:
            return repr(definition)
