"""``materialize_batch_assets``: request, sensors and provider in the process of a test."""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg

from batchor_core import BatchRunner
from batchor_core.integration import RunRecord, Waiter, WaiterState
from batchor_core.simulator import Simulator
from batchor_dagster.constants import TAG_PARTITION_RANGE_END, TAG_PARTITION_RANGE_START
from batchor_dagster.resources.connections import open_runner
from batchor_dagster.testing.clock import MovedClock
from batchor_dagster.testing.code_location import CodeLocation, Wave
from batchor_dagster.testing.daemon import InProcessDaemon
from batchor_dagster.testing.environment import simulated_environment
from batchor_dagster.testing.outcome import Outcome, Wanted, failure_message
from batchor_dagster.testing.resources import SimulatedWorld
from batchor_dagster.testing.result import BatchMaterializeResult


@dataclass(frozen=True, kw_only=True)
class _Partitions:
    """The partitions of one request: one key, a range by its tags, or none."""

    key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def keys_of(self, asset: Any, instance: dg.DagsterInstance) -> Sequence[str | None]:
        """Return the requested partitions of an asset; None for one without partitions."""
        if not self.tags:
            return [self.key]
        ends = dg.PartitionKeyRange(
            self.tags[TAG_PARTITION_RANGE_START], self.tags[TAG_PARTITION_RANGE_END]
        )
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            keys: Sequence[str] = asset.partitions_def.get_partition_keys_in_range(ends)
        return keys


def materialize_batch_assets(
    assets: Iterable[Any] | dg.Definitions,
    *,
    selection: Any = None,
    partition_key: str | None = None,
    partition_keys: Sequence[str] | None = None,
    partition_range: tuple[str, str] | None = None,
    run_config: Any = None,
    tags: Mapping[str, str] | None = None,
    resources: Mapping[str, Any] | None = None,
    instance: dg.DagsterInstance | None = None,
    simulator: Simulator | None = None,
    folder: Path | None = None,
    raise_on_error: bool = True,
) -> BatchMaterializeResult:
    """Materialize batch assets, and assets around them, against a simulated provider.

    Like ``dagster.materialize``, but after the requests it also runs both sensors, the job
    ``batchor_advance`` and the materialize runs in this process, with the code of production, until
    everything is materialized or nothing changes any more. It does not wait: it moves the time of
    the provider and of the batch runs, but not that of Dagster.

    Every provider's resource calls the simulator, whatever its configuration. The resource
    ``batchor`` and each ``BatchParquetIOManager`` of ``Definitions`` are moved to ``folder``; other
    resources are used as they are. Those in ``resources`` are used as they are, except accounts. It
    makes what is missing: ``batchor``, ``openai``, ``anthropic``, ``gemini``, and as ``io_manager``
    a ``BatchParquetIOManager`` in ``folder``.

    Each partition key has a request of its own. Assets without partitions are requested before the
    partitioned ones, or after them if they depend on them, as in a backfill. If an asset depends on
    its own earlier partitions, each is materialized before the next is requested: give the keys in
    order.

    Args:
        assets: Assets and asset checks, or the whole ``Definitions`` of a code location, which have
            to include the sensors of ``build_batch_sensors``.
        selection: The assets to materialize, as for ``dagster.materialize``; default: all.
        partition_key: One partition.
        partition_keys: Several partitions, each in a Dagster run of its own.
        partition_range: First and last of several partitions in one Dagster run.
        run_config: Run configuration of the requests.
        tags: Tags of the requests.
        resources: Resources that replace those of the ``Definitions``, or are added to them.
        instance: A Dagster instance; default: one in memory, which the result keeps.
        simulator: The simulator of the fixture, with faults and answers of your own; default: a new
            one for this call.
        folder: Where state and results are kept; default: a new folder that is removed with the
            result. A second call with the same folder and instance goes on from the first.
        raise_on_error: Raise the first failure; otherwise the result names what failed.

    Raises:
        dagster.Failure: ``raise_on_error`` is set, and a partition got the verdict that it failed,
            an asset was not materialized for another reason, or its blocking check failed.
        ConfigurationError: There is no batch asset, or its resource or the sensors are missing.
        ValueError: The selected assets have several kinds of partitions, or keys are missing.
    """
    partitions = _requests(partition_key, partition_keys, partition_range)
    with ExitStack() as kept, ExitStack() as stack:
        simulator = simulator or stack.enter_context(Simulator())
        stack.enter_context(simulated_environment(simulator))
        folder = folder or _temporary_folder(kept)
        clock = MovedClock(simulator.advance_time)
        place = SimulatedWorld(folder=folder, simulator=simulator, clock=clock)
        location = CodeLocation.of(assets, place, resources or {})
        if instance is None:
            instance = dg.DagsterInstance.ephemeral(tempdir=str(folder))
            kept.callback(instance.dispose)
        # With the accounts and the clock of the Dagster runs.
        runner = stack.enter_context(open_runner(SimpleNamespace(**location.resources), None))
        attempt = _Attempt(location, instance, runner, clock, raise_on_error=raise_on_error)
        attempt.materialize(selection, partitions, run_config=run_config, tags=dict(tags or {}))
        result = attempt.result(folder, simulator.state.ledger_report(entries=True))
        weakref.finalize(result, kept.pop_all().close)
    return result


