"""Choose the earlier batch runs whose answers a request reuses."""

from collections.abc import Sequence

from batchor_core import ReusePolicy
from batchor_core.integration import OrchestratorStore, RunRecord, WaiterState
from batchor_dagster.step.step import Step
from batchor_dagster.waiting.launch_spec import LaunchSpec
from batchor_dagster.waiting.launches import launches_of


def reuse_policy(step: Step, partitions: Sequence[str]) -> ReusePolicy:
    """Return the earlier batch runs whose answers a new batch run for these partitions reuses.

    ``refresh: all`` and ``reuse="off"`` ask again for answers that were materialized. They still
    reuse answers that were paid for and not materialized: those of a preview, or of a batch run
    whose materialize runs failed for a technical reason.
    """
    if step.config.refresh == "all" or step.declaration.reuse == "off":
        return ReusePolicy(run_ids=tuple(_not_handed_over(step, partitions)))
    store = step.runner.store
    earlier = store.latest_runs(step.identities(partitions), but="")
    if step.config.refresh == "failed":
        # A preview may have tried out another prompt: its answers are not the partition's.
        asked_for = [run_id for run_id in earlier if store.list_waiters(run_id=run_id, limit=1)]
        return ReusePolicy(match="item", run_ids=tuple(asked_for))
    return ReusePolicy(
        source="namespace" if step.declaration.reuse == "namespace" else "predecessor",
        run_ids=tuple(earlier),
    )


def _not_handed_over(step: Step, partitions: Sequence[str]) -> list[str]:
    """Return the batch runs whose answers at least one of the partitions has not received.

    Newest first; for each partition only those after the last batch run that was materialized for
    it, or that gave it a verdict. A batch run over several partitions counts as a whole.
    """
    store, identities = step.runner.store, step.identities(partitions)
    newest = store.latest_runs(identities, but="")
    records, left = store.get_runs(newest), set(identities)
    found = []
    for run in sorted((records[r] for r in newest), key=lambda run: run.created_at, reverse=True):
        asked = {member.identity for member in store.list_members(run.run_id)} & left
        served = _handed_over(store, run)
        handed_over = {identity for identity in asked if identity.partition in served}
        if asked - handed_over:
            found.append(run.run_id)
        left -= handed_over
    return found


def _handed_over(store: OrchestratorStore, run: RunRecord) -> set[str]:
    """Return the partitions that a batch run's answers materialized, or gave a verdict."""
    if not run.state.is_complete:
        return set()
    found: set[str] = set()
    for waiter in store.list_waiters(run_id=run.run_id):
        if waiter.state is WaiterState.SERVED:
            found.update(waiter.partitions or ("",))
        for launch in launches_of(waiter, LaunchSpec.of_waiter(waiter)):
            if launch.is_verdict or waiter.asset in launch.done:
                found.update(launch.partitions or ("",))
    return found
