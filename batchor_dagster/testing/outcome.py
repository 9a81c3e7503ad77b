"""Compare what some Dagster runs materialized with what a test asked for."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import dagster as dg

from batchor_dagster.constants import TAG_PARTITION

Wanted = tuple[dg.AssetKey, str | None]
"""An asset and one of its partitions; None if it has none."""


class Outcome:
    """The materializations, check evaluations and failures of some Dagster runs.

    Args:
        graph: The asset graph of the code location.
        runs: The Dagster runs, in order.
    """

    def __init__(self, graph: Any, runs: Iterable[dg.ExecuteInProcessResult]) -> None:
        self._graph = graph
        self._stored: set[Wanted] = set()
        self._checks: dict[tuple[dg.AssetCheckKey, str | None], dg.AssetCheckEvaluation] = {}
        self._failures: dict[tuple[str, str | None], str] = {}
        for run in runs:
            self._add(run)

    def problems(self, wanted: Sequence[Wanted]) -> list[str]:
        """Return why assets are not materialized, unless they only lack an upstream one."""
        missing = {one for one in wanted if one not in self._stored and self._is_storable(one)}
        lacking = {key for key, _ in missing}
        found = [
            f"{_text(one)}: {self._why(one)}"
            for one in wanted
            if one in missing and not (self._graph.get(one[0]).parent_keys - {one[0]}) & lacking
        ]
        return found + [text for one in wanted if one not in missing for text in self._blocks(one)]

    def _add(self, run: dg.ExecuteInProcessResult) -> None:
        for event in run.get_asset_materialization_events():
            made = event.step_materialization_data.materialization
            self._stored.add((made.asset_key, made.partition))
        partition = run.dagster_run.tags.get(TAG_PARTITION)
        for check in run.get_asset_check_evaluations():
            self._checks[check.asset_check_key, check.partition or partition] = check
        for event in run.get_step_failure_events():
            self._failures[_op(event), partition] = failure_message(event)

    def _is_storable(self, wanted: Wanted) -> bool:
        return bool(self._graph.get(wanted[0]).is_materializable)

    def _why(self, wanted: Wanted) -> str:
        key, partition = wanted
        op = self._graph.get(key).assets_def.node_def.name
        return (
            self._failures.get((op, partition))
            or self._failures.get((op, None))  # of a range
            or "it was not materialized"
        )

    def _blocks(self, wanted: Wanted) -> Iterator[str]:
        """Yield the blocking checks of a stored asset that failed or were not evaluated."""
        key, partition = wanted
        for check_key in sorted(self._graph.get(key).check_keys):
            if not self._graph.get(check_key).blocking:
                continue
            check = self._checks.get((check_key, partition)) or self._checks.get((check_key, None))
            text = f"{_text(wanted)}: its blocking check {check_key.name!r}"
            if check is None:
                yield f"{text} was not evaluated"
            elif not check.passed and check.severity is dg.AssetCheckSeverity.ERROR:
                yield f"{text} failed"


def failure_message(event: dg.DagsterEvent) -> str:
    """Return the message of a failed step: its ``Failure``, or the exception of its function."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return str(data.user_failure_data.description)
    error = data.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "failed"


def _op(event: dg.DagsterEvent) -> str:
    """Return the op or graph of a step."""
    return str(event.step_key).split(".")[0]


def _text(wanted: Wanted) -> str:
    key, partition = wanted
    name = key.to_user_string()
    return f"{name}[{partition}]" if partition else name
