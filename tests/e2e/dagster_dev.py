"""A real ``dagster dev`` (webserver, daemon, code server) for tests, and a client for its GraphQL.

Only the standard library is used. The daemon's 30 s interval, at which backfills are looked at, is
a constant in Dagster and cannot be set; the run queue's interval can, and is.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
OPEN_BACKFILL_STATUSES = frozenset({"REQUESTED", "CANCELING", "FAILING"})
_STOP_STEPS = ((signal.SIGINT, 20.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_DAGSTER_YAML = """\
telemetry:
  enabled: false
concurrency:
  runs:
    max_concurrent_runs: {max_concurrent_runs}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
    dequeue_use_threads: true  # the runs' workers start beside, not after, one another
    dequeue_num_workers: 4
sensors:
  use_threads: true
  num_workers: 4
"""


class DagsterDevError(Exception):
    """``dagster dev`` did not come up, or refused what was asked of it."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One Dagster run."""

    run_id: str
    job_name: str
    status: str
    tags: Mapping[str, str]

    @property
    def is_finished(self) -> bool:
        """Whether the run can no longer change its status."""
        return self.status in {"SUCCESS", "FAILURE", "CANCELED"}


@dataclass(frozen=True, kw_only=True)
class AssetCounts:
    """What a backfill says of one asset; an asset without partitions counts as one."""

    targeted: int
    in_progress: int
    materialized: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """One backfill with its runs; ``assets`` is keyed by asset key, as ``a/b``."""

    backfill_id: str
    status: str
    error: str | None
    assets: Mapping[str, AssetCounts]
    runs: Sequence[RunInfo]

    @property
    def is_open(self) -> bool:
        """Whether Dagster still works on it."""
        return self.status in OPEN_BACKFILL_STATUSES


@dataclass(frozen=True, kw_only=True)
class PartitionStats:
    """What the asset's page says of its partitions."""

    total: int
    materialized: int
    materializing: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class AssetEvent:
    """A materialization or an observation; ``metadata`` is keyed by label."""

    run_id: str
    partition: str | None
    timestamp_s: float
    metadata: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SensorInfo:
    """A sensor and its last tick, if there was one."""

    name: str
    status: str
    last_tick_status: str | None
    last_tick_error: str | None
    skip_reason: str | None


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """A state of a backfill that differs from the one before; seconds since the wait began."""

    seconds: float
    status: str
    assets: Mapping[str, AssetCounts]
    runs: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class BackfillWait:
    """How a backfill ended, and how it got there."""

    backfill: Backfill
    timeline: Sequence[TimelineEntry]


