"""Serving waiters: which Dagster runs materialize what, and when a wish is over.

Everything here is decided from stored records and from Dagster's own run records, so that a tick
that dies in the middle is repeated by the next.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from batchor_core import RunControlState
from batchor_core.integration import RunRecord, Store, Waiter, WaiterState
from batchor_dagster.constants import (
    TAG_ASSET,
    TAG_BACKFILL,
    TAG_BATCH_RUN,
    TAG_KIND,
    TAG_MAX_RETRIES,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
    TAG_SEGMENT,
    TAG_WAITER,
    RunKind,
)
from batchor_dagster.waiting.launched_runs import LaunchedRuns, in_groups
from batchor_dagster.waiting.waiters import (
    MAX_ATTEMPTS,
    Request,
    Segment,
    SegmentState,
    segments_of,
    store_progress,
    with_segment,
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """An open waiter with what decides about it.

    Attributes:
        request: Its payload.
        run: The batch run that it waits for.
        dagster_run: The request's Dagster run; None if its record is gone.
    """

    waiter: Waiter
    request: Request
    run: RunRecord
    dagster_run: dg.DagsterRun | None

    @property
    def is_ready(self) -> bool:
        """Whether its results can be handed over by another Dagster run."""
        return self.run.state.is_terminal and not self.delivers_itself

    @property
    def delivers_itself(self) -> bool:
        """Whether the request's own step is there to hand them over."""
        return bool(self.request.in_step and self.dagster_run and not self.dagster_run.is_finished)

    @property
    def descendants(self) -> frozenset[str]:
        """What was selected downstream of the asset, by name."""
        return frozenset(self.request.selection) - {self.waiter.asset}


def load_wishes(
    store: Store, instance: dg.DagsterInstance, waiters: Sequence[Waiter]
) -> list[Wish]:
    """Return waiters with what decides about them, in a handful of queries."""
    requests = [Request.of_waiter(waiter) for waiter in waiters]
    records = store.get_runs({waiter.run_id for waiter in waiters})
    runs = _dagster_runs(instance, [request.dagster_run for request in requests])
    return [
        Wish(
            waiter=waiter,
            request=request,
            run=records[waiter.run_id],
            dagster_run=runs.get(request.dagster_run),
        )
        for waiter, request in zip(waiters, requests, strict=True)
    ]


def end_waiter(store: Store, waiter: Waiter, reason: str) -> bool:
    """End a waiter whose results nobody wants any more; with its last, a batch run is cancelled.

    Returns:
        Whether the batch run is to be cancelled.
    """
    keeps_work = not Request.of_waiter(waiter).cancel_on_termination
    store.end_waiter(waiter.waiter_id, WaiterState.CANCELLED, reason, keeps_work=keeps_work)
    if keeps_work:
        return False
    if store.list_waiters(run_id=waiter.run_id, states=[WaiterState.OPEN], limit=1):
        return False
    store.set_control(waiter.run_id, RunControlState.CANCEL, reason)
    return True


def has_to_wait(runs: LaunchedRuns, siblings: Iterable[Wish], launched: Collection[str]) -> bool:
    """Whether a sibling of a wish is being served now.

    One goes after the other, so that there is a last one, which takes along what they share when
    all the others are materialized.

    Args:
        runs: Where Dagster runs are looked up.
        siblings: The wish's.
        launched: The waiters for which this tick has asked for a Dagster run.
    """
    return any(
        sibling.waiter.waiter_id in launched or _is_being_served(runs, sibling)
        for sibling in siblings
    )


def serve(
    store: Store, runs: LaunchedRuns, wish: Wish, along: Callable[[str], frozenset[str]]
) -> Iterator[dg.RunRequest | None]:
    """Yield the Dagster runs that a ready wish needs now; end the wish once all have ended.

    Yields None for each that it has and that is not over. May be left at any point: what was
    found out by then is stored.

    Args:
        store: The control plane.
        runs: Where Dagster runs are looked up.
        wish: A ready one that need not wait.
        along: Tells which descendants go along with a partition.
    """
    waiter = wish.waiter
    settled = []
    runs.look_up(run_keys(wish))
    for segment in segments_of(waiter):
        if segment.state is not SegmentState.OPEN:
            settled.append(segment)
            continue
        selection = _selection(wish, segment, along)
        current = _settled(runs, waiter, segment, is_all=not selection)
        if current != segment:
            waiter = store_progress(store, waiter, with_segment(waiter.progress, current))
            current = segments_of(waiter)[segment.index]  # a verdict may have come in between
        if current.state is SegmentState.OPEN:
            is_asked = runs.find(current.run_key(waiter)) is not None
            yield None if is_asked else _run_request(wish, current, selection)
        settled.append(current)
    _end_if_settled(store, waiter, settled)


