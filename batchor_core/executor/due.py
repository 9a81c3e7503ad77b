"""When a run can be advanced, and by what: a pure look at its open work.

The one place that knows which step is due; ``wait``, the sensors and the command line ask it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from batchor_core.model.policies import TimingPolicy
from batchor_core.model.records import ChunkRecord, RunRecord, SubmissionRecord
from batchor_core.model.states import (
    UNCOLLECTED_SUBMISSION_STATES,
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
)
from batchor_core.store.protocol import OpenWork

HEAVY_STEPS = frozenset({"ingest", "recover", "cancel", "collect", "retry", "submit", "finish"})
"""Everything but polling: these move files or take a while."""

_ALWAYS = frozenset({"poll", "recover", "cancel", "collect"})
"""Allowed under every control: results expire, a doubt is settled better early, and what nobody
wants shall not be paid for."""

ALLOWED: Mapping[tuple[RunState, RunControlState], frozenset[str]] = {
    # Nothing is sent before the source is read to its end.
    (RunState.INGESTING, RunControlState.RUN): _ALWAYS | {"ingest"},
    (RunState.INGESTING, RunControlState.PAUSE): _ALWAYS,
    (RunState.INGESTING, RunControlState.CANCEL): _ALWAYS | {"finish"},
    (RunState.RUNNING, RunControlState.RUN): _ALWAYS | {"retry", "submit", "finish"},
    (RunState.RUNNING, RunControlState.PAUSE): _ALWAYS,
    (RunState.RUNNING, RunControlState.CANCEL): _ALWAYS | {"finish"},
}
"""The steps that a run's state and control allow; of a run that is over, none."""


@dataclass(frozen=True, kw_only=True)
class Due:
    """A step and the instant from which it can do something."""

    step: str
    at: datetime


def due_steps(work: OpenWork, timing: TimingPolicy, now: datetime) -> list[Due]:
    """Return what is or will be due for a run, in no particular order.

    Empty for a run that is over, and for one that is paused with nothing in flight.
    """
    allowed = allowed_steps(work.run)
    return [due for due in _due(work, timing, now) if due.step in allowed]


def allowed_steps(run: RunRecord) -> frozenset[str]:
    """Return the steps that a run's state and control allow."""
    return ALLOWED.get((run.state, run.control), frozenset())


def is_settled(work: OpenWork) -> bool:
    """Whether the run may be closed: nothing can change its outcomes any more."""
    if work.chunks or work.is_blocked or "finish" not in allowed_steps(work.run):
        return False  # blocked: whoever supersedes this run waits for its predecessor through it
    if work.run.control is RunControlState.CANCEL:  # items that wait for a retry are given up
        return not any(s.state in UNCOLLECTED_SUBMISSION_STATES for s in work.submissions)
    return not work.submissions


def may_be_cancelled(submission: SubmissionRecord) -> bool:
    """Whether it makes sense to ask the provider to cancel an active batch that nobody wants.

    It does not where the provider says that it is being cancelled. A provisional one may be
    another's batch: it is not cancelled before its results tell.
    """
    is_cancelling = (submission.provider_status or "").startswith("cancel")
    return not (is_cancelling or submission.is_provisional)


def _due(work: OpenWork, timing: TimingPolicy, now: datetime) -> Iterator[Due]:
    unwanted = {chunk.seq for chunk in work.chunks if chunk.is_unwanted}
    for submission in work.submissions:
        is_unwanted = submission.chunk_seq in unwanted
        yield from _due_of_submission(
            submission, work.run.control, timing, now, is_unwanted=is_unwanted
        )
    for chunk in work.chunks:
        yield from _due_of_chunk(chunk, work, now)
    if work.run.state is RunState.INGESTING:
        yield Due(step="ingest", at=now)
    if is_settled(work):
        yield Due(step="finish", at=now)


def _due_of_submission(
    submission: SubmissionRecord,
    control: RunControlState,
    timing: TimingPolicy,
    now: datetime,
    *,
    is_unwanted: bool,
) -> Iterator[Due]:
    state = submission.state
    if state is SubmissionState.ACTIVE:
        if (control is RunControlState.CANCEL or is_unwanted) and may_be_cancelled(submission):
            yield Due(step="cancel", at=submission.next_cancel_at or now)
        yield Due(step="poll", at=submission.next_poll_at or now)
    elif state is SubmissionState.ENDED:
        yield Due(step="collect", at=submission.next_poll_at or now)
    elif state is SubmissionState.INTENDED:
        end = submission.create_ended_at or submission.create_allowed_until
        settled = end + timedelta(seconds=timing.settle_s) if end else now  # nothing can exist
        look_again = now + timedelta(seconds=min(timing.poll_s, timing.lease_s / 4))
        yield Due(step="recover", at=min(settled, look_again) if settled > now else now)
    else:
        yield Due(step="retry", at=submission.retry_at or now)


def _due_of_chunk(chunk: ChunkRecord, work: OpenWork, now: datetime) -> Iterator[Due]:
    if chunk.state is not ChunkState.READY:
        return
    if work.run.control is RunControlState.CANCEL or chunk.is_unwanted:
        yield Due(step="cancel", at=now)
    elif chunk.is_duplicate and (work.submissions or not all(c.is_duplicate for c in work.chunks)):
        return  # what it waits for is not answered yet
    elif not work.is_blocked:
        yield Due(step="submit", at=max(chunk.not_before or now, work.scope_free_at or now))
