"""Keeping holds and backfills in step with the wishes behind them."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import dagster as dg

from batchor_core.errors import StaleTransitionError
from batchor_core.integration import Store
from batchor_dagster.constants import TAG_KIND, TAG_WAITING_FOR, HoldKind, RunKind
from batchor_dagster.resources.connections import location_of
from batchor_dagster.waiting.hold import (
    BackfillState,
    HoldRequest,
    HoldState,
    backfill_state,
    close_hold,
    hold_status,
    open_or_join,
)
from batchor_dagster.waiting.serving import Wish

_UNFINISHED = [
    status
    for status in dg.DagsterRunStatus
    if status.value in ("NOT_STARTED", "QUEUED", "SUSPENDED", "STARTING", "STARTED")
]


class Backfills:
    """A look at the instance's backfills and holds during one tick; asks for each only once.

    Args:
        instance: The Dagster instance.
        location: The code location: other locations' holds are not touched.
    """

    def __init__(self, instance: dg.DagsterInstance, location: str | None) -> None:
        self._instance = instance
        self._location = location
        self._open = frozenset[str]()
        self.state: Callable[[str], BackfillState] = lru_cache(maxsize=None)(self._state)
        self.hold: Callable[[str], HoldState] = lru_cache(maxsize=None)(self._hold)

    def open_holds(self) -> list[dg.DagsterRun]:
        """Return this location's holds that are open.

        Ask before the waiters are read: a request records its waiter before it opens a hold, so
        that every hold found here has its waiter among those read later.
        """
        runs = self._instance.get_runs(
            dg.RunsFilter(tags={TAG_KIND: RunKind.HOLD.value}, statuses=_UNFINISHED)
        )
        mine = [run for run in runs if self._location in (None, location_of(run))]
        self._open = frozenset(run.run_id for run in mine)
        return mine

    def close_unneeded(self, holds: Sequence[dg.DagsterRun], needed: Collection[str | None]) -> int:
        """Close the holds of backfills that nobody waits for; return their number.

        They end in success, failed partitions included (those are booked by their own Dagster
        runs), and as cancelled only where the backfill is being cancelled.

        Args:
            holds: Open ones.
            needed: The backfills of all open waiters, read after the holds.
        """
        closed = 0
        for hold in holds:
            backfill = hold.tags.get(TAG_WAITING_FOR, "")
            if backfill in needed:
                continue
            cancelled = self.state(backfill) is BackfillState.CANCELLING
            closed += close_hold(
                self._instance,
                hold.run_id,
                "cancelled" if cancelled else "success",
                "nobody waits any more",
            )
        return closed

    def reason_to_end(self, wish: Wish) -> str | None:
        """Return why nobody wants a wish any more, or None."""
        reason = self.reason_to_end_all(wish.request.backfill, wish.request.hold)
        run = wish.dagster_run
        if reason is None and run is not None and run.status is dg.DagsterRunStatus.CANCELED:
            return request_was_terminated(run.run_id)
        return reason

    def reason_to_end_all(self, backfill: str | None, hold: str | None) -> str | None:
        """Return why nobody wants what a backfill or a hold stands for any more, or None."""
        if backfill and self.state(backfill) is BackfillState.CANCELLING:
            return f"backfill {backfill} was cancelled"
        if hold and hold not in self._open and self.hold(hold) is HoldState.CANCELLED:
            return f"the hold of backfill {backfill} was terminated"
        return None

    def is_lost(self, backfill: str | None, hold: str | None) -> bool:
        """Whether a hold is gone while its backfill is in progress."""
        if backfill is None or hold is None or hold in self._open:
            return False
        return self.hold(hold) in _LOST and self.state(backfill) is BackfillState.OPEN

    def reopen(self, store: Store, wish: Wish, kind: HoldKind) -> str | None:
        """Open the hold of a wish again where it is missing while its backfill is in progress.

        Returns:
            A warning to log, or None.
        """
        request, run = wish.request, wish.dagster_run
        if request.backfill is None or run is None or not run.is_finished:
            return None
        if self.state(request.backfill) is not BackfillState.OPEN:
            return None
        died_before = request.hold is None and run.status is dg.DagsterRunStatus.FAILURE
        if not (died_before or self.is_lost(request.backfill, request.hold)):
            return None
        outcome = open_or_join(
            HoldRequest(
                instance=self._instance,
                run=run,
                asset_keys=request.selected_keys,
                partition_keys=wish.waiter.partitions,
                kind=kind,
            )
        )
        if outcome.hold is not None:
            payload = {**wish.waiter.payload, "hold": outcome.hold.run_id}
            try:
                store.update_waiter(wish.waiter, payload=payload)
            except StaleTransitionError:
                return None  # the next tick looks again
        return outcome.reason

    def _state(self, backfill_id: str) -> BackfillState:
        return backfill_state(self._instance, backfill_id)

    def _hold(self, run_id: str) -> HoldState:
        return hold_status(self._instance, run_id).state


def request_was_terminated(run_id: str) -> str:
    """Return the reason with which a waiter ends whose request was terminated."""
    return f"the request's Dagster run {run_id} was terminated"


_LOST = frozenset({HoldState.MISSING, HoldState.SUCCEEDED, HoldState.RETIRED, HoldState.FAILED})
