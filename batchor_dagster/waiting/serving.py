"""Serving waiters: which Dagster runs materialize what, and when a waiter is done.

Everything here is decided from stored records and from Dagster's own run records, so that a tick
that dies in the middle is repeated by the next.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import dagster as dg

from batchor_core import RunState
from batchor_core.integration import Identity, Member, Store, WaiterState
from batchor_dagster.asset.declaration import BatchAssetDeclaration
from batchor_dagster.asset.partitions import DefinedPartitions
from batchor_dagster.waiting.attempts import Attempt
from batchor_dagster.waiting.launched_runs import LaunchedRuns
from batchor_dagster.waiting.launches import MAX_ATTEMPTS, Launch, LaunchState, cut
from batchor_dagster.waiting.launching import CannotLaunchError, Launchable, Launcher
from batchor_dagster.waiting.shared import Families
from batchor_dagster.waiting.waiters import AssetWaiter

_NO_ANSWERS = frozenset({RunState.CANCELLED, RunState.FAILED})


class Tell(Protocol):
    """Lets people see what no Dagster run shows."""

    def __call__(
        self, waiter: AssetWaiter, partitions: Sequence[str], reason: str, *, is_final: bool
    ) -> None:
        """Tell why some of it was left out or, finally, why nothing will be materialized."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Finds the Dagster runs that waiters need, during one tick.

    Attributes:
        store: The control plane.
        members: Returns the members of a batch run; a waiter in pieces asks for each piece.
        instance: Where Dagster's runs are on record.
        declarations: The batch assets that there are, by name.
        partitions: Which partitions are defined.
        is_settled: Whether an asset has been defined as it is now for so long that what is missing
            is taken to be gone.
        runs: The Dagster runs that were launched.
        launcher: Makes run requests.
        families: The waiters that share what is downstream of them.
        tell: See ``Tell``.
    """

    store: Store
    members: Callable[[str], Sequence[Member]]
    instance: dg.DagsterInstance
    declarations: Mapping[str, BatchAssetDeclaration]
    partitions: DefinedPartitions
    is_settled: Callable[[str], bool]
    runs: LaunchedRuns
    launcher: Launcher
    families: Families
    tell: Tell

    def serve(self, waiter: AssetWaiter) -> Iterator[dg.RunRequest | None]:
        """Yield the Dagster runs that a ready waiter needs now; end it once all have ended.

        Yields None for each that it has and that is not over. May be left at any point: what was
        found out by then is stored.
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

    # -- what became of the current attempt ---------------------------------------------------

    def _is_going(self, waiter: AssetWaiter, index: int) -> bool:
        return self.runs.find(waiter.launches[index].run_key(waiter.stored)) is not None

    def _settle(self, waiter: AssetWaiter, index: int) -> AssetWaiter:
        """Note what became of a launch's current Dagster run, and what is ready because of it."""
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
        """Return a launch as its finished Dagster run says that it is now."""
        if run.status is dg.DagsterRunStatus.SUCCESS:
            # Batch assets downstream of it have only been asked for; they are done by themselves.
            done = [n for n in launch.left if n == waiter.spec.asset or n not in self.declarations]
            state = LaunchState.FAILED if launch.given_up else LaunchState.MATERIALIZED
            return dataclasses.replace(launch, done=(*launch.done, *done)).ended(state)
        attempt = Attempt.of(self.instance, run, waiter.partitions_of(launch))
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
        """Let partitions be asked again that were judged: who does wants another answer."""
        stored = waiter.stored
        self.store.release_members(
            stored.run_id,
            [
                Identity(namespace=stored.namespace, asset=stored.asset, partition=key)
                for key in launch.partitions or ("",)
            ],
        )

    # -- what to launch -----------------------------------------------------------------------

    def _prepare(self, waiter: AssetWaiter, index: int) -> AssetWaiter:
        """Cut a launch that no Dagster run was asked for into what one can materialize."""
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
        """Return what tells partitions apart that one Dagster run does not materialize together."""
        verdicts = self._verdicts(waiter) if waiter.spec.asset in launch.left else {}
        gone = set(self._gone(waiter, launch))
        return {key: (key in gone, verdicts.get(key, True)) for key in launch.partitions}

    def _verdicts(self, waiter: AssetWaiter) -> dict[str, bool]:
        """Return by partition whether it will materialize."""
        if waiter.run.state in _NO_ANSWERS or len(waiter.stored.partitions) < 2:
            return {}
        most = self.declarations[waiter.stored.asset].max_failure_rate
        return {
            member.identity.partition: is_good(member.item_count, member.ok_count, most)
            for member in self.members(waiter.run.run_id)
        }

    def _launchable(self, waiter: AssetWaiter, launch: Launch) -> Launchable | None:
        """Return what to launch; None if it has to wait, or cannot be launched and was ended."""
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
        """Return the blocking checks that the attempt before has not come to evaluate."""
        if not launch.attempt or not launch.done:
            return frozenset()
        before = dataclasses.replace(launch, attempt=launch.attempt - 1)
        run = self.runs.find(before.run_key(waiter.stored))
        if run is None:
            return frozenset()
        pending = Attempt.of(self.instance, run, waiter.partitions_of(launch)).pending_checks
        return frozenset(
            check
            for check in pending
            if check.asset_key.to_user_string() in launch.done and self.launcher.is_blocking(check)
        )

    def _leave_out(
        self, waiter: AssetWaiter, launch: Launch, launchable: Launchable
    ) -> AssetWaiter:
        """Note what is left out of a launch, and let people see it."""
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
        return self.launcher.definition_of(launch.assets)  # of one without partitions, too

    def _note(self, waiter: AssetWaiter, *launches: Launch) -> AssetWaiter:
        changed = waiter.note(self.store, launches)
        self.families.update(changed)
        return changed

    def _refresh(self, waiter: AssetWaiter) -> AssetWaiter:
        return waiter.with_stored(self.store.get_waiter(waiter.stored.waiter_id))

    def _end(self, waiter: AssetWaiter) -> None:
        """End a waiter of which nothing is left to launch."""
        is_open = any(launch.is_open for launch in waiter.launches)
        if is_open or waiter.stored.state is not WaiterState.OPEN:
            return
        asset = waiter.spec.asset
        # It waited for its own asset; what is downstream of it may have failed.
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
    """Return the run keys by which a waiter is served now."""
    return [launch.run_key(waiter.stored) for launch in waiter.launches if launch.is_open]


def is_good(rows: int, ok: int | None, max_failure_rate: float) -> bool:
    """Whether a partition with so many answered rows materializes."""
    if not rows or ok is None:
        return True
    return ok > 0 and (rows - ok) / rows <= max_failure_rate


def _without_blocked(
    waiter: AssetWaiter, launch: Launch, attempt: Attempt, launcher: Launcher
) -> Launch:
    """Return a launch without what is downstream of a failed blocking check: that is a verdict."""
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
