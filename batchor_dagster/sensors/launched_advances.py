"""The Dagster runs that advance batch runs, from their launch until they are given up or over."""

import time
from collections.abc import Mapping
from itertools import chain

import dagster as dg
from pydantic import BaseModel

from batchor_core import TimingPolicy
from batchor_core.integration import RunRecord, Store
from batchor_dagster.waiting.launched_runs import LaunchedRuns

_LAUNCH_GRACE_S = 60.0
"""How long a requested Dagster run may take to appear, and a running one be silent beside the time
of its lease."""

_START_GRACE_S = 600.0
"""How long a Dagster run may take to start once it has left the queue. Dagster's own monitoring of
runs, where it is on, is faster, and ends it as failed."""

_WAITING_TO_START = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)


class Launched(BaseModel):
    """One requested Dagster run.

    Attributes:
        at: Unix time in seconds of the request.
        sends_in: The scope in which it does nothing but send; None for other work.
        status: Dagster's, as last seen; None before it has appeared.
        alive_at: Unix time in seconds of the last sign of life: it was seen in the queue, in
            another status than before, or with a lease.
    """

    batch_runs: list[str]
    at: float
    sends_in: str | None = None
    status: str | None = None
    alive_at: float = 0.0


def still_going(
    instance: dg.DagsterInstance, store: Store, launched: Mapping[str, Launched]
) -> dict[str, Launched]:
    """Return those, by run key, whose batch runs are to be left alone.

    One that is finished, that never appeared, or that has left the queue and then advances nothing
    (no lease is in force) for too long is given up: the next launch has a new run key. Should it go
    on after all, the leases keep it from what others are advancing. One that is queued will have
    its turn, however long that takes: another one would only stand behind it.
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
    """Return how long a running Dagster run may hold no lease: between two it does other things."""
    timing = TimingPolicy.model_validate(run.spec["timing"] if run else {})
    return _LAUNCH_GRACE_S + timing.lease_s