class _Attempt:
    """One call of ``materialize_batch_assets``: its requests and their results."""

    def __init__(
        self,
        location: CodeLocation,
        instance: dg.DagsterInstance,
        runner: BatchRunner,
        clock: MovedClock,
        *,
        raise_on_error: bool,
    ) -> None:
        self._location = location
        self._instance = instance
        self._runner = runner
        self._raise_on_error = raise_on_error
        self._daemon = InProcessDaemon(
            location.definitions,
            instance,
            store=runner.store,
            namespace=runner.namespace,
            pass_time=clock.advance,
        )
        self._earlier_waiters = {waiter.waiter_id for waiter in self._all_waiters()}
        self._earlier_runs = {run.run_id for run in self._all_runs()}
        self._wanted: list[Wanted] = []
        self._requests: list[dg.ExecuteInProcessResult] = []
        self._served: list[dg.ExecuteInProcessResult] = []

    def materialize(
        self,
        selection: Any,
        partitions: Sequence[_Partitions],
        *,
        run_config: Any,
        tags: dict[str, str],
    ) -> None:
        """Materialize the selected assets wave by wave; stop after a wave that has problems."""
        waves = list(self._location.waves(selection))
        if any(wave.is_partitioned for wave in waves) != bool(partitions):
            raise ValueError(
                "give partition_key, partition_keys or partition_range where partitioned assets "
                "are selected, and only there"
            )
        self._wanted = [one for wave in waves for one in self._wanted_of(wave, partitions)]
        self._daemon.show_life()
        for wave in waves:
            for one in partitions if wave.is_partitioned else [_Partitions()]:
                asked = self._daemon.materialize(
                    wave.keys,
                    partition_key=one.key,
                    run_config=run_config,
                    tags=tags | one.tags,
                    raise_on_error=self._raise_on_error,
                )
                self._requests.append(asked)
                if wave.is_serial:
                    self._see_through()
            self._see_through()
            if self._problems(self._wanted_of(wave, partitions)):
                break

    def _wanted_of(self, wave: Wave, partitions: Sequence[_Partitions]) -> list[Wanted]:
        """Return the assets of a wave, each with every requested partition."""
        return [
            (key, partition)
            for one in (partitions if wave.is_partitioned else [_Partitions()])
            for key in wave.keys
            for partition in one.keys_of(self._location.graph.get(key), self._instance)
        ]

    def _see_through(self) -> None:
        self._served += self._daemon.finish(raise_on_error=self._raise_on_error)

    def result(self, folder: Path, ledger: Mapping[str, Any]) -> BatchMaterializeResult:
        """Return the result.

        Raises:
            dagster.Failure: There are problems, and ``raise_on_error`` is set.
        """
        problems = self._problems(self._wanted)
        if problems and self._raise_on_error:
            raise dg.Failure("\n".join(problems))
        runs = [run for run in self._all_runs() if run.run_id not in self._earlier_runs]
        return BatchMaterializeResult(
            success=not problems,
            problems=problems,
            requests=self._requests,
            dagster_runs=[*self._requests, *self._served],
            batch_runs=[self._runner.get_run(run.run_id).summary() for run in reversed(runs)],
            ledger=ledger,
            folder=folder,
            instance=self._instance,
            definitions=self._location.definitions,
        )

    def _problems(self, wanted: Sequence[Wanted]) -> list[str]:
        """Return why assets of ``wanted`` are not materialized."""
        outcome = Outcome(self._location.graph, [*self._requests, *self._served])
        return self._failures() or outcome.problems(wanted)

    def _failures(self) -> list[str]:
        """Return the failures of requests and of waiters."""
        failed = [
            f"{event.step_key}: {failure_message(event)}"
            for asked in self._requests
            for event in asked.get_step_failure_events()
        ]
        waiters = [w for w in self._all_waiters() if w.waiter_id not in self._earlier_waiters]
        unserved = [w for w in waiters if w.state is not WaiterState.SERVED]
        return failed + [f"{_name(waiter)}: {self._why(waiter)}" for waiter in unserved]

    def _why(self, waiter: Waiter) -> str:
        if waiter.state is not WaiterState.OPEN:
            return waiter.reason or waiter.state.value
        run = self._runner.store.get_run(waiter.run_id)
        reason = f": {run.control_reason}" if run.control_reason else ""
        return f"batch run {run.run_id!r} is {run.state.value} ({run.control.value}{reason})"

    def _all_waiters(self) -> list[Waiter]:
        return self._runner.store.list_waiters(namespace=self._runner.namespace)

    def _all_runs(self) -> list[RunRecord]:
        """Return the batch runs that hold partitions, newest first."""
        store = self._runner.store
        runs = store.list_runs(namespace=self._runner.namespace)
        return [run for run in runs if store.list_members(run.run_id)]


def _requests(
    key: str | None, keys: Sequence[str] | None, ends: tuple[str, str] | None
) -> list[_Partitions]:
    if sum(given is not None for given in (key, keys, ends)) > 1:
        raise ValueError("give one of partition_key, partition_keys and partition_range")
    if ends is not None:
        start, end = ends
        tags = {TAG_PARTITION_RANGE_START: start, TAG_PARTITION_RANGE_END: end}
        return [_Partitions(tags=tags)]
    return [_Partitions(key=each) for each in ([key] if key is not None else keys or ())]


def _temporary_folder(kept: ExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="batchor-testing-"))
    kept.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _name(waiter: Waiter) -> str:
    return f"{waiter.asset}[{', '.join(waiter.partitions)}]" if waiter.partitions else waiter.asset
