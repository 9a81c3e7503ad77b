"""Batch assets of one request that share descendants: what is downstream of several goes once.

An asset that needs two batch assets cannot run with the first one that is ready. It goes with the
last: each of them takes along, partition by partition, what all the others have materialized.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import dagster as dg

from batchor_core.integration import Store, WaiterState
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.serving import Wish, load_wishes
from batchor_dagster.waiting.waiters import SegmentState, segments_of

_ALL_STATES = list(WaiterState)


def load_relatives(
    store: Store, instance: dg.DagsterInstance, namespace: str, wishes: Sequence[Wish]
) -> list[Wish]:
    """Return the other wishes of the same requests, ended ones too.

    Only requests with descendants can share any.
    """
    roots = sorted({wish.request.root_run for wish in wishes if wish.descendants})
    known = {wish.waiter.waiter_id for wish in wishes}
    relatives = [
        waiter
        for group in in_groups(roots)
        for waiter in store.list_waiters(
            namespace=namespace, states=_ALL_STATES, payload={"root_run": group}
        )
        if waiter.waiter_id not in known
    ]
    return load_wishes(store, instance, relatives)


def siblings_of(wishes: Iterable[Wish]) -> dict[str, list[Wish]]:
    """Return, by waiter, the other wishes of its request that share descendants and partitions."""
    families: dict[str, list[Wish]] = defaultdict(list)
    for wish in wishes:
        families[wish.request.root_run].append(wish)
    return {
        wish.waiter.waiter_id: [other for other in family if _are_siblings(wish, other)]
        for family in families.values()
        for wish in family
    }


def descendants_by_partition(
    wish: Wish, siblings: Iterable[Wish]
) -> Callable[[str], frozenset[str]]:
    """Return what tells which descendants go along with a partition of a wish.

    Those are left out that need a sibling which has not materialized the partition: it takes them
    along when it does, and where it has failed they cannot run.
    """
    shared = [_Shared.of(sibling) for sibling in siblings]

    def of(partition: str) -> frozenset[str]:
        left_out = (one.descendants for one in shared if one.holds_up(partition))
        return wish.descendants.difference(*left_out)

    return of


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What a sibling says of the descendants that it shares.

    Attributes:
        asked: Its partitions; None if it has none, so that every partition needs it.
        materialized: Those that it has materialized; None for all of them.
    """

    descendants: frozenset[str]
    asked: frozenset[str] | None
    materialized: frozenset[str] | None

    @classmethod
    def of(cls, wish: Wish) -> "_Shared":
        waiter = wish.waiter
        done = [s for s in segments_of(waiter) if s.state is SegmentState.MATERIALIZED]
        is_served = waiter.state is WaiterState.SERVED or any(not s.partitions for s in done)
        return cls(
            descendants=wish.descendants,
            asked=frozenset(waiter.partitions) or None,
            materialized=None if is_served else frozenset(k for s in done for k in s.partitions),
        )

    def holds_up(self, partition: str) -> bool:
        """Whether a partition's descendants wait for this sibling, or wait in vain."""
        if self.asked is not None and partition and partition not in self.asked:
            return False
        if self.materialized is None:
            return False
        return self.asked is None or not partition or partition not in self.materialized


def _are_siblings(one: Wish, other: Wish) -> bool:
    if one is other or not one.descendants & other.descendants:
        return False
    mine, theirs = one.waiter.partitions, other.waiter.partitions
    return not mine or not theirs or not frozenset(mine).isdisjoint(theirs)
