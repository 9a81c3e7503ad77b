"""Ending the waiters whose results nobody wants any more, and keeping open what they wait behind.

Most of it is found out for many waiters at once: by asset, backfill and hold. What has to be asked
of each waiter is asked of some in every tick, in turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile

import dagster as dg

from batchor_core import BatchRunner
from batchor_core.integration import Store, Waiter, WaiterGroup, WaiterState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.resources.connections import batchor_resource
from batchor_dagster.waiting.backfills import Backfills, request_was_terminated
from batchor_dagster.waiting.launched_runs import in_groups
from batchor_dagster.waiting.serving import Wish, end_waiter, load_wishes
from batchor_dagster.waiting.time_box import TICK_SECONDS, TimeBox

WAITERS_PER_TURN = 500
"""So many waiters are looked at one by one in a tick."""

SECONDS = TICK_SECONDS / 2
"""The rest of a tick is for what is ready."""

GROUP_FIELDS = ("backfill", "hold")
"""Of a waiter's payload: what it may be ended by together with others."""

_OVERLAP_S = 60.0
"""The clocks of Dagster's processes may differ by so much."""


class Unwanted:
    """Finds what nobody wants any more, during one tick.

    Args:
        context: Of the tick.
        runner: Ours.
        declarations: The batch assets that there are, by name.
        backfills: Their states; its holds have been read.
    """

    def __init__(
        self,
        context: dg.SensorEvaluationContext,
        runner: BatchRunner,
        declarations: Mapping[str, BatchAssetDeclaration],
        backfills: Backfills,
    ) -> None:
        self._instance = context.instance
        self._log = context.log
        self._store: Store = runner.store
        self._namespace = runner.namespace
        self._declarations = declarations
        self._backfills = backfills
        self._hold_kind = batchor_resource(context.resources).hold_kind
        self._time_box = TimeBox(SECONDS)
        self.partitions = DefinedPartitions(context.instance)

    def end_groups(self, groups: Sequence[WaiterGroup]) -> None:
        """End what belongs to assets that are gone, and to cancelled backfills and holds.

        What there is no time for is found again by the next tick.
        """
        for asset in sorted({group.asset for group in groups} - set(self._declarations)):
            for waiter in self._all(assets=[asset]):
                self.end(waiter, _is_gone(asset))
        for backfill, hold in sorted({group.fields for group in groups}, key=str):
            named = {"backfill": backfill, "hold": hold}
            payload = {name: [value] for name, value in named.items() if value is not None}
            reason = self._backfills.reason_to_end_all(backfill, hold)
            if reason is not None:
                for waiter in self._all(payload=payload):
                    self.end(waiter, reason)
            elif self._backfills.is_lost(backfill, hold):
                self._reopen(self._all(payload=payload))

    def end_terminated(self, since: float | None) -> None:
        """End the waiters whose requests were terminated after an instant (Unix time)."""
        if since is None:
            return
        after = datetime.fromtimestamp(since - _OVERLAP_S, UTC)
        cancelled = dg.RunsFilter(statuses=[dg.DagsterRunStatus.CANCELED], updated_after=after)
        for group in in_groups(list(self._instance.get_run_ids(cancelled))):
            for waiter in self._all(payload={"dagster_run": group}):
                self.end(waiter, request_was_terminated(waiter.payload["dagster_run"]))

    def take_turn(self, after: str | None) -> str | None:
        """Look at the next few waiters one by one.

        Args:
            after: The last waiter of the turn before; None begins with the oldest.

        Returns:
            The last one of this turn; None if no others are left.
        """
        waiters = self._store.list_waiters(
            namespace=self._namespace,
            states=[WaiterState.OPEN],
            after=after,
            limit=WAITERS_PER_TURN,
        )
        for wish in load_wishes(self._store, self._instance, waiters):
            if self._time_box.is_over:
                return after
            after = wish.waiter.waiter_id
            reason = self.reason(wish)
            if reason is None:
                self._reopen_one(wish)
            else:
                self.end(wish.waiter, reason)
        return after if len(waiters) == WAITERS_PER_TURN else None

    def reason(self, wish: Wish) -> str | None:
        """Return why nobody wants a wish any more, or None."""
        return self._what_is_gone(wish.waiter) or self._backfills.reason_to_end(wish)

    def end(self, waiter: Waiter, reason: str) -> None:
        """End a waiter, and with the last one its batch run."""
        if end_waiter(self._store, waiter, reason):
            self._log.info("batch run %s is cancelled: %s", waiter.run_id, reason)

    def _all(self, **which: object) -> Iterator[Waiter]:
        """Yield all open waiters of a kind, while there is time; the caller may end them."""
        after: str | None = None
        while True:
            page = self._store.list_waiters(
                namespace=self._namespace,
                states=[WaiterState.OPEN],
                after=after,
                limit=WAITERS_PER_TURN,
                **which,  # type: ignore[arg-type]  # as named there
            )
            yield from takewhile(lambda _: not self._time_box.is_over, page)
            if self._time_box.is_over or len(page) < WAITERS_PER_TURN:
                return
            after = page[-1].waiter_id

    def _reopen(self, waiters: Iterator[Waiter]) -> None:
        for waiter in waiters:
            for wish in load_wishes(self._store, self._instance, [waiter]):
                self._reopen_one(wish)

    def _reopen_one(self, wish: Wish) -> None:
        warning = self._backfills.reopen(self._store, wish, self._hold_kind)
        if warning:
            self._log.warning(warning)

    def _what_is_gone(self, waiter: Waiter) -> str | None:
        declaration = self._declarations.get(waiter.asset)
        if declaration is None:
            return _is_gone(waiter.asset)
        keys = waiter.partitions or ("",)
        # Some of several are given up where the waiter's partitions are cut into segments.
        if any(self.partitions.has(declaration.partitions_def, key) for key in keys):
            return None
        return f"partition {keys[0]!r} of {waiter.asset!r} is not defined any more"


def _is_gone(asset: str) -> str:
    return f"asset {asset!r} is not defined any more"
