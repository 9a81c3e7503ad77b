"""Follow the launched runs of ``batchor_advance`` until they have ended or count as lost."""

import time
from collections.abc import Mapping
from itertools import chain

import dagster as dg
from pydantic import BaseModel

from batchor_core import TimingPolicy
from batchor_core.integration import OrchestratorStore, RunRecord
from batchor_dagster.waiting.launched_runs import LaunchedRuns

_LAUNCH_GRACE_S = 60.0
"""How long a requested Dagster run may take to appear, and how long beyond the time of a lease a
running one may hold none."""

_START_GRACE_S = 600.0
"""How long a Dagster run may take to start once it has left the queue. Dagster's run monitoring,
where it is on, ends it as failed before."""

_WAITING_TO_START = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)


class Launched(BaseModel):
    """A launched run of ``batchor_advance``.

    Attributes:
        at: When the sensor requested it, as Unix time in seconds.
        sends_in: The scope in which it only sends what is ready; None for other work.
        status: The Dagster run's status as last seen; None before it has appeared.
        alive_at: When it last showed that it is alive, as Unix time in seconds: it was in the
            queue, its status had changed, or one of its batch runs had a lease.
    """

    batch_runs: list[str]
    at: float
    sends_in: str | None = None
    status: str | None = None
    alive_at: float = 0.0


def still_going(
    instance: dg.DagsterInstance, store: OrchestratorStore, launched: Mapping[str, Launched]
) -> dict[str, Launched]:
    """Return the launched Dagster runs that still count, by run key: no other is launched for them.

    A Dagster run no longer counts if it has finished, never appeared, or left the queue and then
    held no lease for too long. Should it go on after all, leases keep it from batch runs that
    others advance. A queued Dagster run counts however long it is queued: another one would only
    queue behind it.
    """
    if not launched:
        return {}
    runs = LaunchedRuns(instance)
    runs.look_up(launched)
    entries = launched.values()
    leased = store.leased(chain.from_iterable(entry.batch_runs for entry in entries))
    records = store.get_runs(entry.batch_runs[0] for entry in entries)
    start_s = max(_START_GRACE_S, 2 * instance.run_monitoring_start_timeout_seconds)
    found: dict[str, Launched] = {}
    for run_key, entry in launched.items():
        run = runs.find(run_key)
        if run is None:
            if time.time() - entry.at < _LAUNCH_GRACE_S:
                found[run_key] = entry
            continue
        seen = _seen(entry, run, is_leased=not leased.isdisjoint(entry.batch_runs))
        may_be_silent_s = (
            start_s
            if run.status in _WAITING_TO_START
            else _longest_silence_s(records.get(entry.batch_runs[0]))
        )
        if not run.is_finished and time.time() - seen.alive_at < may_be_silent_s:
            found[run_key] = seen
    return found


def _seen(entry: Launched, run: dg.DagsterRun, *, is_leased: bool) -> Launched:
    is_queued = run.status is dg.DagsterRunStatus.QUEUED
    is_alive = is_leased or is_queued or run.status.value != entry.status
    alive_at = time.time() if is_alive else entry.alive_at
    return entry.model_copy(update={"status": run.status.value, "alive_at": alive_at})


def _longest_silence_s(run: RunRecord | None) -> float:
    """Return how long a started Dagster run may hold no lease before it counts as lost."""
    timing = TimingPolicy.model_validate(run.spec["timing"] if run else {})
    return _LAUNCH_GRACE_S + timing.lease_s
