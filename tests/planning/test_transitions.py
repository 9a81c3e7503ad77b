"""The state machines as data."""

from enum import StrEnum
from typing import Any

import pytest

from batchor_core.model.states import (
    TERMINAL_RUN_STATES,
    ChunkState,
    RunState,
    SubmissionState,
    WaiterState,
)
from batchor_core.model.transitions import (
    CHUNK_TRANSITIONS,
    RUN_TRANSITIONS,
    SUBMISSION_TRANSITIONS,
    WAITER_TRANSITIONS,
    sources_of,
)

MACHINES = [
    (RunState, RUN_TRANSITIONS, RunState.INGESTING),
    (ChunkState, CHUNK_TRANSITIONS, ChunkState.READY),
    (SubmissionState, SUBMISSION_TRANSITIONS, SubmissionState.INTENDED),
    (WaiterState, WAITER_TRANSITIONS, WaiterState.OPEN),
]


@pytest.mark.parametrize(("states", "table", "first"), MACHINES)
def test_every_state_can_be_reached(states: type[StrEnum], table: Any, first: StrEnum) -> None:
    """A state would exist that nothing can ever be in."""
    reached, waiting = {first}, [first]
    while waiting:
        state = waiting.pop()
        news = {row.target for row in table if row.source == state} - reached
        reached |= news
        waiting += news
    assert reached == set(states)


@pytest.mark.parametrize(("states", "table", "first"), MACHINES)
def test_every_row_is_there_once_and_says_when(states: Any, table: Any, first: Any) -> None:
    """Docs and guards that are made from the table would contradict each other."""
    pairs = [(row.source, row.target) for row in table]
    assert len(pairs) == len(set(pairs))
    assert all(row.when for row in table)
    assert all(row.source != row.target for row in table)


def test_nothing_leaves_a_terminal_run() -> None:
    """A finished run could come back to life."""
    assert not {row.source for row in RUN_TRANSITIONS} & TERMINAL_RUN_STATES
    assert {row.target for row in RUN_TRANSITIONS} >= TERMINAL_RUN_STATES


def test_sources_are_those_of_the_table() -> None:
    """SQL guards, which are made from this, would let wrong changes pass."""
    assert sources_of(SUBMISSION_TRANSITIONS, SubmissionState.VOID) == (
        SubmissionState.INTENDED,
        SubmissionState.ENDED,
    )
    assert sources_of(RUN_TRANSITIONS, RunState.INGESTING) == ()
    assert sources_of(CHUNK_TRANSITIONS, ChunkState.DONE) == (
        ChunkState.SUBMITTED,
        ChunkState.READY,
    )
