"""Launch assets downstream of several batch assets once all of those are materialized.

The waiters of one root Dagster run are a family. Each waiter materializes its own asset and the
assets that need no other batch asset. An asset that needs several is *shared*: when the last of the
assets that it needs is materialized for a partition, the waiter whose launch did that gets a
further launch for the shared asset. A tick looks at waiters one after another and stores each
result before it looks at the next, so that exactly one launch is the last.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import dagster as dg

from batchor_core.integration import OrchestratorStore, WaiterState
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.launches import Launch, cut
from batchor_dagster.waiting.waiters import AssetWaiter, load_waiters

Follows = Callable[[str, str], bool]


class Families:
    """The waiters of some root Dagster runs, ended ones included, kept current during a tick.

    Args:
        members: The waiters, oldest first.
        ancestors: Returns the names of all assets that an asset depends on; None if there is no
            such asset.
    """

    def __init__(
        self,
        members: Iterable[AssetWaiter],
        ancestors: Callable[[str], frozenset[str] | None],
    ) -> None:
        self._families: dict[str, dict[str, AssetWaiter]] = defaultdict(dict)
        self._ancestors = ancestors
        for member in members:
            self.update(member)

    def update(self, member: AssetWaiter) -> None:
        """Replace a waiter by its newest version."""
        self._families[member.spec.root_run][member.stored.waiter_id] = member

    def has_step(self, waiter: AssetWaiter) -> bool:
        """Whether the step of a request delivers, or has delivered, what a waiter shares with."""
        return bool(waiter.spec.shared) and any(one.spec.in_step for one in self._of(waiter))

    def awaits_step(self, waiter: AssetWaiter) -> bool:
        """Whether a step is about to deliver what a waiter shares with: it then has more to do."""
        return bool(waiter.spec.shared) and any(
            one.stored.state is WaiterState.OPEN and one.delivers_itself for one in self._of(waiter)
        )

    def ready_after(
        self, waiter: AssetWaiter, launches: Iterable[Launch], follows: Follows
    ) -> list[Launch]:
        """Return the launches of shared assets that are ready now that launches have ended.

        Args:
            waiter: Whose launches they are; as it is stored then.
            launches: Ended ones.
            follows: Whether a partition comes right after another one.
        """
        ended = [launch for launch in launches if launch.done and not launch.is_open]
        if not waiter.spec.shared or not ended:
            return []
        family = self._of(waiter)
        keys = dict.fromkeys(
            key for launch in ended for key in launch.partitions or _partitions_of(family)
        )
        ready = self._ready(waiter, family, keys)
        found: list[Launch] = []
        free = len(waiter.launches)
        for group in dict.fromkeys(filter(None, ready.values())):
            partitions = tuple(key for key, assets in ready.items() if assets == group and key)
            new = Launch(index=free, assets=group, partitions=partitions)
            found += cut(new, free + 1, lambda _: None, follows)
            free = found[-1].index + 1
        return found

    def _of(self, waiter: AssetWaiter) -> list[AssetWaiter]:
        return list(self._families[waiter.spec.root_run].values())

    def _ready(
        self, waiter: AssetWaiter, family: Sequence[AssetWaiter], partitions: Iterable[str]
    ) -> dict[str, tuple[str, ...]]:
        """Return by partition the shared assets that can run, and that nobody has taken."""
        ready: dict[str, tuple[str, ...]] = {}
        known: dict[object, tuple[str, ...]] = {}
        for key in partitions:
            served = [(member, member.launches_for(key)) for member in _newest(family, key)]
            # Of thousands of partitions, most are served by the same launches.
            alike = tuple((id(m), *(launch.index for launch in theirs)) for m, theirs in served)
            if alike not in known:
                launches = [launch for _, theirs in served for launch in theirs]
                known[alike] = self._ready_with(waiter, [m for m, _ in served], launches)
            ready[key] = known[alike]
        return ready

    def _ready_with(
        self, waiter: AssetWaiter, members: Sequence[AssetWaiter], launches: Sequence[Launch]
    ) -> tuple[str, ...]:
        taken = {name for one in launches for name in one.assets}
        there = {name for one in launches for name in one.done}
        there |= {m.spec.asset for m in members if _delivered_in_step(m)}
        asked = {name for member in members for name in member.spec.selection}
        ready: list[str] = []
        for name in waiter.spec.shared:
            above = self._ancestors(name)
            if above is None or name in taken:
                continue
            needed = above & (asked | set(waiter.spec.selection[name]))
            if needed <= there | set(ready):
                ready.append(name)
        return tuple(ready)


def load_families(
    store: OrchestratorStore,
    instance: dg.DagsterInstance,
    namespace: str,
    waiters: Sequence[AssetWaiter],
    ancestors: Callable[[str], frozenset[str] | None],
) -> Families:
    """Load the families of those waiters that have shared assets."""
    roots = sorted({waiter.spec.root_run for waiter in waiters if waiter.spec.shared})
    found = [
        waiter
        for group in in_groups(roots)
        for waiter in store.list_waiters(
            namespace=namespace, states=list(WaiterState), payload={"root_run": group}
        )
    ]
    return Families(load_waiters(store, instance, found), ancestors)


def _newest(family: Iterable[AssetWaiter], partition: str) -> list[AssetWaiter]:
    """Return for each asset its newest waiter for a partition; older requests do not count."""
    newest: Mapping[str, AssetWaiter] = {
        one.spec.asset: one for one in family if one.covers(partition)
    }
    return list(newest.values())


def _delivered_in_step(waiter: AssetWaiter) -> bool:
    is_served = waiter.stored.state is WaiterState.SERVED
    return is_served and "launches" not in waiter.stored.progress


def _partitions_of(family: Iterable[AssetWaiter]) -> tuple[str, ...]:
    """Return all partitions of a family, in order; for a member without partitions."""
    keys = dict.fromkeys(key for member in family for key in member.stored.partitions)
    return tuple(keys) or ("",)