def run_keys(wish: Wish) -> list[str]:
    """Return the run keys by which a ready wish is served now."""
    if not wish.run.state.is_terminal:
        return []
    return [
        segment.run_key(wish.waiter)
        for segment in segments_of(wish.waiter)
        if segment.state is SegmentState.OPEN
    ]


def _settled(runs: LaunchedRuns, waiter: Waiter, segment: Segment, *, is_all: bool) -> Segment:
    """Return an open segment as its Dagster run says that it is now.

    Args:
        runs: Where Dagster runs are looked up.
        waiter: The segment's.
        segment: As stored.
        is_all: Whether a further attempt would have nothing to do: all is stored.
    """
    run = runs.find(segment.run_key(waiter))
    if run is None or not run.is_finished:
        return segment
    is_cancelled = run.status is dg.DagsterRunStatus.CANCELED
    is_last = is_all or is_cancelled or segment.attempt + 1 >= MAX_ATTEMPTS
    if run.status is dg.DagsterRunStatus.SUCCESS or (segment.is_stored and is_last):
        return dataclasses.replace(segment, state=SegmentState.MATERIALIZED)
    if is_cancelled:
        return dataclasses.replace(segment, state=SegmentState.CANCELLED, reason="terminated")
    if segment.attempt + 1 >= MAX_ATTEMPTS:
        reason = f"its Dagster run failed {MAX_ATTEMPTS} times"
        return dataclasses.replace(segment, state=SegmentState.FAILED, reason=reason)
    return dataclasses.replace(segment, attempt=segment.attempt + 1)


def _end_if_settled(store: Store, waiter: Waiter, segments: Sequence[Segment]) -> None:
    states = {segment.state for segment in segments}
    if SegmentState.OPEN in states:
        return
    reasons = [segment.reason for segment in segments if segment.reason]
    if SegmentState.FAILED in states:
        end = WaiterState.FAILED
    elif SegmentState.CANCELLED in states:
        end = WaiterState.CANCELLED
    else:
        end = WaiterState.SERVED
    store.end_waiter(waiter.waiter_id, end, reasons[0] if reasons else None)


def _is_being_served(runs: LaunchedRuns, wish: Wish) -> bool:
    if wish.waiter.state is not WaiterState.OPEN:
        return False
    if wish.delivers_itself:
        return True
    runs.look_up(run_keys(wish))
    return any(runs.find(run_key) for run_key in run_keys(wish))


def _selection(
    wish: Wish, segment: Segment, along: Callable[[str], frozenset[str]]
) -> list[dg.AssetKey]:
    """Return what the run of a segment materializes."""
    found = [along(partition) for partition in segment.partitions or ("",)]
    own = () if segment.is_stored else (wish.waiter.asset,)
    taken = {*own, *found[0].intersection(*found)}
    names = [name for name in wish.request.selection if name in taken]
    return [dg.AssetKey.from_user_string(name) for name in names]


def _run_request(wish: Wish, segment: Segment, selection: list[dg.AssetKey]) -> dg.RunRequest:
    tags = {
        TAG_BATCH_RUN: wish.run.run_id,
        TAG_ASSET: wish.waiter.asset,
        TAG_KIND: RunKind.MATERIALIZE.value,
        TAG_WAITER: wish.waiter.waiter_id,
        TAG_SEGMENT: str(segment.index),
        # The next tick tries again. Dagster's run retries would, after a verdict, ask anew and pay.
        TAG_MAX_RETRIES: "0",
    }
    if wish.request.backfill:
        tags[TAG_BACKFILL] = wish.request.backfill
    partition = segment.partitions[0] if segment.partitions else None
    if len(segment.partitions) > 1:
        tags[TAG_PARTITION_RANGE_START] = segment.partitions[0]
        tags[TAG_PARTITION_RANGE_END] = segment.partitions[-1]
        partition = None
    return dg.RunRequest(
        run_key=segment.run_key(wish.waiter),
        partition_key=partition,
        asset_selection=selection,
        tags=tags,
    )


def _dagster_runs(
    instance: dg.DagsterInstance, run_ids: Iterable[str]
) -> Mapping[str, dg.DagsterRun]:
    found: dict[str, dg.DagsterRun] = {}
    for group in in_groups(sorted(set(run_ids))):
        runs = instance.get_runs(dg.RunsFilter(run_ids=group))
        found.update((run.run_id, run) for run in runs)
    return found
