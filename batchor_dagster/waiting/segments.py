"""Cutting a waiter's partitions into segments: each is materialized by one Dagster run.

A Dagster run takes a contiguous range of partitions, and either materializes all of it or fails.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from batchor_core import RunState
from batchor_core.integration import RunRecord, Store, Waiter
from batchor_dagster.waiting.waiters import (
    Segment,
    SegmentState,
    is_cut,
    segments_of,
    store_progress,
    with_cuts,
    with_segment,
)

_NO_RESULTS = frozenset({RunState.CANCELLED, RunState.FAILED})


def cut(
    store: Store,
    waiter: Waiter,
    run: RunRecord,
    *,
    places: Mapping[str, int],
    is_rectangle: bool,
    along: Callable[[str], frozenset[str]],
    max_failure_rate: float,
) -> Waiter:
    """Cut a waiter's partitions where they are not contiguous, or not treated alike.

    Done once, when its batch run has ended; what is stored then is what Dagster runs are named by.

    Args:
        store: The control plane.
        waiter: An open one.
        run: Its batch run; terminal.
        places: A number for each partition, as ``DefinedPartitions.places`` gives it; one that is
            missing there is not defined any more, and is given up.
        is_rectangle: Whether the waiter's partitions are a range in each of several dimensions.
        along: Tells which descendants go along with a partition.
        max_failure_rate: Share of failed rows up to which a partition materializes.
    """
    if len(waiter.partitions) < 2 or is_cut(waiter):
        return waiter
    verdicts = _verdicts(store, run, max_failure_rate)
    kinds = [
        (places.get(key) is not None, verdicts.get(key, True), along(key))
        for key in waiter.partitions
    ]
    ends = [
        number
        for number in range(1, len(waiter.partitions))
        if kinds[number] != kinds[number - 1] or not _follow(places, waiter.partitions, number)
    ]
    if is_rectangle and len(set(kinds)) == 1:
        ends = []
    progress = with_cuts(waiter, [*ends, len(waiter.partitions)])
    for index, start in enumerate([0, *ends]):
        if not kinds[start][0]:
            gone = Segment(index=index, partitions=())
            progress = with_segment(progress, _given_up(gone, waiter.partitions[start]))
    return store_progress(store, waiter, progress)


def give_up_gone(store: Store, waiter: Waiter, places: Mapping[str, int]) -> Waiter:
    """End the open segments of which a partition is not defined any more.

    Dagster would refuse a run of such a range, and everything else that is asked for with it.
    """
    progress = waiter.progress
    for segment in segments_of(waiter):
        gone = [key for key in segment.partitions if key not in places]
        if gone and segment.state is SegmentState.OPEN:
            progress = with_segment(progress, _given_up(segment, gone[0]))
    return waiter if progress is waiter.progress else store_progress(store, waiter, progress)


def _given_up(segment: Segment, partition: str) -> Segment:
    reason = f"partition {partition!r} is not defined any more"
    return dataclasses.replace(segment, state=SegmentState.CANCELLED, reason=reason)


def _verdicts(store: Store, run: RunRecord, max_failure_rate: float) -> dict[str, bool]:
    """Return by partition whether it will materialize."""
    if run.state in _NO_RESULTS:
        return {}
    members = store.list_members(run.run_id)
    return {
        m.identity.partition: is_good(m.item_count, m.ok_count, max_failure_rate) for m in members
    }


def is_good(rows: int, ok: int | None, max_failure_rate: float) -> bool:
    """Whether a partition with so many answered rows materializes."""
    if not rows or ok is None:
        return True
    return ok > 0 and (rows - ok) / rows <= max_failure_rate


def _follow(places: Mapping[str, int], partitions: Sequence[str], number: int) -> bool:
    """Whether a partition comes right after the one before, or both are gone."""
    before, own = places.get(partitions[number - 1]), places.get(partitions[number])
    return before == own if own is None else before == own - 1
