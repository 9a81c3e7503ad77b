"""What the demo asks of Dagster, by the same GraphQL as the UI."""

import json
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OPEN_STATUSES = frozenset({"REQUESTED", "CANCELING", "FAILING"})


class DagsterRefusalError(Exception):
    """Dagster answered with an error."""


@dataclass(frozen=True, kw_only=True)
class AssetProgress:
    """How far a backfill is with one asset; an asset without partitions counts as one."""

    targeted: int
    in_progress: int
    materialized: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """A backfill as it is now.

    Attributes:
        status: As Dagster spells it.
        error: What is wrong with the backfill itself.
        assets: By asset name.
        runs: Number of its Dagster runs by status; the one that only keeps the backfill open
            counts as ``HOLD`` until it ends.
    """

    status: str
    error: str | None
    assets: Mapping[str, AssetProgress]
    runs: Mapping[str, int]

    @property
    def is_open(self) -> bool:
        """Whether Dagster still works on it."""
        return self.status in OPEN_STATUSES


class DagsterClient:
    """A client of one webserver.

    Args:
        url: As ``http://127.0.0.1:3000``.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def is_loaded(self) -> bool:
        """Return whether the code location is there.

        Raises:
            DagsterRefusalError: It cannot be loaded.
        """
        try:
            entries = self._ask(_WORKSPACE)["workspaceOrError"]["locationEntries"]
        except OSError:  # the webserver is not up yet
            return False
        locations = [entry["locationOrLoadError"] or {} for entry in entries]
        for location in locations:
            if "message" in location:
                raise DagsterRefusalError(location["message"])
        return bool(locations) and all(location.get("name") for location in locations)

    def partition_keys(self, asset: str) -> list[str]:
        """Return all partitions of an asset."""
        keys = self._asset(_PARTITIONS, asset)["partitionKeys"]
        return [str(key) for key in keys]

    def launch_backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> str:
        """Launch a backfill as the UI does; returns its id."""
        params = {
            "assetSelection": [{"path": [asset]} for asset in assets],
            "partitionNames": list(partitions),
            "tags": [{"key": "dagster/from_ui", "value": "true"}],
        }
        answer = self._ask(_LAUNCH, params=params)["launchPartitionBackfill"]
        if "backfillId" not in answer:
            raise DagsterRefusalError(answer.get("message", str(answer)))
        return str(answer["backfillId"])

    def backfill(self, backfill_id: str) -> Backfill:
        """Return a backfill as it is now."""
        node = self._ask(_BACKFILL, id=backfill_id)["partitionBackfillOrError"]
        if "status" not in node:
            raise DagsterRefusalError(node.get("message", str(node)))
        statuses = (node["assetBackfillData"] or {}).get("assetBackfillStatuses", [])
        return Backfill(
            status=node["status"],
            error=(node["error"] or {}).get("message"),
            assets={status["assetKey"]["path"][-1]: _progress(status) for status in statuses},
            runs=Counter(_run_status(run) for run in node["runs"]),
        )

    def failures(self, backfill_id: str) -> list[str]:
        """Return why steps of a backfill failed, a line each."""
        node = self._ask(_FAILURES, id=backfill_id)["partitionBackfillOrError"]
        found = []
        for run in node.get("runs", ()):
            for event in run["eventConnection"]["events"]:
                if "stepKey" in event and event.get("error"):
                    causes = [cause["message"] for cause in event["error"]["causes"]]
                    message = " ".join((causes or [event["error"]["message"]])[-1].split())
                    found.append(f"run {run['runId']}, step {event['stepKey']}: {message}")
        return found

    def metadata_sum(self, asset: str, key: str) -> float:
        """Return the sum of a number over the newest materialization of each partition."""
        newest: dict[str, float] = {}
        for event in self._asset(_MATERIALIZATIONS, asset)["assetMaterializations"]:
            for entry in event["metadataEntries"]:
                if entry["label"] == key:
                    newest.setdefault(event["partition"], entry["floatValue"])
        return sum(newest.values())

    def _asset(self, query: str, asset: str) -> dict[str, Any]:
        node = self._ask(query, key={"path": [asset]})["assetNodeOrError"]
        if "message" in node:
            raise DagsterRefusalError(node["message"])
        return dict(node)

    def _ask(self, query: str, **variables: object) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - our own http:// address
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            answer = json.load(response)
        if answer.get("errors"):
            raise DagsterRefusalError(json.dumps(answer["errors"])[:2000])
        return dict(answer["data"])


def _progress(node: Mapping[str, Any]) -> AssetProgress:
    if "numPartitionsTargeted" in node:
        return AssetProgress(
            targeted=node["numPartitionsTargeted"],
            in_progress=node["numPartitionsInProgress"],
            materialized=node["numPartitionsMaterialized"],
            failed=node["numPartitionsFailed"],
        )
    return AssetProgress(
        targeted=1,
        in_progress=int(node["inProgress"]),
        materialized=int(node["materialized"]),
        failed=int(node["failed"]),
    )


def _run_status(run: Mapping[str, Any]) -> str:
    is_hold = {"key": "batchor/kind", "value": "hold"} in run["tags"]
    return "HOLD" if is_hold and run["status"] == "QUEUED" else str(run["status"])


_WORKSPACE = """
  { workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError {
      ... on RepositoryLocation { name } ... on PythonError { message } } } } } }
"""
_PARTITIONS = """
  query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
      ... on AssetNode { partitionKeys } ... on Error { message } } }
"""
_LAUNCH = """
  mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
      ... on LaunchBackfillSuccess { backfillId } ... on Error { message } } }
"""
_BACKFILL = """
  query($id: String!) { partitionBackfillOrError(backfillId: $id) {
      ... on Error { message }
      ... on PartitionBackfill {
        status error { message } runs(limit: 1000) { status tags { key value } }
        assetBackfillData { assetBackfillStatuses {
          ... on AssetPartitionsStatusCounts {
            assetKey { path } numPartitionsTargeted numPartitionsInProgress
            numPartitionsMaterialized numPartitionsFailed }
          ... on UnpartitionedAssetStatus {
            assetKey { path } inProgress materialized failed } } } } } }
"""
_FAILURES = """
  query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
      runs(limit: 1000) { runId eventConnection { events { ... on ExecutionStepFailureEvent {
        stepKey error { message causes { message } } } } } } } } }
"""
_MATERIALIZATIONS = """
  query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) {
      ... on AssetNode { assetMaterializations { partition metadataEntries {
          label ... on FloatMetadataEntry { floatValue } } } }
      ... on Error { message } } }
"""
