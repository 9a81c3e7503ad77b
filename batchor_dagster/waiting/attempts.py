"""Read from a failed Dagster run which assets it stored and which checks it failed or missed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import dagster as dg

_EVENTS_PER_PAGE = 1000
_EVENT_TYPES = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED,
}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A failed Dagster run of a launch.

    Attributes:
        done: The assets that it materialized for every partition of the launch.
        failed_checks: The blocking checks that failed with severity ERROR, with their descriptions.
        pending_checks: The checks that it planned and did not evaluate.
    """

    done: frozenset[str]
    failed_checks: dict[dg.AssetCheckKey, str]
    pending_checks: frozenset[dg.AssetCheckKey]

    @classmethod
    def of(cls, instance: dg.DagsterInstance, run_id: str, partitions: Iterable[str]) -> "Attempt":
        """Read the event log of a finished Dagster run for some partitions."""
        stored: dict[str, set[str | None]] = defaultdict(set)
        planned: set[dg.AssetCheckKey] = set()
        evaluated: set[dg.AssetCheckKey] = set()
        failed: dict[dg.AssetCheckKey, str] = {}
        for event in _events(instance, run_id):
            match event.event_type:
                case dg.DagsterEventType.ASSET_MATERIALIZATION:
                    made = event.step_materialization_data.materialization
                    stored[made.asset_key.to_user_string()].add(made.partition)
                case dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
                    planned.add(event.asset_check_planned_data.asset_check_key)
                case _:
                    found = event.asset_check_evaluation_data
                    evaluated.add(found.asset_check_key)
                    if _blocks(found):
                        failed[found.asset_check_key] = found.description or "it did not pass"
        wanted: set[str | None] = {*partitions} or {None}
        return cls(
            done=frozenset(n for n, keys in stored.items() if None in keys or wanted <= keys),
            failed_checks=failed,
            pending_checks=frozenset(planned - evaluated),
        )


def _blocks(found: dg.AssetCheckEvaluation) -> bool:
    is_error = found.severity is dg.AssetCheckSeverity.ERROR
    return bool(found.blocking) and is_error and not found.passed


def _events(instance: dg.DagsterInstance, run_id: str) -> Iterator[dg.DagsterEvent]:
    cursor: str | None = None
    while True:
        page = instance.get_records_for_run(
            run_id, cursor=cursor, of_type=_EVENT_TYPES, limit=_EVENTS_PER_PAGE
        )
        for record in page.records:
            if record.event_log_entry.dagster_event is not None:
                yield record.event_log_entry.dagster_event
        if not page.has_more:
            return
        cursor = page.cursor
