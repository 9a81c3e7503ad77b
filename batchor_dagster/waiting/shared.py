"""What is downstream of several batch assets runs once all of them are materialized for it.

The batch assets of one request are a family: their waiters have one root Dagster run. Each waiter
materializes its own asset and what needs no other one. Whatever is materialized last, of what a
shared asset needs, makes it ready for the partition: the waiter of that launch takes it along, as a
further launch. Waiters are looked at one after the other, and what was found is stored before the
next one is looked at: so there is always a last one, and never two.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import dagster as dg

from batchor_core.integration import Store, WaiterState
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.launches import Launch, cut
from batchor_dagster.waiting.waiters import AssetWaiter, load_waiters

Follows = Callable[[str, str], bool]


class Families:
    """The waiters of some requests, ended ones too, as they are by now.

    Args:
        members: Oldest first.
        ancestors: Returns all that an asset depends on, by name; None if there is no such asset.
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
        """Take note of what has become of a waiter."""
        self._families[member.spec.root_run][member.stored.waiter_id] = member

    def ready_after(self, waiter: AssetWaiter, launch: Launch, follows: Follows) -> list[Launch]:
        """Return the launches of shared assets that are ready now that a launch has ended.

        Args:
            waiter: Whose launch it is; as it is stored by now.
            launch: One that has just ended.
            follows: Whether a partition comes right after another one.
        """
        if not waiter.spec.shared or not launch.done:
            return []
        family = list(self._families[waiter.spec.root_run].values())
        ready = {
            key: self._ready(waiter, family, key)
            for key in launch.partitions or _partitions_of(family)
        }
        found: list[Launch] = []
        free = len(waiter.launches)
        for group in dict.fromkeys(filter(None, ready.values())):
            partitions = tuple(key for key, assets in ready.items() if assets == group and key)
            new = Launch(index=free, assets=group, partitions=partitions)
            found += cut(new, free + 1, lambda _: None, follows)
            free = found[-1].index + 1
        return found

    def _ready(
        self, waiter: AssetWaiter, family: Sequence[AssetWaiter], partition: str
    ) -> tuple[str, ...]:
        """Return the shared assets that can run for a partition, and that nobody has taken."""
        members = _newest(family, partition)
        launches = [one for m in members for one in m.launches if one.covers(partition)]
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
    store: Store,
    instance: dg.DagsterInstance,
    namespace: str,
    waiters: Sequence[AssetWaiter],
    ancestors: Callable[[str], frozenset[str] | None],
) -> Families:
    """Return the families of those waiters that share what is downstream of them."""
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
    """Return of each asset the newest waiter for a partition: its earlier requests are past."""
    newest: Mapping[str, AssetWaiter] = {
        one.spec.asset: one
        for one in family
        if not one.stored.partitions or not partition or partition in one.stored.partitions
    }
    return list(newest.values())


def _delivered_in_step(waiter: AssetWaiter) -> bool:
    is_served = waiter.stored.state is WaiterState.SERVED
    return is_served and "launches" not in waiter.stored.progress


def _partitions_of(family: Iterable[AssetWaiter]) -> tuple[str, ...]:
    """Return the partitions of a family, of which one member has none; in their order."""
    keys = dict.fromkeys(key for member in family for key in member.stored.partitions)
    return tuple(keys) or ("",)
