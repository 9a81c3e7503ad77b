"""Cancel waiters whose backfill, hold, request, asset or partition is gone; reopen lost holds.

Assets, backfills and holds are looked up once for all waiters that share them. What has to be
checked waiter by waiter (partitions, holds that were never opened) is checked for
``WAITERS_PER_TURN`` of them in each tick, in turns.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

import dagster as dg

from batchor_core.integration import OrchestratorStore, Waiter, WaiterGroup, WaiterState
from batchor_dagster.constants import HoldKind
from batchor_dagster.waiting.backfills import Backfills
from batchor_dagster.waiting.code_location import CodeLocation
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.time_box import TICK_SECONDS, TimeBox
from batchor_dagster.waiting.waiters import AssetWaiter, change_waiter, dagster_runs, load_waiters

WAITERS_PER_TURN = 500
"""How many waiters one tick checks one by one."""

RUNS_PER_TURN = 50
"""How many batch runs without progress one tick looks at; the longest without progress first."""

SECONDS = TICK_SECONDS / 2
"""The rest of a tick serves the waiters whose batch runs have finished."""

GROUP_FIELDS = ("backfill", "hold", "repository")
"""The payload fields by which many waiters are ended together."""

_OVERLAP_S = 60.0
"""How far the clocks of Dagster's processes may differ."""


