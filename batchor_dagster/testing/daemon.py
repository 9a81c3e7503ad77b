"""What Dagster's daemon does for batch assets, in this process and only when told to."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import dagster as dg

from batchor_core.integration import Store, WaiterState
from batchor_dagster.constants import ADVANCE_JOB, TAG_RUN_KEY, TAG_SERVED_IN_PROCESS
from batchor_dagster.waiting.sensor_status import ADVANCE_SENSOR, MATERIALIZE_SENSOR

WAITS_S = tuple(30.0 * 2**n for n in range(15))
"""How long providers are waited for while nothing happens, in seconds: six days and a bit."""

_MOST_ROUNDS = 1_000


class InProcessDaemon:
    """Evaluates the two sensors of a code location, and executes the Dagster runs they ask for.

    Args:
        definitions: The code location, with its sensors.
        instance: Where Dagster's runs and events are kept.
        store: The batch runs' store.
        namespace: Whose batch runs they are.
        pass_time: Called with the seconds that pass while a provider is waited for.
        waits_s: How long to wait before each further look while nothing happens.
        cursors: The sensors' cursors, by name; changed in place.
    """

    def __init__(
        self,
        definitions: dg.Definitions,
        instance: dg.DagsterInstance,
        *,
        store: Store,
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

    def tick(self, sensor: str) -> Any:
        """Evaluate a sensor; return its run requests, skip message and asset events."""
        repository = self._definitions.get_repository_def()
        with (
            # As Dagster's code server does it, for dynamic partitions.
            dg.partition_loading_context(dynamic_partitions_store=self._instance),
            dg.build_sensor_context(
                instance=self._instance,
                cursor=self._cursors.get(sensor),
                repository_def=repository,
                resources=dict(self._definitions.resources or {}),
            ) as context,
        ):
            data = repository.get_sensor_def(sensor).evaluate_tick(context)
        self._cursors[sensor] = data.cursor
        return data

    def launch(
        self, request: dg.RunRequest, *, raise_on_error: bool = False
    ) -> dg.ExecuteInProcessResult:
        """Execute what a sensor asked for: a run of the advance job, or of some assets."""
        tags = {**request.tags, TAG_RUN_KEY: str(request.run_key)}
        if request.asset_selection is None:
            return self._definitions.resolve_job_def(ADVANCE_JOB).execute_in_process(
                run_config=request.run_config,
                tags=tags,
                instance=self._instance,
                raise_on_error=raise_on_error,
            )
        return self.materialize(
            request.asset_selection,
            partition_key=request.partition_key,
            run_config=request.run_config,
            tags=tags,
            raise_on_error=raise_on_error,
        )

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

        A range of partitions is asked for by Dagster's two tags for it.
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
        """Do what is heavy and due now; return the Dagster runs of the advance job."""
        asked = self.tick(ADVANCE_SENSOR).run_requests or ()
        return [self.launch(request) for request in asked]

    def drive(self) -> list[dg.ExecuteInProcessResult]:
        """Advance all batch runs to their end, time passing whenever a provider is waited for.

        Gives up when nothing has happened for as long as it waits.
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
        """Materialize whatever is ready, until a tick asks for nothing and ends nothing."""
        results: list[dg.ExecuteInProcessResult] = []
        while True:
            before = self._open_waiters()
            asked = self.tick(MATERIALIZE_SENSOR).run_requests or ()
            if not asked and self._open_waiters() == before:
                return results
            results += [self.launch(request, raise_on_error=raise_on_error) for request in asked]

    def finish(self, *, raise_on_error: bool = False) -> list[dg.ExecuteInProcessResult]:
        """Do all that the daemon would do until nothing is left, or nothing helps.

        Returns:
            The Dagster runs of assets.

        Raises:
            dagster.Failure: ``raise_on_error`` is set, and a partition did not materialize; or
                whatever else an asset's function has raised then.
        """
        results = self.serve(raise_on_error=raise_on_error)  # ends what nobody wants any more
        while self._store.count_open_runs(self._namespace) or self._open_waiters():
            self.drive()
            served = self.serve(raise_on_error=raise_on_error)
            if not served:
                break
            results += served
        return results

    def _open_waiters(self) -> int:
        waiters = self._store.list_waiters(namespace=self._namespace, states=[WaiterState.OPEN])
        return len(waiters)
