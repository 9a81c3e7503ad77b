"""Dagster's daemon for batch assets, in the process of a test and only on demand."""

import uuid
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from batchor_core.integration import OrchestratorStore, WaiterState
from batchor_dagster.constants import ADVANCE_JOB, TAG_RUN_KEY, TAG_SERVED_IN_PROCESS
from batchor_dagster.sensors.ticks import MINIMUM_INTERVAL_SECONDS
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR

WAITS_S = tuple(30.0 * 2**n for n in range(15))
"""How long to wait for a provider while nothing happens, in seconds: some eleven days in all."""

_MOST_ROUNDS = 1_000
_WAITING = dg.DagsterRunStatus.STARTING


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """A Dagster run that is on record and waits for a slot.

    Attributes:
        request: The run request of a sensor.
        run_id: The id of the Dagster run.
    """

    request: dg.RunRequest
    run_id: str


class InProcessDaemon:
    """Evaluates the two sensors of a code location, and executes the Dagster runs they ask for.

    A tick or a Dagster run that ends with an exception leaves behind what it has stored by then, as
    a killed process does: the cursor is stored after the tick.

    Args:
        definitions: The code location, with its sensors; ``deploy`` replaces it.
        instance: The Dagster instance.
        store: The batch runs' store.
        namespace: The namespace of the batch runs.
        pass_time: Called with the seconds to wait for a provider.
        waits_s: How long to wait before each further look while nothing happens.
        cursors: The sensors' cursors, by name; changed in place.
    """

    def __init__(
        self,
        definitions: dg.Definitions,
        instance: dg.DagsterInstance,
        *,
        store: OrchestratorStore,
        namespace: str,
        pass_time: Callable[[float], None],
        waits_s: Sequence[float] = WAITS_S,
        cursors: MutableMapping[str, str | None] | None = None,
    ) -> None:
        self._definitions = definitions
        self._instance = instance
        self._store = store
        self._namespace = namespace
        self._pass_time = pass_time
        self._waits_s = waits_s
        self._cursors = {} if cursors is None else cursors

    def show_life(self) -> None:
        """Record heartbeats of both sensors, so that requests do not warn of missing ones."""
        for sensor in (ADVANCE_SENSOR, MATERIALIZE_SENSOR):
            self._store.note_heartbeat(self._namespace, sensor, MINIMUM_INTERVAL_SECONDS)

    def deploy(self, definitions: dg.Definitions) -> None:
        """Go on with other definitions; runs, cursors and the queue stay as they are."""
        self._definitions = definitions

    def tick(self, sensor: str) -> Any:
        """Evaluate a sensor; return its run requests, skip message and asset events."""
        repository = self._definitions.get_repository_def()
        definition = repository.get_sensor_def(sensor)
        resources = self._definitions.resources or {}
        with (
            # As Dagster's code server does it, for dynamic partitions.
            dg.partition_loading_context(dynamic_partitions_store=self._instance),
            dg.build_sensor_context(
                instance=self._instance,
                cursor=self._cursors.get(sensor),
                repository_def=repository,
                resources={key: resources[key] for key in definition.required_resource_keys},
            ) as context,
        ):
            data = definition.evaluate_tick(context)
        for event in data.asset_events:
            self._instance.report_runless_asset_event(event)
        self._cursors[sensor] = data.cursor
        return data

    def requests(self, sensor: str) -> list[dg.RunRequest]:
        """Evaluate a sensor; return the run requests that Dagster's daemon would launch.

        Like the daemon, it leaves out run requests whose run key was used before.
        """
        asked = self.tick(sensor).run_requests or ()
        return [request for request in asked if not self._is_used(request.run_key)]

    def launch(
        self, request: dg.RunRequest, *, raise_on_error: bool = False, run_id: str | None = None
    ) -> dg.ExecuteInProcessResult:
        """Execute the Dagster run of a run request.

        Args:
            request: A run request of a sensor.
            raise_on_error: Whether to raise the exception of a failing step.
            run_id: The id of the Dagster run; default: a fresh one.
        """
        job, selection = self._target(request)
        result: dg.ExecuteInProcessResult = job.execute_in_process(
            run_config=request.run_config,
            asset_selection=selection,
            partition_key=request.partition_key,
            tags=_tags(request),
            instance=self._instance,
            raise_on_error=raise_on_error,
            run_id=run_id,
        )
        return result

    def enqueue(self, request: dg.RunRequest) -> QueuedRun:
        """Record the Dagster run of a run request as one that waits for a worker.

        ``execute`` such runs in any order, or never. Their status is STARTING, since Dagster queues
        nothing without a code server.
        """
        job, selection = self._target(request)
        tags = {**job.run_tags, **_tags(request)}
        subset = job.get_subset(asset_selection=frozenset(selection)) if selection else job
        if request.partition_key is not None and subset.partitions_def is not None:
            tags |= subset.partitions_def.get_tags_for_partition_key(request.partition_key)
        run = dg.DagsterRun(
            job_name=job.name,
            run_id=str(uuid.uuid4()),
            run_config=request.run_config,
            tags=tags,
            status=_WAITING,
            asset_selection=frozenset(selection) if selection else None,
        )
        self._instance.add_run(run)
        return QueuedRun(request=request, run_id=run.run_id)

    def execute(
        self, queued: QueuedRun, *, raise_on_error: bool = False
    ) -> dg.ExecuteInProcessResult | None:
        """Execute a queued Dagster run with the current definitions.

        Returns:
            None if the run was terminated in the queue, or if the definitions no longer have its
            assets, in which case it is recorded as failed.
        """
        run = self._instance.get_run_by_id(queued.run_id)
        if run is None or run.status is not _WAITING:
            return None
        self._instance.delete_run(run.run_id)  # it is made anew, under the same id
        try:
            return self.launch(queued.request, raise_on_error=raise_on_error, run_id=run.run_id)
        except dg.DagsterInvalidSubsetError:
            self._instance.add_run(run.with_status(dg.DagsterRunStatus.FAILURE))
            return None

    def materialize(
        self,
        selection: Sequence[dg.AssetKey],
        *,
        partition_key: str | None = None,
        run_config: Any = None,
        tags: dict[str, str] | None = None,
        raise_on_error: bool = False,
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets and evaluate their checks, as Dagster's own asset job does.

        For a range of partitions give Dagster's two range tags.
        """
        job = self._definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=list(selection),
            partition_key=partition_key,
            run_config=run_config,
            tags={TAG_SERVED_IN_PROCESS: "true", **(tags or {})},
            instance=self._instance,
            raise_on_error=raise_on_error,
        )

    def advance(self) -> list[dg.ExecuteInProcessResult]:
        """Tick the advance sensor, execute the runs that it launches, and return their results."""
        return [self.launch(request) for request in self.requests(ADVANCE_SENSOR)]

    def drive(self) -> list[dg.ExecuteInProcessResult]:
        """Advance all batch runs to their end; let time pass to wait for a provider.

        Gives up when nothing has happened for the sum of ``waits_s``.
        """
        results: list[dg.ExecuteInProcessResult] = []
        waits = iter(self._waits_s)
        for _ in range(_MOST_ROUNDS):
            if not self._store.count_open_runs(self._namespace):
                break
            ran = self.advance()
            results += ran
            if any(result.success for result in ran):
                waits = iter(self._waits_s)
                continue
            seconds = next(waits, None)
            if seconds is None:
                break
            self._pass_time(seconds)
        return results

    def serve(self, *, raise_on_error: bool = False) -> list[dg.ExecuteInProcessResult]:
        """Execute materialize runs until a tick requests nothing and ends no waiter."""
        results: list[dg.ExecuteInProcessResult] = []
        while True:
            before = self._open_waiters()
            asked = self.requests(MATERIALIZE_SENSOR)
            if not asked and self._open_waiters() == before:
                return results
            results += [self.launch(request, raise_on_error=raise_on_error) for request in asked]

    def finish(self, *, raise_on_error: bool = False) -> list[dg.ExecuteInProcessResult]:
        """Advance and serve until all waiters have ended, or nothing changes any more.

        Returns:
            The materialize runs.

        Raises:
            dagster.Failure: ``raise_on_error`` is set, and a partition did not materialize. An
                exception of an asset's function is raised as it is.
        """
        results = self.serve(raise_on_error=raise_on_error)  # also cancels moot waiters
        while self._store.count_open_runs(self._namespace) or self._open_waiters():
            self.drive()
            served = self.serve(raise_on_error=raise_on_error)
            if not served:
                break
            results += served
        return results

    def _target(self, request: dg.RunRequest) -> tuple[Any, list[dg.AssetKey] | None]:
        """Return the job of a run request, and the assets that it selects (None: all)."""
        definitions, keys = self._definitions, request.asset_selection
        if keys is None and request.asset_check_keys is None:
            return definitions.resolve_job_def(request.job_name or ADVANCE_JOB), None
        job = (
            definitions.resolve_implicit_global_asset_job_def()
            if request.job_name is None
            else definitions.resolve_job_def(request.job_name)
        )
        checks, selected = set(request.asset_check_keys or ()), frozenset(keys or ())
        if checks <= job.asset_layer.asset_graph.get_check_keys_for_assets(selected):
            return job, list(selected)
        # Checks of other assets: Dagster's in-process execution knows no selection of those.
        return job.get_subset(asset_selection=selected, asset_check_selection=checks), None

    def _is_used(self, run_key: str | None) -> bool:
        if run_key is None:
            return False
        used = dg.RunsFilter(tags={TAG_RUN_KEY: run_key})
        return bool(self._instance.get_run_records(used, limit=1))

    def _open_waiters(self) -> int:
        waiters = self._store.list_waiters(namespace=self._namespace, states=[WaiterState.OPEN])
        return len(waiters)


def _tags(request: dg.RunRequest) -> dict[str, str]:
    """Return the tags of a run request's Dagster run, as Dagster's daemon sets them."""
    key = {} if request.run_key is None else {TAG_RUN_KEY: request.run_key}
    return {**request.tags, **key, TAG_SERVED_IN_PROCESS: "true"}
