"""Waiters with what decides about them, and how they are changed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dagster as dg

from batchor_core.errors import StaleTransitionError
from batchor_core.integration import RunRecord, Store, Waiter, WaiterState
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.launches import Launch, launches_of, with_launches


@dataclass(frozen=True, kw_only=True)
class AssetWaiter:
    """A stored waiter, with its batch run and the Dagster run that asked.

    Attributes:
        stored: The waiter as the store has it.
        spec: What was asked for.
        run: The batch run that it waits for.
        dagster_run: The request; None if its record is gone.
    """

    stored: Waiter
    spec: LaunchSpec
    run: RunRecord
    dagster_run: dg.DagsterRun | None

    @property
    def is_ready(self) -> bool:
        """Whether its answers can be materialized by another Dagster run."""
        return self.run.state.is_terminal and not self.delivers_itself

    @property
    def delivers_itself(self) -> bool:
        """Whether the request's own step is there to materialize them."""
        return bool(self.spec.in_step and self.dagster_run and not self.dagster_run.is_finished)

    @cached_property
    def launches(self) -> list[Launch]:
        """Its launches, as stored."""
        return launches_of(self.stored, self.spec)

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(self.stored.partitions)

    @cached_property
    def _launches_by_partition(self) -> Mapping[str, list[Launch]]:
        found = defaultdict(list)
        for launch in self.launches:
            for key in launch.partitions or ("",):
                found[key].append(launch)
        return found

    def covers(self, partition: str) -> bool:
        """Whether it waits for a partition; one without partitions waits for all."""
        return not self._keys or not partition or partition in self._keys

    def launches_for(self, partition: str) -> list[Launch]:
        """Return its launches for a partition; one without partitions is for all."""
        if not partition:
            return self.launches
        found = self._launches_by_partition
        return [*found.get("", ()), *found.get(partition, ())]

    def partitions_of(self, launch: Launch) -> tuple[str, ...]:
        """Return the partitions of a launch's Dagster runs; of some ranges, only both ends."""
        return launch.partitions or self.spec.partitions

    def with_launches(self, launches: Iterable[Launch]) -> "AssetWaiter":
        """Return it as it will be once some launches are stored."""
        progress = with_launches(self.stored, self.spec, launches)
        return self.with_stored(replace(self.stored, progress=progress))

    def with_stored(self, stored: Waiter) -> "AssetWaiter":
        """Return it as the store has it by now."""
        return replace(self, stored=stored)

    def note(self, store: Store, launches: Iterable[Launch]) -> "AssetWaiter":
        """Store launches, and return the waiter as it is then.

        Whoever was faster has decided otherwise; that is looked at again by the next tick.
        """
        progress = self.with_launches(launches).stored.progress
        try:
            return self.with_stored(store.update_waiter(self.stored, progress=progress))
        except StaleTransitionError:
            return self.with_stored(store.get_waiter(self.stored.waiter_id))


def load_waiters(
    store: Store, instance: dg.DagsterInstance, waiters: Sequence[Waiter]
) -> list[AssetWaiter]:
    """Return waiters with what decides about them, in a handful of queries."""
    specs = [LaunchSpec.of_waiter(waiter) for waiter in waiters]
    records = store.get_runs({waiter.run_id for waiter in waiters})
    runs = dagster_runs(instance, [spec.dagster_run for spec in specs])
    return [
        AssetWaiter(
            stored=waiter,
            spec=spec,
            run=records[waiter.run_id],
            dagster_run=runs.get(spec.dagster_run),
        )
        for waiter, spec in zip(waiters, specs, strict=True)
    ]


def change_waiter(
    store: Store, waiter_id: str, change: Callable[[Waiter], Mapping[str, Any] | None]
) -> bool:
    """Change what is stored with an open waiter, whoever else changes it at the same time.

    Args:
        store: The control plane.
        waiter_id: The waiter.
        change: Returns what ``Store.update_waiter`` is to change, given the waiter as it is; None
            where nothing is left to change.

    Returns:
        Whether the waiter was changed.
    """
    while (waiter := store.get_waiter(waiter_id)).state is WaiterState.OPEN:
        changes = change(waiter)
        if changes is None:
            return False
        try:
            store.update_waiter(waiter, **changes)
        except StaleTransitionError:  # somebody else was faster
            continue
        return True
    return False


def dagster_runs(
    instance: dg.DagsterInstance, run_ids: Iterable[str]
) -> Mapping[str, dg.DagsterRun]:
    """Return the Dagster runs of which there is a record, by id."""
    found: dict[str, dg.DagsterRun] = {}
    for group in in_groups(sorted(set(run_ids))):
        runs = instance.get_runs(dg.RunsFilter(run_ids=group))
        found.update((run.run_id, run) for run in runs)
    return found
