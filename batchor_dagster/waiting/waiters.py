"""What we keep with a waiter: who asked, and how far serving it has come."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dagster import AssetKey, DagsterRun

from batchor_core.errors import StaleTransitionError
from batchor_core.integration import Store, Waiter, WaiterState
from batchor_dagster.constants import TAG_BACKFILL

MAX_ATTEMPTS = 3
"""Materialize runs of one segment, when they fail for another reason than their verdict."""


class SegmentState(StrEnum):
    """How serving one segment of a waiter ended. Stored."""

    OPEN = "open"
    MATERIALIZED = "materialized"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asked: the payload of a waiter. Stored as JSON; fields are never renamed.

    Attributes:
        dagster_run: The request's Dagster run.
        root_run: The first of its chain of re-executions.
        backfill: Its backfill; None outside of one.
        selection: The waiting asset and its descendants in the request's selection.
        hold: The hold that stands for it; None without one.
        in_step: Whether the request's own step delivers, so that no other run may as long as
            it is alive.
        cancel_on_termination: Whether its end may cancel the batch run.
    """

    dagster_run: str
    root_run: str
    backfill: str | None
    selection: tuple[str, ...]
    hold: str | None = None
    in_step: bool = False
    cancel_on_termination: bool = True

    @classmethod
    def of_run(
        cls,
        run: DagsterRun,
        selection: tuple[AssetKey, ...],
        *,
        in_step: bool,
        cancel_on_termination: bool,
    ) -> "Request":
        """Return the payload for a request's Dagster run."""
        return cls(
            dagster_run=run.run_id,
            root_run=run.root_run_id or run.run_id,
            backfill=run.tags.get(TAG_BACKFILL),
            selection=tuple(key.to_user_string() for key in selection),
            in_step=in_step,
            cancel_on_termination=cancel_on_termination,
        )

    @classmethod
    def of_waiter(cls, waiter: Waiter) -> "Request":
        """Read a waiter's payload."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in waiter.payload.items() if name in known}
        return cls(**{**values, "selection": tuple(values["selection"])})

    def payload(self) -> dict[str, Any]:
        """Return the JSON that is stored."""
        return dataclasses.asdict(self)

    @property
    def selected_keys(self) -> list[AssetKey]:
        """The selection as asset keys."""
        return [AssetKey.from_user_string(name) for name in self.selection]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Contiguous partitions of a waiter that one Dagster run materializes.

    Attributes:
        index: Its number among the waiter's segments.
        partitions: Empty for an unpartitioned asset.
        attempt: The number of the current materialize run, from 0.
        state: How it ended; ``open`` while it has not.
        reason: The verdict, where it failed.
        is_stored: Whether the asset is materialized, so that a further attempt is for what is
            downstream of it alone.
        is_verdict: Whether it failed because of its answers, and not for a technical reason.
    """

    index: int
    partitions: tuple[str, ...]
    attempt: int = 0
    state: SegmentState = SegmentState.OPEN
    reason: str | None = None
    is_stored: bool = False
    is_verdict: bool = False

    @property
    def is_handed_over(self) -> bool:
        """Whether its answers were materialized, or judged: who asks again wants other ones."""
        return self.state is SegmentState.MATERIALIZED or self.is_stored or self.is_verdict

    def run_key(self, waiter: Waiter) -> str:
        """Return the run key of the current attempt. A key that was used is never used again."""
        shrunk = waiter.progress.get("shrunk", 0)  # by the store: its segments are others since
        version = f":{shrunk}" if shrunk else ""
        return f"batchor:{waiter.run_id}:{waiter.waiter_id}:{self.index}:{self.attempt}{version}"


def store_progress(store: Store, waiter: Waiter, progress: Mapping[str, Any]) -> Waiter:
    """Store how far serving a waiter has come, and return it as it is then.

    Whoever was faster has decided otherwise; that is looked at again by the next tick.
    """
    try:
        return store.update_waiter(waiter, progress=progress)
    except StaleTransitionError:
        return store.get_waiter(waiter.waiter_id)


def change_waiter(
    store: Store, waiter_id: str, change: Callable[[Waiter], Mapping[str, Any] | None]
) -> bool:
    """Change what is stored with an open waiter, whoever else changes it at the same time.

    Args:
        store: The control plane.
        waiter_id: The waiter.
        change: Returns what ``Store.update_waiter`` is to change, given the waiter as it is; None
            where nothing is left to change.

    Returns:
        Whether the waiter was changed.
    """
    while (waiter := store.get_waiter(waiter_id)).state is WaiterState.OPEN:
        changes = change(waiter)
        if changes is None:
            return False
        try:
            store.update_waiter(waiter, **changes)
        except StaleTransitionError:  # somebody else was faster
            continue
        return True
    return False


def segments_of(waiter: Waiter) -> list[Segment]:
    """Return a waiter's segments with their progress; until it is cut, there is just one."""
    stored: Mapping[str, Mapping[str, Any]] = waiter.progress.get("segments", {})
    ends = waiter.progress.get("cuts", [len(waiter.partitions)])
    starts = [0, *ends[:-1]]
    return [
        _segment(index, waiter.partitions[start:end], stored.get(str(index), {}))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def is_cut(waiter: Waiter) -> bool:
    """Whether the waiter's partitions were cut into segments."""
    return "cuts" in waiter.progress


def with_cuts(waiter: Waiter, ends: Sequence[int]) -> dict[str, Any]:
    """Return a waiter's progress with its segments, each told by where it ends (exclusive)."""
    return {**waiter.progress, "cuts": list(ends)}


def with_segment(progress: Mapping[str, Any], segment: Segment) -> dict[str, Any]:
    """Return a waiter's progress with one segment replaced."""
    segments = dict(progress.get("segments", {}))
    segments[str(segment.index)] = {
        "attempt": segment.attempt,
        "state": segment.state.value,
        "reason": segment.reason,
        "is_stored": segment.is_stored,
        "is_verdict": segment.is_verdict,
    }
    return {**progress, "segments": segments}


def with_verdict(waiter: Waiter, reason: str) -> dict[str, Any]:
    """Return a waiter's progress when all of its partitions were judged as failed."""
    progress: dict[str, Any] = dict(waiter.progress)
    for segment in segments_of(waiter):
        judged = dataclasses.replace(
            segment, state=SegmentState.FAILED, reason=reason, is_verdict=True
        )
        progress = with_segment(progress, judged)
    return progress


def _segment(index: int, partitions: tuple[str, ...], stored: Mapping[str, Any]) -> Segment:
    return Segment(
        index=index,
        partitions=partitions,
        attempt=stored.get("attempt", 0),
        state=SegmentState(stored.get("state", SegmentState.OPEN)),
        reason=stored.get("reason"),
        is_stored=stored.get("is_stored", False),
        is_verdict=stored.get("is_verdict", False),
    )