class Cancellation:
    """Ends waiters, and reopens their lost holds, during one tick.

    Args:
        context: Of the tick.
        store: The control plane.
        namespace: The namespace whose waiters are looked at.
        location: What the code location defines.
        backfills: The backfills and holds; ``open_holds`` was called.
        hold_kind: Kind of a hold that is opened again.
        now: The time by the clock of the batch runs.

    Attributes:
        stuck: The waiters that ended because their batch runs made no progress, with the reasons.
    """

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        *,
        store: OrchestratorStore,
        namespace: str,
        location: CodeLocation,
        backfills: Backfills,
        hold_kind: HoldKind,
        now: datetime,
    ) -> None:
        self._instance = context.instance
        self._log = context.log
        self._store = store
        self._namespace = namespace
        self._location = location
        self._backfills = backfills
        self._hold_kind = hold_kind
        self._now = now
        self._time_box = TimeBox(SECONDS)
        self.stuck: list[tuple[AssetWaiter, str]] = []

    def end_groups(self, groups: Sequence[WaiterGroup]) -> None:
        """Cancel waiters of missing assets and cancelled backfills and holds; reopen lost holds.

        The next tick does what this one has no time for.
        """
        mine = [g for g in groups if self._location.serves(g.asset, g.fields[2])]
        for asset in sorted({group.asset for group in mine}):
            reason = self._location.why_gone(asset)
            if reason is not None:
                for waiter in self._all(assets=[asset]):
                    self.end(waiter, reason)
        for backfill, hold in sorted({group.fields[:2] for group in mine}, key=str):
            named = {"backfill": backfill, "hold": hold}
            payload = {name: [value] for name, value in named.items() if value is not None}
            reason = self._backfills.reason_to_end_all(backfill, hold)
            if reason is not None:
                for waiter in self._all(payload=payload):
                    self.end(waiter, reason)
            elif self._backfills.is_lost(backfill, hold):
                self._reopen(self._all(payload=payload))

    def end_terminated(self, since: float | None) -> None:
        """Cancel the waiters whose requests were terminated after an instant (Unix time)."""
        if since is None:
            return
        after = datetime.fromtimestamp(since - _OVERLAP_S, UTC)
        cancelled = dg.RunsFilter(statuses=[dg.DagsterRunStatus.CANCELED], updated_after=after)
        for group in in_groups(list(self._instance.get_run_ids(cancelled))):
            found = list(self._all(payload={"dagster_run": group}))
            for waiter in load_waiters(self._store, self._instance, found):
                reason = self.reason_to_cancel(waiter)
                if reason is not None:
                    self.end(waiter.stored, reason)

    def end_stuck(self) -> None:
        """Fail waiters whose batch runs made no progress for their asset's ``max_wait_hours``."""
        declared = self._location.declarations.values()
        hours = min((one.max_wait_hours for one in declared), default=0)
        before = self._now - timedelta(hours=hours)
        found = self._store.unmoved_runs(self._namespace, before, RUNS_PER_TURN)
        for run_id, moved_at in found.items():
            for waiter in load_waiters(self._store, self._instance, list(self._all(run_id=run_id))):
                if not self._location.has(waiter.stored.asset):
                    continue
                reason = self._stands_still(waiter, moved_at)
                if reason is not None:
                    self.end(waiter.stored, reason, WaiterState.FAILED)
                    self.stuck.append((waiter, reason))

    def take_turn(self, after: str | None) -> str | None:
        """Check the next ``WAITERS_PER_TURN`` waiters one by one.

        Args:
            after: The last waiter of the previous turn; None begins with the oldest.

        Returns:
            The last waiter of this turn; None once all were checked.
        """
        waiters = self._store.list_waiters(
            namespace=self._namespace,
            states=[WaiterState.OPEN],
            assets=self._location.only_assets,
            after=after,
            limit=WAITERS_PER_TURN,
        )
        for waiter in load_waiters(self._store, self._instance, waiters):
            if self._time_box.is_over:
                return after
            after = waiter.stored.waiter_id
            if not self._location.serves(waiter.stored.asset, waiter.spec.repository):
                continue
            reason = self.reason_to_cancel(waiter)
            if reason is None:
                self._reopen_one(waiter)
            else:
                self.end(waiter.stored, reason)
        return after if len(waiters) == WAITERS_PER_TURN else None

    def reason_to_cancel(self, waiter: AssetWaiter) -> str | None:
        """Return why a waiter has to be cancelled; None if it goes on."""
        gone = self._what_is_gone(waiter.stored)
        return gone or self._backfills.reason_to_end(waiter.spec) or self._was_terminated(waiter)

    def end(self, waiter: Waiter, reason: str, state: WaiterState = WaiterState.CANCELLED) -> None:
        """End a waiter; the store cancels the batch run with its last waiter."""
        keeps_work = not LaunchSpec.of_waiter(waiter).cancel_on_termination
        ended = self._store.end_waiter(waiter.waiter_id, state, reason, keeps_work=keeps_work)
        if ended.run_cancelled:
            self._log.info("batch run %s is cancelled: %s", waiter.run_id, reason)

    def _all(self, **which: Any) -> Iterator[Waiter]:
        """Yield the open waiters that match, while there is time; the caller may end them."""
        which.setdefault("assets", self._location.only_assets)
        after: str | None = None
        while True:
            page = self._store.list_waiters(
                namespace=self._namespace,
                states=[WaiterState.OPEN],
                after=after,
                limit=WAITERS_PER_TURN,
                **which,
            )
            mine = (w for w in page if self._location.serves(w.asset, w.payload["repository"]))
            yield from takewhile(lambda _: not self._time_box.is_over, mine)
            if self._time_box.is_over or len(page) < WAITERS_PER_TURN:
                return
            after = page[-1].waiter_id

    def _reopen(self, waiters: Iterator[Waiter]) -> None:
        for waiter in waiters:
            for each in load_waiters(self._store, self._instance, [waiter]):
                self._reopen_one(each)

    def _reopen_one(self, waiter: AssetWaiter) -> None:
        unpartitioned = self._location.without_partitions(waiter.spec.selection)
        warning = self._backfills.reopen(self._store, waiter, self._hold_kind, unpartitioned)
        if warning:
            self._log.warning(warning)

    def _what_is_gone(self, waiter: Waiter) -> str | None:
        reason = self._location.why_gone(waiter.asset)
        if reason is not None or not self._location.has(waiter.asset):
            return reason
        keys = waiter.partitions or ("",)
        # A launch gives up single partitions by itself.
        if any(self._location.has_partition(waiter.asset, key) for key in keys):
            return None
        if not self._location.is_settled(waiter.asset):
            return None
        return f"partition {keys[0]!r} of {waiter.asset!r} is not defined any more"

    def _was_terminated(self, waiter: AssetWaiter) -> str | None:
        """Return why a waiter is cancelled if all of its requests were terminated, else None."""
        run = waiter.dagster_run
        if run is None or run.status is not dg.DagsterRunStatus.CANCELED:
            return None
        joined = dagster_runs(self._instance, waiter.spec.joined)
        still = [r for r in joined.values() if r.status is not dg.DagsterRunStatus.CANCELED]
        if not still:
            return f"the request's Dagster run {run.run_id} was terminated"
        heir = still[0].run_id  # a later request asked for the same: the waiter becomes its own

        def inherit(stored: Waiter) -> dict[str, Any]:
            rest = [run_id for run_id in stored.payload["joined"] if run_id != heir]
            return {"payload": {**stored.payload, "dagster_run": heir, "joined": rest}}

        change_waiter(self._store, waiter.stored.waiter_id, inherit)
        return None

    def _stands_still(self, waiter: AssetWaiter, moved_at: datetime) -> str | None:
        """Return why a waiter fails because its batch run made no progress; None if it goes on."""
        declaration = self._location.declarations[waiter.stored.asset]
        since = self._now - max(moved_at, waiter.stored.created_at)
        if since <= timedelta(hours=declaration.max_wait_hours):
            return None
        run = waiter.run
        asked = f"{run.control.value}: {run.control_reason}" if run.control_reason else None
        return (
            f"batch run {run.run_id!r} has not moved for {since.total_seconds() / 3600:.0f} hours "
            f"({asked or run.state.value}): mend what it waits for and ask again; answers that "
            "are there by then cost nothing"
        )