@dataclass(kw_only=True)
class DagsterDev:
    """A context manager around ``dagster dev``: started on entry, gone on exit.

    Attributes:
        target: What to serve, as on the command line: ``["-f", "defs.py"]``, ``["-m", "package"]``
            or ``["-w", "workspace.yaml"]``.
        env: Added to the environment of all its processes.
        home: ``DAGSTER_HOME``; a temporary folder, removed at the end, unless given.
        log_path: Where its output goes; ``dagster_dev.log`` in ``home`` unless given.
        max_concurrent_runs: How many Dagster runs may have a worker at a time.
        extra_yaml: Appended to ``dagster.yaml``.
        start_timeout_s: How long it may take until the code location is loaded.
    """

    target: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    home: Path | None = None
    log_path: Path | None = None
    max_concurrent_runs: int = 4
    extra_yaml: str = ""
    start_timeout_s: float = 120.0
    port: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until the code location is loaded.

        May be called again after :meth:`stop`, on the same ``home``.

        Raises:
            DagsterDevError: It ended, was not ready in time, or the code location has an error.
        """
        home = self._prepare_home()
        self.port = _free_port()
        log_path = self.log_path or home / "dagster_dev.log"
        self.log_path = log_path
        command = [sys.executable, "-m", "dagster", "dev", *self.target]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=self._environment(home),
                cwd=REPOSITORY_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_until_loaded()

    def stop(self) -> None:
        """End the whole process group and wait until it is gone. Safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            _end_group(process)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary, self.home, self.log_path = None, None, None

    def log(self) -> str:
        """Return everything that its processes wrote so far."""
        if self.log_path is None or not self.log_path.exists():
            return ""
        return self.log_path.read_text(errors="replace")

    def query(self, query: str, **variables: object) -> dict[str, Any]:
        """Return the ``data`` of a GraphQL query.

        Raises:
            DagsterDevError: The answer has errors.
            OSError: It cannot be reached.
        """
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise DagsterDevError(error.read().decode(errors="replace")[:2000]) from error
        if answer.get("errors"):
            raise DagsterDevError(json.dumps(answer["errors"])[:2000])
        data: dict[str, Any] = answer["data"]
        return data

    def launch_backfill(
        self,
        asset_keys: Sequence[str],
        partition_names: Sequence[str],
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a backfill as the UI does; returns its id."""
        params = {
            "assetSelection": [_key_input(key) for key in asset_keys],
            "partitionNames": list(partition_names),
            "tags": _tag_inputs({"dagster/from_ui": "true"} | dict(tags or {})),
        }
        result = self.query(_LAUNCH_BACKFILL, params=params)["launchPartitionBackfill"]
        return str(_expect(result, "LaunchBackfillSuccess")["backfillId"])

    def backfill(self, backfill_id: str) -> Backfill:
        """Return a backfill as it is now."""
        result = self.query(_BACKFILL, id=backfill_id)["partitionBackfillOrError"]
        node = _expect(result, "PartitionBackfill")
        statuses = (node["assetBackfillData"] or {}).get("assetBackfillStatuses", [])
        return Backfill(
            backfill_id=backfill_id,
            status=node["status"],
            error=(node["error"] or {}).get("message"),
            assets={_key_text(status["assetKey"]): _asset_counts(status) for status in statuses},
            runs=[_run_info(run) for run in node["runs"]],
        )

    def wait_backfill(
        self,
        backfill_id: str,
        timeout_s: float,
        on_tick: Callable[[Backfill], object] | None = None,
        poll_s: float = 1.0,
    ) -> BackfillWait:
        """Poll a backfill until Dagster has ended it, calling ``on_tick`` with every look.

        Raises:
            TimeoutError: It was still open after ``timeout_s``; the message has the timeline.
        """
        started, timeline = time.monotonic(), list[TimelineEntry]()
        while True:
            backfill = self.backfill(backfill_id)
            entry = _timeline_entry(backfill, time.monotonic() - started)
            if not timeline or not _same_state(timeline[-1], entry):
                timeline.append(entry)
            if on_tick is not None:
                on_tick(backfill)
            if not backfill.is_open:
                return BackfillWait(backfill=backfill, timeline=timeline)
            if entry.seconds > timeout_s:
                lines = "\n".join(map(str, timeline))
                raise TimeoutError(f"backfill {backfill_id} is still {backfill.status}:\n{lines}")
            time.sleep(poll_s)

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = 120.0
    ) -> None:
        """Poll a condition until it holds.

        Raises:
            TimeoutError: It did not within ``timeout_s``; the message says what was waited for.
        """
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > timeout_s:
                runs = "\n".join(map(str, self.runs()[:50]))
                raise TimeoutError(f"waited in vain until {what}:\n{runs}")
            time.sleep(0.5)

    def cancel_backfill(self, backfill_id: str) -> None:
        """Cancel a backfill as the UI does."""
        result = self.query(_CANCEL_BACKFILL, id=backfill_id)["cancelPartitionBackfill"]
        _expect(result, "CancelBackfillSuccess")

    def terminate_runs(
        self, run_ids: Sequence[str], policy: str = "SAFE_TERMINATE"
    ) -> dict[str, str | None]:
        """Terminate runs; returns for each the reason why Dagster refused, None if it did not."""
        result = self.query(_TERMINATE_RUNS, ids=list(run_ids), policy=policy)["terminateRuns"]
        results = _expect(result, "TerminateRunsResult")["terminateRunResults"]
        return {
            run_id: None if one["__typename"] == "TerminateRunSuccess" else one.get("message", "")
            for run_id, one in zip(run_ids, results, strict=True)
        }

    def delete_run(self, run_id: str) -> None:
        """Delete a run's record and events."""
        result = self.query(_DELETE_RUN, id=run_id)["deleteRun"]
        _expect(result, "DeletePipelineRunSuccess")

    def launch_asset_run(
        self,
        asset_keys: Sequence[str],
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> str:
        """Materialize assets in one run, as the UI's launchpad does; returns the run id."""
        keys = [_key_input(key) for key in asset_keys]
        nodes = self.query(_ASSET_JOBS, keys=keys)["assetNodes"]
        jobs = set.intersection(*(set(node["jobNames"]) for node in nodes))
        repository = nodes[0]["repository"]
        selector = {
            "repositoryName": repository["name"],
            "repositoryLocationName": repository["location"]["name"],
            "pipelineName": min(job for job in jobs if job.startswith("__ASSET_JOB")),
            "assetSelection": keys,
        }
        return self._launch_run(selector, partition, tags, run_config)

    def launch_job(
        self,
        job: str,
        partition: str | None = None,
        tags: Mapping[str, str] | None = None,
        run_config: Mapping[str, Any] | None = None,
    ) -> str:
        """Launch a job of the only code location, as its launchpad does; returns the run id."""
        return self._launch_run(
            {**self._repository(), "pipelineName": job}, partition, tags, run_config
        )

    def _launch_run(
        self,
        selector: Mapping[str, Any],
        partition: str | None,
        tags: Mapping[str, str] | None,
        run_config: Mapping[str, Any] | None,
    ) -> str:
        own = {"dagster/from_ui": "true"} | ({"dagster/partition": partition} if partition else {})
        params = {
            "selector": selector,
            "runConfigData": json.dumps(run_config or {}),
            "executionMetadata": {"tags": _tag_inputs(own | dict(tags or {}))},
        }
        result = self.query(_LAUNCH_RUN, params=params)["launchRun"]
        return str(_expect(result, "LaunchRunSuccess")["run"]["runId"])

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``dagster …`` as from a shell beside it, with its home; its output is one text."""
        assert self.home is not None
        return subprocess.run(
            [sys.executable, "-m", "dagster", *arguments],
            env=self._environment(self.home),
            cwd=REPOSITORY_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    def reexecute(self, run_id: str, strategy: str = "FROM_FAILURE") -> str:
        """Execute a finished run again (``FROM_FAILURE`` or ``ALL_STEPS``); returns the new id."""
        params = {"parentRunId": run_id, "strategy": strategy}
        result = self.query(_REEXECUTE, params=params)["launchRunReexecution"]
        return str(_expect(result, "LaunchRunSuccess")["run"]["runId"])

    def runs(self, tags: Mapping[str, str] | None = None, limit: int = 500) -> list[RunInfo]:
        """Return the runs that have all these tags, newest first."""
        run_filter = {"tags": _tag_inputs(tags)} if tags else {}
        result = self.query(_RUNS, filter=run_filter, limit=limit)["runsOrError"]
        return [_run_info(run) for run in _expect(result, "Runs")["results"]]

    def run(self, run_id: str) -> RunInfo:
        """Return one run."""
        result = self.query(_RUNS, filter={"runIds": [run_id]}, limit=1)["runsOrError"]
        return _run_info(_expect(result, "Runs")["results"][0])

    def wait_run(self, run_id: str, timeout_s: float, poll_s: float = 0.5) -> RunInfo:
        """Poll a run until it has finished.

        Raises:
            TimeoutError: It was still going after ``timeout_s``.
        """
        started = time.monotonic()
        while not (run := self.run(run_id)).is_finished:
            if time.monotonic() - started > timeout_s:
                raise TimeoutError(f"run {run_id} is still {run.status}")
            time.sleep(poll_s)
        return run

    def asset_partition_stats(self, asset: str) -> PartitionStats:
        """Return the counts on the asset's page."""
        stats = self._asset_node(_PARTITION_STATS, asset)["partitionStats"]
        return PartitionStats(
            total=stats["numPartitions"],
            materialized=stats["numMaterialized"],
            materializing=stats["numMaterializing"],
            failed=stats["numFailed"],
        )

    def materializing_partitions(self, asset: str) -> set[str]:
        """Return the partitions (of one dimension) that the asset's page shows in progress."""
        statuses = self._asset_node(_PARTITION_STATUSES, asset)["assetPartitionStatuses"]
        return set(statuses["materializingPartitions"])

    def materializations(self, asset: str, limit: int = 1000) -> list[AssetEvent]:
        """Return the asset's materializations, newest first."""
        node = self._asset_node(_MATERIALIZATIONS, asset, limit=limit)
        return [_asset_event(event) for event in node["assetMaterializations"]]

    def observations(self, asset: str, limit: int = 1000) -> list[AssetEvent]:
        """Return the asset's observations, newest first."""
        node = self._asset_node(_OBSERVATIONS, asset, limit=limit)
        return [_asset_event(event) for event in node["assetObservations"]]

    def sensors(self) -> list[SensorInfo]:
        """Return all sensors of all code locations."""
        return [
            _sensor_info(sensor)
            for entry in self.query(_SENSORS)["workspaceOrError"]["locationEntries"]
            for repository in entry["locationOrLoadError"]["repositories"]
            for sensor in repository["sensors"]
        ]

    def failed_ticks(self) -> list[str]:
        """Return the errors of all sensor ticks that failed in the sensor's own code."""
        locations = self.query(_FAILED_TICKS)["workspaceOrError"]["locationEntries"]
        errors = [
            f"{sensor['name']}: {tick['error']['className']}: {tick['error']['message']}"
            for location in locations
            for repository in location["locationOrLoadError"]["repositories"]
            for sensor in repository["sensors"]
            for tick in sensor["sensorState"]["ticks"]
        ]
        return [error for error in errors if "DagsterUserCodeUnreachableError" not in error]

    def set_sensor(self, name: str, *, running: bool) -> None:
        """Switch a sensor of the only code location on or off, as the UI does."""
        if running:
            selector = {**self._repository(), "sensorName": name}
            result = self.query(_START_SENSOR, selector=selector)["startSensor"]
            _expect(result, "Sensor")
        else:
            self.wait_until(lambda: self._stop_sensor(name), f"sensor {name!r} is off")

    def _stop_sensor(self, name: str) -> bool:
        """Switch a sensor off; returns whether it was off already.

        Who does so while Dagster writes down a tick may see it undone: with the tick, the whole
        state of the sensor is written as it was read before.
        """
        (sensor,) = [
            sensor
            for entry in self.query(_SENSOR_IDS)["workspaceOrError"]["locationEntries"]
            for repository in entry["locationOrLoadError"]["repositories"]
            for sensor in repository["sensors"]
            if sensor["name"] == name
        ]
        if sensor["sensorState"]["status"] == "STOPPED":
            return True
        result = self.query(_STOP_SENSOR, id=sensor["id"])["stopSensor"]
        _expect(result, "StopSensorMutationResult")
        return False

    def add_partitions(self, definition: str, keys: Sequence[str]) -> None:
        """Add partitions to a dynamic definition of the only code location."""
        for key in keys:
            result = self.query(
                _ADD_PARTITION, repository=self._repository(), name=definition, key=key
            )["addDynamicPartition"]
            _expect(result, "AddDynamicPartitionSuccess")

    def delete_partitions(self, definition: str, keys: Sequence[str]) -> None:
        """Delete partitions of a dynamic definition of the only code location."""
        result = self.query(
            _DELETE_PARTITIONS, repository=self._repository(), name=definition, keys=list(keys)
        )["deleteDynamicPartitions"]
        _expect(result, "DeleteDynamicPartitionsSuccess")

    def reload(self) -> None:
        """Reload the only code location, in a new process, and wait until it is there.

        Raises:
            DagsterDevError: It does not load.
        """
        name = self._repository()["repositoryLocationName"]
        result = self.query(_RELOAD, name=name)["reloadRepositoryLocation"]
        _expect(result, "WorkspaceLocationEntry")
        self._wait_until_loaded()

    def run_log(self, run_id: str) -> list[str]:
        """Return the messages of a run's log, oldest first."""
        result = self.query(_RUN_LOG, id=run_id)["logsForRun"]
        return [event["message"] for event in _expect(result, "EventConnection")["events"]]

    def _repository(self) -> dict[str, str]:
        """Return the selector of the only code location's repository."""
        (entry,) = self.query(_REPOSITORIES)["workspaceOrError"]["locationEntries"]
        (repository,) = entry["locationOrLoadError"]["repositories"]
        return {
            "repositoryLocationName": entry["name"],
            "repositoryName": repository["name"],
        }

    def _asset_node(self, query: str, asset: str, **variables: object) -> dict[str, Any]:
        result = self.query(query, key=_key_input(asset), **variables)["assetNodeOrError"]
        return _expect(result, "AssetNode")

    def _prepare_home(self) -> Path:
        if self.home is None:
            # a run worker may write its last words while the folder goes
            self._temporary = tempfile.TemporaryDirectory(
                prefix="batchor-dagster-", ignore_cleanup_errors=True
            )
            self.home = Path(self._temporary.name)
        self.home.mkdir(parents=True, exist_ok=True)
        text = _DAGSTER_YAML.format(max_concurrent_runs=self.max_concurrent_runs)
        (self.home / "dagster.yaml").write_text(text + self.extra_yaml)
        return self.home

    def _environment(self, home: Path) -> dict[str, str]:
        inherited = os.environ.get("PYTHONPATH")
        python_path = os.pathsep.join(filter(None, [str(REPOSITORY_ROOT), inherited]))
        own = {
            "DAGSTER_HOME": str(home),
            "PYTHONPATH": python_path,
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
        }
        return os.environ | own | dict(self.env)

    def _wait_until_loaded(self) -> None:
        started = time.monotonic()
        while time.monotonic() - started < self.start_timeout_s:
            if self._process is None or self._process.poll() is not None:
                raise DagsterDevError(f"`dagster dev` ended:\n{self.log()[-4000:]}")
            with suppress(OSError):
                if self._is_loaded():
                    return
            time.sleep(0.25)
        raise DagsterDevError(f"`dagster dev` is not ready:\n{self.log()[-4000:]}")

    def _is_loaded(self) -> bool:
        entries = self.query(_WORKSPACE)["workspaceOrError"]["locationEntries"]
        for entry in entries:
            location = entry["locationOrLoadError"] or {}
            if location.get("__typename") == "PythonError":
                raise DagsterDevError(f"{entry['name']} does not load: {location['message']}")
        return bool(entries) and all(
            entry["loadStatus"] == "LOADED" and entry["locationOrLoadError"] for entry in entries
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # The first signal goes to the leader alone: it shuts its services down in order.
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    for number, patience_s in _STOP_STEPS:
        if number != signal.SIGINT:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            process.poll()  # reaps the leader, whose entry would else keep the group alive
            if not _group_exists(process.pid):
                process.wait()
                return
            time.sleep(0.1)
    raise DagsterDevError(f"process group {process.pid} does not end")


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _expect(result: dict[str, Any], typename: str) -> dict[str, Any]:
    if result["__typename"] != typename:
        raise DagsterDevError(json.dumps(result)[:2000])
    return result


def _key_input(key: str) -> dict[str, list[str]]:
    return {"path": key.split("/")}


def _key_text(node: dict[str, list[str]]) -> str:
    return "/".join(node["path"])


def _tag_inputs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _run_info(node: dict[str, Any]) -> RunInfo:
    return RunInfo(
        run_id=node["runId"],
        job_name=node["jobName"],
        status=node["status"],
        tags={tag["key"]: tag["value"] for tag in node["tags"]},
    )


def _asset_counts(node: dict[str, Any]) -> AssetCounts:
    if "numPartitionsTargeted" in node:
        return AssetCounts(
            targeted=node["numPartitionsTargeted"],
            in_progress=node["numPartitionsInProgress"],
            materialized=node["numPartitionsMaterialized"],
            failed=node["numPartitionsFailed"],
        )
    return AssetCounts(
        targeted=1,
        in_progress=int(node["inProgress"]),
        materialized=int(node["materialized"]),
        failed=int(node["failed"]),
    )


def _timeline_entry(backfill: Backfill, seconds: float) -> TimelineEntry:
    statuses = [run.status for run in backfill.runs]
    return TimelineEntry(
        seconds=round(seconds, 1),
        status=backfill.status,
        assets=backfill.assets,
        runs={status: statuses.count(status) for status in sorted(set(statuses))},
    )


def _same_state(one: TimelineEntry, other: TimelineEntry) -> bool:
    return (one.status, one.assets, one.runs) == (other.status, other.assets, other.runs)


def _asset_event(node: dict[str, Any]) -> AssetEvent:
    return AssetEvent(
        run_id=node["runId"],
        partition=node["partition"],
        timestamp_s=float(node["timestamp"]) / 1000,
        metadata={entry["label"]: _metadata_value(entry) for entry in node["metadataEntries"]},
    )


def _metadata_value(entry: dict[str, Any]) -> object:
    match entry["__typename"]:
        case "JsonMetadataEntry":
            return json.loads(entry["jsonString"])
        case "IntMetadataEntry":
            return int(entry["intRepr"])
        case "TableSchemaMetadataEntry":
            return entry["schema"]["columns"]
        case "TableMetadataEntry":
            return [json.loads(record) for record in entry["table"]["records"]]
    values = [value for key, value in entry.items() if key not in {"__typename", "label"}]
    return values[0] if values else None


def _sensor_info(node: dict[str, Any]) -> SensorInfo:
    ticks = node["sensorState"]["ticks"]
    tick = ticks[0] if ticks else {}
    return SensorInfo(
        name=node["name"],
        status=node["sensorState"]["status"],
        last_tick_status=tick.get("status"),
        last_tick_error=(tick.get("error") or {}).get("message"),
        skip_reason=tick.get("skipReason"),
    )


_RUN = "runId jobName status tags { key value }"
_ERROR = "... on Error { message }"
_EVENT = """
  runId partition timestamp
  metadataEntries {
    __typename label
    ... on TextMetadataEntry { text }
    ... on UrlMetadataEntry { url }
    ... on PathMetadataEntry { path }
    ... on MarkdownMetadataEntry { mdStr }
    ... on JsonMetadataEntry { jsonString }
    ... on IntMetadataEntry { intRepr }
    ... on FloatMetadataEntry { floatValue }
    ... on BoolMetadataEntry { boolValue }
    ... on TimestampMetadataEntry { timestamp }
    ... on TableSchemaMetadataEntry { schema { columns { name type description } } }
    ... on TableMetadataEntry { table { records } }
  }
"""
_WORKSPACE = """
  { workspaceOrError { ... on Workspace { locationEntries {
      name loadStatus
      locationOrLoadError { __typename ... on PythonError { message } } } } } }
"""
_LAUNCH_BACKFILL = f"""
  mutation($params: LaunchBackfillParams!) {{ launchPartitionBackfill(backfillParams: $params) {{
      __typename ... on LaunchBackfillSuccess {{ backfillId }} {_ERROR} }} }}
"""
_CANCEL_BACKFILL = f"""
  mutation($id: String!) {{ cancelPartitionBackfill(backfillId: $id) {{ __typename {_ERROR} }} }}
"""
_BACKFILL = f"""
  query($id: String!) {{ partitionBackfillOrError(backfillId: $id) {{
      __typename {_ERROR}
      ... on PartitionBackfill {{
        status error {{ message }} runs(limit: 5000) {{ {_RUN} }}
        assetBackfillData {{ assetBackfillStatuses {{
          ... on AssetPartitionsStatusCounts {{
            assetKey {{ path }} numPartitionsTargeted numPartitionsInProgress
            numPartitionsMaterialized numPartitionsFailed }}
          ... on UnpartitionedAssetStatus {{
            assetKey {{ path }} inProgress materialized failed }} }} }} }} }} }}
"""
_TERMINATE_RUNS = f"""
  mutation($ids: [String!]!, $policy: TerminateRunPolicy) {{
    terminateRuns(runIds: $ids, terminatePolicy: $policy) {{
      __typename {_ERROR}
      ... on TerminateRunsResult {{ terminateRunResults {{
        __typename ... on TerminateRunFailure {{ message }} {_ERROR} }} }} }} }}
"""
_DELETE_RUN = f"mutation($id: String!) {{ deleteRun(runId: $id) {{ __typename {_ERROR} }} }}"
_REPOSITORIES = """
  { workspaceOrError { ... on Workspace { locationEntries {
      name locationOrLoadError { ... on RepositoryLocation { repositories { name } } } } } } }
"""
_RELOAD = f"""
  mutation($name: String!) {{ reloadRepositoryLocation(repositoryLocationName: $name) {{
      __typename {_ERROR} }} }}
"""
_SENSOR_IDS = """
  { workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
      ... on RepositoryLocation { repositories { sensors {
        name id sensorState { status } } } } } } } } }
"""
_FAILED_TICKS = """
  { workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
      ... on RepositoryLocation { repositories { sensors {
        name sensorState { ticks(limit: 500, statuses: [FAILURE]) { error { className message } } }
      } } } } } } } }
"""
_START_SENSOR = f"""
  mutation($selector: SensorSelector!) {{ startSensor(sensorSelector: $selector) {{
      __typename {_ERROR} }} }}
"""
_STOP_SENSOR = f"mutation($id: String!) {{ stopSensor(id: $id) {{ __typename {_ERROR} }} }}"
_ADD_PARTITION = f"""
  mutation($repository: RepositorySelector!, $name: String!, $key: String!) {{
    addDynamicPartition(
      repositorySelector: $repository, partitionsDefName: $name, partitionKey: $key
    ) {{ __typename {_ERROR} }} }}
"""
_DELETE_PARTITIONS = f"""
  mutation($repository: RepositorySelector!, $name: String!, $keys: [String!]!) {{
    deleteDynamicPartitions(
      repositorySelector: $repository, partitionsDefName: $name, partitionKeys: $keys
    ) {{ __typename {_ERROR} }} }}
"""
_RUN_LOG = f"""
  query($id: ID!) {{ logsForRun(runId: $id, limit: 1000) {{
      __typename ... on EventConnection {{ events {{ ... on MessageEvent {{ message }} }} }}
      {_ERROR} }} }}
"""
_ASSET_JOBS = """
  query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) {
      jobNames repository { name location { name } } } }
"""
_LAUNCH_RUN = f"""
  mutation($params: ExecutionParams!) {{ launchRun(executionParams: $params) {{
      __typename ... on LaunchRunSuccess {{ run {{ runId }} }} {_ERROR} }} }}
"""
_REEXECUTE = f"""
  mutation($params: ReexecutionParams) {{ launchRunReexecution(reexecutionParams: $params) {{
      __typename ... on LaunchRunSuccess {{ run {{ runId }} }} {_ERROR} }} }}
"""
_RUNS = f"""
  query($filter: RunsFilter, $limit: Int) {{ runsOrError(filter: $filter, limit: $limit) {{
      __typename ... on Runs {{ results {{ {_RUN} }} }} {_ERROR} }} }}
"""


def _asset_query(fields: str, limited: str = "") -> str:
    return (
        f"query($key: AssetKeyInput!{limited}) {{ assetNodeOrError(assetKey: $key) {{ "
        f"__typename ... on AssetNode {{ {fields} }} }} }}"
    )


_PARTITION_STATS = _asset_query(
    "partitionStats { numPartitions numMaterialized numMaterializing numFailed }"
)
_PARTITION_STATUSES = _asset_query(
    "assetPartitionStatuses { ... on DefaultPartitionStatuses { materializingPartitions } }"
)
_MATERIALIZATIONS = _asset_query(
    f"assetMaterializations(limit: $limit) {{ {_EVENT} }}", ", $limit: Int"
)
_OBSERVATIONS = _asset_query(f"assetObservations(limit: $limit) {{ {_EVENT} }}", ", $limit: Int")
_SENSORS = """
  { workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
      ... on RepositoryLocation { repositories { sensors {
        name sensorState { status ticks(limit: 1) { status skipReason error { message } } }
      } } } } } } } }
"""
