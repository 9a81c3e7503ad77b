"""Serve ready waiters: decide which Dagster runs to launch, and end waiters that are served.

All decisions follow from stored records and from Dagster's run records, so that the next tick
repeats a tick that died in the middle.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import dagster as dg

from batchor_core.integration import Identity, Member, OrchestratorStore, WaiterState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.waiting.attempts import Attempt
from batchor_dagster.waiting.launched_runs import LaunchedRuns
from batchor_dagster.waiting.launches import MAX_ATTEMPTS, Launch, LaunchState, cut
from batchor_dagster.waiting.launching import CannotLaunchError, Launchable, Launcher
from batchor_dagster.waiting.shared import Families
from batchor_dagster.waiting.waiters import AssetWaiter


class Tell(Protocol):
    """Shows users what no Dagster run shows."""

    def __call__(
        self, waiter: AssetWaiter, partitions: Sequence[str], reason: str, *, is_final: bool
    ) -> None:
        """Tell why assets were left out, or (``is_final``) why nothing will materialize."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Decides which Dagster runs ready waiters need, during one tick.

    Attributes:
        store: The control plane.
        members: Returns the members of a batch run; a waiter in pieces asks for each piece.
        attempt: Reads a failed Dagster run, by its id, for some partitions; asked for twice.
        declarations: The batch assets, by name.
        partitions: Which partitions are defined.
        is_settled: Whether missing partitions of an asset count as gone.
        runs: The Dagster runs that were launched.
        launcher: Makes run requests.
        families: The waiters that share downstream assets.
        tell: See ``Tell``.
    """

    store: OrchestratorStore
    members: Callable[[str], Sequence[Member]]
    attempt: Callable[[str, tuple[str, ...]], Attempt]
    declarations: Mapping[str, BatchAssetDeclaration]
    partitions: DefinedPartitions
    is_settled: Callable[[str], bool]
    runs: LaunchedRuns
    launcher: Launcher
    families: Families
    tell: Tell

    def serve(self, waiter: AssetWaiter) -> Iterator[dg.RunRequest | None]:
        """Yield a run request for each launch of a ready waiter that has no Dagster run yet.

        Yields None for each launch whose Dagster run is going on. Ends the waiter once all of its
        launches have ended. The caller may stop at any point: each decision is stored when made.
        """
        self.runs.look_up(run_keys(waiter))
        waiter = self._take_along(waiter)
        for index in count():
            if index >= len(waiter.launches):
                break
            if not waiter.launches[index].is_open:
                continue
            waiter = self._settle(waiter, index)
            if waiter.launches[index].is_open and self._is_going(waiter, index):
                yield None
            elif waiter.launches[index].is_open:
                waiter = self._prepare(waiter, index)
                launchable = self._launchable(waiter, waiter.launches[index])
                if launchable is not None:
                    waiter = self._leave_out(waiter, waiter.launches[index], launchable)
                    yield launchable.request
                else:
                    waiter = self._refresh(waiter)
        if not self.families.awaits_step(waiter):
            self._end(waiter)

    def _take_along(self, waiter: AssetWaiter) -> AssetWaiter:
        """Add what is shared with an asset that a step has delivered since launches ended."""
        if not self.families.has_step(waiter):
            return waiter
        ended = [launch for launch in waiter.launches if not launch.is_open]
        ready = self._ready_after(waiter, ended)
        return self._note(waiter, *ready) if ready else waiter

    # -- the current attempt of a launch -------------------------------------------------------

    def _is_going(self, waiter: AssetWaiter, index: int) -> bool:
        return self.runs.find(waiter.launches[index].run_key(waiter.stored)) is not None

    def _settle(self, waiter: AssetWaiter, index: int) -> AssetWaiter:
        """Store how a launch's current Dagster run ended; add the launches ready after it."""
        launch = waiter.launches[index]
        run = self.runs.find(launch.run_key(waiter.stored))
        if run is None or not run.is_finished:
            return waiter
        now = self._after(waiter, launch, run)
        # Stored together: a tick that died in between would leave behind what is ready.
        seen = self._note(waiter, now, *self._ready_after(waiter.with_launches([now]), [now]))
        launch = seen.launches[index]
        # A verdict, or another request, may have come in between.
        if launch == now and launch.is_verdict and not launch.is_open:
            self._free_partitions(seen, launch)
        return seen

    def _ready_after(self, waiter: AssetWaiter, launches: Sequence[Launch]) -> list[Launch]:
        """Return what several batch assets share and is ready now that launches have ended."""
        if not waiter.spec.shared:
            return []
        self.families.update(waiter)
        definition = self.launcher.definition_of(waiter.spec.selection)
        return self.families.ready_after(
            waiter, launches, lambda a, b: self.partitions.follows(definition, a, b)
        )

    def _after(self, waiter: AssetWaiter, launch: Launch, run: dg.DagsterRun) -> Launch:
        """Return a launch after its Dagster run has finished: ended, or at its next attempt."""
        if run.status is dg.DagsterRunStatus.SUCCESS:
            # Batch assets downstream were only requested: they have waiters of their own.
            done = [n for n in launch.left if n == waiter.spec.asset or n not in self.declarations]
            state = LaunchState.FAILED if launch.given_up else LaunchState.MATERIALIZED
            return dataclasses.replace(launch, done=(*launch.done, *done)).ended(state)
        attempt = self.attempt(run.run_id, waiter.partitions_of(launch))
        launch = _without_blocked(waiter, launch, attempt, self.launcher)
        launch = dataclasses.replace(
            launch, done=(*launch.done, *(n for n in launch.left if n in attempt.done))
        )
        asked = self._asked_by(run, waiter, launch)
        launch = dataclasses.replace(launch, asked=(*launch.asked, *asked))
        if not launch.left:
            is_whole = not launch.given_up and launch.reason is None
            return launch.ended(LaunchState.MATERIALIZED if is_whole else LaunchState.FAILED)
        if run.status is dg.DagsterRunStatus.CANCELED:
            return launch.ended(LaunchState.CANCELLED, "its Dagster run was terminated")
        if launch.attempt + 1 >= MAX_ATTEMPTS:
            reason = f"its Dagster run failed {MAX_ATTEMPTS} times"
            return launch.ended(LaunchState.FAILED, reason)
        return dataclasses.replace(launch, attempt=launch.attempt + 1)

    def _asked_by(self, run: dg.DagsterRun, waiter: AssetWaiter, launch: Launch) -> list[str]:
        """Return the batch assets downstream of which a Dagster run has asked all partitions."""
        asset = waiter.spec.asset
        below = [name for name in launch.left if name in self.declarations and name != asset]
        if not below:
            return []
        partitions = set(waiter.partitions_of(launch))
        asked: dict[str, set[str]] = {}
        for one in self.store.list_waiters(
            namespace=waiter.stored.namespace, assets=below, payload={"dagster_run": [run.run_id]}
        ):
            asked.setdefault(one.asset, set()).update(one.partitions or partitions)
        return [name for name in below if name in asked and partitions <= asked[name]]

    def _free_partitions(self, waiter: AssetWaiter, launch: Launch) -> None:
        """Release partitions after a verdict, so that the next request asks for new answers."""
        stored = waiter.stored
        self.store.release_members(
            stored.run_id,
            [
                Identity(namespace=stored.namespace, asset=stored.asset, partition=key)
                for key in launch.partitions or ("",)
            ],
        )

    # -- the next attempt of a launch ----------------------------------------------------------

    def _prepare(self, waiter: AssetWaiter, index: int) -> AssetWaiter:
        """Split a launch into parts that one Dagster run each can materialize."""
        launch = waiter.launches[index]
        definition = self._definition_of(waiter, launch)
        if definition is None or len(launch.partitions) < 2:
            return waiter
        kinds = self._kinds_of(waiter, launch)
        if len(set(kinds.values())) == 1 and self.partitions.is_rectangle(
            definition, launch.partitions
        ):
            return waiter
        pieces = cut(
            launch,
            len(waiter.launches),
            kinds.__getitem__,
            lambda a, b: self.partitions.follows(definition, a, b),
        )
        return waiter if pieces == [launch] else self._note(waiter, *pieces)

    def _kinds_of(self, waiter: AssetWaiter, launch: Launch) -> Mapping[str, object]:
        """Return by partition its kind: one Dagster run takes partitions of one kind only."""
        verdicts = self._verdicts(waiter) if waiter.spec.asset in launch.left else {}
        gone = set(self._gone(waiter, launch))
        return {key: (key in gone, verdicts.get(key, True)) for key in launch.partitions}

    def _verdicts(self, waiter: AssetWaiter) -> dict[str, bool]:
        """Return by partition whether enough of its rows were answered to materialize it."""
        if not waiter.run.state.is_complete or len(waiter.stored.partitions) < 2:
            return {}
        most = self.declarations[waiter.stored.asset].max_failure_rate
        return {
            member.identity.partition: is_good(member.item_count, member.ok_count, most)
            for member in self.members(waiter.run.run_id)
        }

    def _launchable(self, waiter: AssetWaiter, launch: Launch) -> Launchable | None:
        """Return what to launch; None if the launch has to wait, or was ended as not launchable."""
        gone = self._gone(waiter, launch)
        if gone:
            if self.is_settled(waiter.stored.asset):
                reason = f"partition {gone[0]!r} is not defined any more"
                self._note(waiter, launch.ended(LaunchState.CANCELLED, reason))
            return None
        try:
            return self.launcher.run_request(waiter, launch, self._checks_to_pass(waiter, launch))
        except CannotLaunchError as exc:
            self._note(waiter, launch.ended(LaunchState.FAILED, str(exc)))
            is_final = waiter.spec.asset in launch.left
            self.tell(waiter, launch.partitions, str(exc), is_final=is_final)
            return None

    def _gone(self, waiter: AssetWaiter, launch: Launch) -> list[str]:
        """Return the partitions of a launch that are not defined."""
        definition = self._definition_of(waiter, launch)
        if definition is None and waiter.spec.asset not in launch.assets:
            return []  # what is downstream of partitions may have none
        return [key for key in launch.partitions if not self.partitions.has(definition, key)]

    def _checks_to_pass(self, waiter: AssetWaiter, launch: Launch) -> frozenset[dg.AssetCheckKey]:
        """Return the blocking checks that the previous attempt did not evaluate."""
        if not launch.attempt or not launch.done:
            return frozenset()
        before = dataclasses.replace(launch, attempt=launch.attempt - 1)
        run = self.runs.find(before.run_key(waiter.stored))
        if run is None:
            return frozenset()
        pending = self.attempt(run.run_id, waiter.partitions_of(launch)).pending_checks
        return frozenset(
            check
            for check in pending
            if check.asset_key.to_user_string() in launch.done and self.launcher.is_blocking(check)
        )

    def _leave_out(
        self, waiter: AssetWaiter, launch: Launch, launchable: Launchable
    ) -> AssetWaiter:
        """Store which assets a launch leaves out, and tell users."""
        if not launchable.left_out:
            return waiter
        reasons = "; ".join(launchable.left_out.values())
        self.tell(waiter, launch.partitions, reasons, is_final=False)
        given_up = (*launch.given_up, *launchable.left_out)
        return self._note(waiter, dataclasses.replace(launch, given_up=given_up, reason=reasons))

    # -- the waiter ---------------------------------------------------------------------------

    def _definition_of(
        self, waiter: AssetWaiter, launch: Launch
    ) -> dg.PartitionsDefinition[str] | None:
        if waiter.spec.asset in launch.assets:
            return self.declarations[waiter.stored.asset].partitions_def
        return self.launcher.definition_of(launch.assets)  # also for an unpartitioned batch asset

    def _note(self, waiter: AssetWaiter, *launches: Launch) -> AssetWaiter:
        changed = waiter.note(self.store, launches)
        self.families.update(changed)
        return changed

    def _refresh(self, waiter: AssetWaiter) -> AssetWaiter:
        return waiter.with_stored(self.store.get_waiter(waiter.stored.waiter_id))

    def _end(self, waiter: AssetWaiter) -> None:
        """End a waiter whose launches have all ended."""
        is_open = any(launch.is_open for launch in waiter.launches)
        if is_open or waiter.stored.state is not WaiterState.OPEN:
            return
        asset = waiter.spec.asset
        # A waiter is served once its own asset is stored, whatever failed downstream.
        unserved = {
            launch.state
            for launch in waiter.launches
            if launch.is_verdict or (asset in launch.assets and asset not in launch.done)
        }
        reasons = [launch.reason for launch in waiter.launches if launch.reason]
        if LaunchState.FAILED in unserved:
            end = WaiterState.FAILED
        elif unserved:
            end = WaiterState.CANCELLED
        else:
            end = WaiterState.SERVED
        self.store.end_waiter(waiter.stored.waiter_id, end, reasons[0] if reasons else None)
        self.families.update(self._refresh(waiter))


def run_keys(waiter: AssetWaiter) -> list[str]:
    """Return the run keys of a waiter's open launches."""
    return [launch.run_key(waiter.stored) for launch in waiter.launches if launch.is_open]


def is_good(rows: int, ok: int | None, max_failure_rate: float) -> bool:
    """Whether a partition materializes, given its rows and how many were answered."""
    if not rows or ok is None:
        return True
    return ok > 0 and (rows - ok) / rows <= max_failure_rate


def _without_blocked(
    waiter: AssetWaiter, launch: Launch, attempt: Attempt, launcher: Launcher
) -> Launch:
    """Give up the assets downstream of failed blocking checks: such a failure is a verdict."""
    for check, text in attempt.failed_checks.items():
        name = check.asset_key.to_user_string()
        blocked = launcher.downstream_of(name, launch.left) - {name}
        launch = dataclasses.replace(
            launch,
            given_up=(*launch.given_up, *(n for n in launch.left if n in blocked)),
            reason=f"blocking asset check {check.name!r} of {name!r} failed: {text}",
            is_verdict=launch.is_verdict or name == waiter.spec.asset,
        )
    return launch
