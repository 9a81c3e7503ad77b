"""Look up backfills and their holds; reopen lost holds and close those that no waiter needs."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import dagster as dg

from batchor_core.errors import StaleTransitionError
from batchor_core.integration import OrchestratorStore
from batchor_dagster.constants import TAG_KIND, TAG_WAITING_FOR, HoldKind, RunKind
from batchor_dagster.waiting.hold import (
    BackfillState,
    HoldRequest,
    HoldState,
    backfill_state,
    close_hold,
    hold_status,
    open_or_join,
)
from batchor_dagster.waiting.launch_spec import LaunchSpec, repository_of
from batchor_dagster.waiting.waiters import AssetWaiter

_UNFINISHED = [
    status
    for status in dg.DagsterRunStatus
    if status.value in ("NOT_STARTED", "QUEUED", "SUSPENDED", "STARTING", "STARTED")
]


class Backfills:
    """The instance's backfills and holds during one tick; each is read once.

    Args:
        instance: The Dagster instance.
        repository: Of the code location, as ``name@location``. Holds of other repositories are
            left alone.
    """

    def __init__(self, instance: dg.DagsterInstance, repository: str | None) -> None:
        self._instance = instance
        self._repository = repository
        self._open = frozenset[str]()
        self.state: Callable[[str], BackfillState] = lru_cache(maxsize=None)(self._state)
        self.hold: Callable[[str], HoldState] = lru_cache(maxsize=None)(self._hold)

    def open_holds(self) -> list[dg.DagsterRun]:
        """Return the open holds of this code location.

        Call it before reading the waiters: a request records its waiter before it opens a hold, so
        every hold that this returns has its waiter among those that are read later.
        """
        runs = self._instance.get_runs(
            dg.RunsFilter(tags={TAG_KIND: RunKind.HOLD.value}, statuses=_UNFINISHED)
        )
        mine = [run for run in runs if self._repository in (None, repository_of(run))]
        self._open = frozenset(run.run_id for run in mine)
        return mine

    def close_unneeded(self, holds: Sequence[dg.DagsterRun], needed: Collection[str | None]) -> int:
        """Close the holds of backfills without open waiters; return how many were closed.

        A hold ends in success, also where partitions failed: the materialize runs of those have
        told Dagster so. It ends as cancelled only if its backfill is being cancelled, or if Dagster
        has given the backfill up, whoever still waits in its name.

        Args:
            holds: Open holds.
            needed: The backfills of all open waiters, read after the holds.
        """
        closed = 0
        for hold in holds:
            backfill = hold.tags.get(TAG_WAITING_FOR, "")
            state = self.state(backfill)
            failed = state is BackfillState.FAILED
            if backfill in needed and not failed:
                continue
            closed += close_hold(
                self._instance,
                hold.run_id,
                "cancelled" if failed or state is BackfillState.CANCELLING else "success",
                "Dagster has failed the backfill" if failed else "no waiter is left",
            )
        return closed

    def reason_to_end(self, spec: LaunchSpec) -> str | None:
        """Return why a request's backfill or hold ends its waiters; None if they go on."""
        return self.reason_to_end_all(spec.backfill, spec.hold)

    def reason_to_end_all(self, backfill: str | None, hold: str | None) -> str | None:
        """Return why a backfill or hold ends its waiters; None if they go on."""
        if backfill and self.state(backfill) is BackfillState.CANCELLING:
            return f"backfill {backfill} was cancelled"
        if hold and hold not in self._open and self._was_terminated(hold, backfill):
            return f"the hold of backfill {backfill} was terminated"
        return None

    def is_lost(self, backfill: str | None, hold: str | None) -> bool:
        """Whether a hold has ended or was deleted while its backfill is in progress."""
        if backfill is None or hold is None or hold in self._open:
            return False
        return self.hold(hold) in _LOST and self.state(backfill) is BackfillState.OPEN

    def reopen(
        self,
        store: OrchestratorStore,
        waiter: AssetWaiter,
        kind: HoldKind,
        unpartitioned: Collection[dg.AssetKey],
    ) -> str | None:
        """Open a new hold for a waiter whose hold is lost while its backfill is in progress.

        Args:
            store: The control plane.
            waiter: An open waiter.
            kind: Kind of the new hold.
            unpartitioned: The waiter's assets without partitions.

        Returns:
            A warning to log, or None.
        """
        spec, run = waiter.spec, waiter.dagster_run
        if spec.backfill is None or run is None or not run.is_finished:
            return None
        if self.state(spec.backfill) is not BackfillState.OPEN:
            return None
        died_before = spec.hold is None and run.status is dg.DagsterRunStatus.FAILURE
        if not (died_before or self.is_lost(spec.backfill, spec.hold)):
            return None
        outcome = open_or_join(
            HoldRequest(
                instance=self._instance,
                run=run,
                asset_keys=[dg.AssetKey.from_user_string(name) for name in spec.selection],
                partition_keys=waiter.stored.partitions,
                kind=kind,
                unpartitioned_keys=unpartitioned if waiter.stored.partitions else (),
            )
        )
        if outcome.hold is not None:
            payload = {**waiter.stored.payload, "hold": outcome.hold.run_id}
            try:
                store.update_waiter(waiter.stored, payload=payload)
            except StaleTransitionError:
                return None  # the next tick looks again
        return outcome.reason

    def _was_terminated(self, hold: str, backfill: str | None) -> bool:
        """Whether somebody terminated a hold, and not Dagster, with a backfill that it gave up."""
        if self.hold(hold) is not HoldState.CANCELLED:
            return False
        # Dagster fails a backfill before it cancels the runs: what is read now is no older.
        return backfill is None or self._state(backfill) is not BackfillState.FAILED

    def _state(self, backfill_id: str) -> BackfillState:
        return backfill_state(self._instance, backfill_id)

    def _hold(self, run_id: str) -> HoldState:
        return hold_status(self._instance, run_id).state


_LOST = frozenset({HoldState.MISSING, HoldState.SUCCEEDED, HoldState.RETIRED, HoldState.FAILED})
