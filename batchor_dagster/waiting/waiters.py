"""Load waiters together with their batch runs and requests, and change them safely."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dagster as dg

from batchor_core.errors import StaleTransitionError
from batchor_core.integration import OrchestratorStore, RunRecord, Waiter, WaiterState
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.launches import Launch, launches_of, with_launches


@dataclass(frozen=True, kw_only=True)
class AssetWaiter:
    """A waiter with its batch run and its request.

    Attributes:
        stored: The waiter as the store has it.
        spec: What the request asked for.
        run: The batch run that it waits for.
        dagster_run: The request; None if Dagster has deleted its record.
    """

    stored: Waiter
    spec: LaunchSpec
    run: RunRecord
    dagster_run: dg.DagsterRun | None

    @property
    def is_ready(self) -> bool:
        """Whether the batch run has finished and a materialize run has to store the answers."""
        return self.run.state.is_terminal and not self.delivers_itself

    @property
    def delivers_itself(self) -> bool:
        """Whether the request's own step is still alive to materialize the answers."""
        return bool(self.spec.in_step and self.dagster_run and not self.dagster_run.is_finished)

    @cached_property
    def launches(self) -> list[Launch]:
        """The waiter's launches."""
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
        """Return a copy with a newer stored waiter."""
        return replace(self, stored=stored)

    def note(self, store: OrchestratorStore, launches: Iterable[Launch]) -> "AssetWaiter":
        """Store launches; return the newest version of the waiter.

        If another process has changed the waiter meanwhile, nothing is stored: the returned waiter
        has that change, and the next tick decides anew.
        """
        progress = self.with_launches(launches).stored.progress
        try:
            return self.with_stored(store.update_waiter(self.stored, progress=progress))
        except StaleTransitionError:
            return self.with_stored(store.get_waiter(self.stored.waiter_id))


def load_waiters(
    store: OrchestratorStore, instance: dg.DagsterInstance, waiters: Sequence[Waiter]
) -> list[AssetWaiter]:
    """Load the batch runs and requests of some waiters in a handful of queries."""
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
    store: OrchestratorStore, waiter_id: str, change: Callable[[Waiter], Mapping[str, Any] | None]
) -> bool:
    """Change an open waiter, trying again when another process changes it at the same time.

    Args:
        store: The control plane.
        waiter_id: The waiter.
        change: Given the current waiter, returns the keywords for
            ``OrchestratorStore.update_waiter``; None if nothing is left to change.

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
    """Return the Dagster runs that have a record, by id."""
    found: dict[str, dg.DagsterRun] = {}
    for group in in_groups(sorted(set(run_ids))):
        runs = instance.get_runs(dg.RunsFilter(run_ids=group))
        found.update((run.run_id, run) for run in runs)
    return found
