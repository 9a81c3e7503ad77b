"""The state machines as data: SQL guards, docs and tests are made from these tables.

No other place decides whether a change of state is allowed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from batchor_core.model.states import ChunkState, RunState, SubmissionState, WaiterState

S = TypeVar("S", bound=StrEnum)


@dataclass(frozen=True, kw_only=True)
class Transition(Generic[S]):
    """One allowed change of state and the event that causes it."""

    source: S
    target: S
    when: str


def _table(rows: list[tuple[S, S, str]]) -> tuple[Transition[S], ...]:
    return tuple(Transition(source=a, target=b, when=when) for a, b, when in rows)


_R, _C, _S, _W = RunState, ChunkState, SubmissionState, WaiterState

RUN_TRANSITIONS = _table(
    [
        (_R.INGESTING, _R.RUNNING, "the source was read to its end and is valid"),
        (_R.INGESTING, _R.CANCELLED, "cancelled; the unread tail of the source is abandoned"),
        (_R.INGESTING, _R.FAILED, "its artifacts are lost"),
        (_R.RUNNING, _R.SUCCEEDED, "every item is ok"),
        (_R.RUNNING, _R.COMPLETED_WITH_FAILURES, "every item is final, at least one failed"),
        (_R.RUNNING, _R.CANCELLED, "cancelled, and nothing is in flight any more"),
        (_R.RUNNING, _R.FAILED, "stopped by what neither retry nor operator can mend"),
    ]
)

CHUNK_TRANSITIONS = _table(
    [
        (_C.READY, _C.SUBMITTED, "a submission was intended for it"),
        (_C.SUBMITTED, _C.READY, "no batch was created, or it was refused for capacity"),
        (_C.SUBMITTED, _C.DONE, "its submission was collected"),
        (_C.READY, _C.SPLIT, "it is too large, or partly answered before; children take its place"),
        (_C.READY, _C.DONE, "an earlier run has answered every request of it"),
        (_C.READY, _C.ABANDONED, "it can or shall never be sent"),
    ]
)

SUBMISSION_TRANSITIONS = _table(
    [
        (_S.INTENDED, _S.ACTIVE, "the provider acknowledged the batch, or it was found there"),
        (_S.INTENDED, _S.VOID, "refused, or looked for throughout the settling time in vain"),
        (_S.ACTIVE, _S.ENDED, "a poll saw the batch in a final status"),
        (_S.ENDED, _S.INTENDED, "it was adopted on suspicion, and its results are another's"),
        (_S.ENDED, _S.COLLECTED, "outcomes are written and committed"),
        (_S.ENDED, _S.VOID, "the provider rejected the batch for capacity: nothing ran"),
    ]
)

WAITER_TRANSITIONS = _table(
    [
        (_W.OPEN, _W.SERVED, "its asset was materialized for all of its partitions"),
        (_W.OPEN, _W.FAILED, "a partition failed, or could not be materialized"),
        (_W.OPEN, _W.CANCELLED, "its request, backfill, hold, asset or partition is gone"),
    ]
)


def sources_of(table: tuple[Transition[S], ...], target: S) -> tuple[S, ...]:
    """Return the states from which ``target`` may be reached, in table order."""
    return tuple(row.source for row in table if row.target == target)
