"""Which step is due, and when: each state yields the right one."""

import dataclasses
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batchor_core.executor.due import ALLOWED, HEAVY_STEPS, Due, due_steps
from batchor_core.model.policies import TimingPolicy
from batchor_core.model.records import (
    ArtifactRef,
    ChunkRecord,
    RunRecord,
    SubmissionRecord,
    Usage,
)
from batchor_core.model.states import (
    TERMINAL_RUN_STATES,
    ChunkState,
    RunControlState,
    RunState,
    SubmissionState,
)
from batchor_core.store.protocol import OpenWork

NOW = datetime(2025, 6, 1, 12, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(seconds=50), NOW - timedelta(seconds=50)
TIMING = TimingPolicy(lease_s=120, settle_s=180, poll_s=20)
FILE = ArtifactRef(path="p", size_bytes=1, sha256="0" * 64)
RUN, PAUSE, CANCEL = RunControlState.RUN, RunControlState.PAUSE, RunControlState.CANCEL


def filled(kind: type, **values: Any) -> Any:
    """A record in which every field that is not given is None or 0."""
    empty = dict.fromkeys((field.name for field in dataclasses.fields(kind)), None)
    return kind(**{**empty, **values})


def run(state: RunState = RunState.RUNNING, control: RunControlState = RUN) -> RunRecord:
    """A run, of which only state and control count."""
    return filled(RunRecord, run_id="r", state=state, control=control)  # type: ignore[no-any-return]


def chunk(state: ChunkState = ChunkState.READY, **values: Any) -> ChunkRecord:
    """A chunk."""
    return filled(ChunkRecord, seq=0, state=state, **values)  # type: ignore[no-any-return]


def submission(state: SubmissionState, **values: Any) -> SubmissionRecord:
    """A submission."""
    return filled(SubmissionRecord, state=state, usage=Usage(), **values)  # type: ignore[no-any-return]


def due(
    record: RunRecord,
    *,
    chunks: Any = (),
    submissions: Any = (),
    scope_free_at: datetime | None = None,
) -> list[tuple[str, datetime]]:
    """Steps and instants, in order."""
    work = OpenWork(run=record, chunks=chunks, submissions=submissions, scope_free_at=scope_free_at)
    return [(each.step, each.at) for each in due_steps(work, TIMING, NOW)]


ACTIVE, ENDED = SubmissionState.ACTIVE, SubmissionState.ENDED
INTENDED, COLLECTED = SubmissionState.INTENDED, SubmissionState.COLLECTED
SENT = [chunk(ChunkState.SUBMITTED)]


@pytest.mark.parametrize("state", sorted(TERMINAL_RUN_STATES))
def test_nothing_is_due_for_a_run_that_is_over(state: RunState) -> None:
    """Sensors would look at finished runs for ever."""
    assert due(run(state), chunks=[chunk()]) == []


def test_states_and_controls_each_allow_some_steps() -> None:
    """A run in a state that the table leaves out would never go on, nor one that is over rest."""
    open_states = set(RunState) - TERMINAL_RUN_STATES
    assert set(ALLOWED) == set(itertools.product(open_states, RunControlState))
    assert set().union(*ALLOWED.values()) == HEAVY_STEPS | {"poll"}


def test_reading_is_due_at_once_unless_paused() -> None:
    """A run would never read its input, or read it although it is paused."""
    assert due(run(RunState.INGESTING)) == [("ingest", NOW)]
    assert due(run(RunState.INGESTING), chunks=[chunk()]) == [("ingest", NOW)]
    assert due(run(RunState.INGESTING, PAUSE)) == []


def test_a_cancelled_run_that_was_never_read_is_closed() -> None:
    """It would stay open for ever."""
    assert due(run(RunState.INGESTING, CANCEL)) == [("finish", NOW)]
    assert due(run(RunState.INGESTING, CANCEL), chunks=[chunk()]) == [("cancel", NOW)]


@pytest.mark.parametrize(
    ("not_before", "scope_free_at", "at"),
    [
        (None, None, NOW),
        (EARLIER, EARLIER, NOW - timedelta(seconds=50)),
        (LATER, None, LATER),
        (None, LATER, LATER),
        (LATER, LATER + timedelta(seconds=9), LATER + timedelta(seconds=9)),
        (EARLIER, None, NOW),
    ],
)
def test_sending_waits_for_chunk_and_scope(
    not_before: datetime | None, scope_free_at: datetime | None, at: datetime
) -> None:
    """A chunk would be sent before its back-off or that of its queue is over."""
    chunks = [chunk(not_before=not_before)]
    assert due(run(), chunks=chunks, scope_free_at=scope_free_at) == [("submit", at)]


def test_a_pause_stops_sending_and_a_cancel_gives_up() -> None:
    """A paused run would go on spending, or a cancelled one keep its chunks."""
    assert due(run(control=PAUSE), chunks=[chunk()]) == []
    assert due(run(control=CANCEL), chunks=[chunk()]) == [("cancel", NOW)]


@pytest.mark.parametrize("control", list(RunControlState))
def test_polling_goes_on_under_every_control(control: RunControlState) -> None:
    """Results would expire unseen."""
    active = submission(ACTIVE, next_poll_at=LATER, provider_status="cancelling")
    assert due(run(control=control), chunks=SENT, submissions=[active]) == [("poll", LATER)]


def test_a_batch_is_cancelled_once() -> None:
    """A cancelled run's batch would work on, or be cancelled in every cycle."""
    working = submission(ACTIVE, next_poll_at=LATER, provider_status="in_progress")
    steps = due(run(control=CANCEL), chunks=SENT, submissions=[working])
    assert steps == [("cancel", NOW), ("poll", LATER)]
    asked = dataclasses.replace(working, next_cancel_at=LATER)
    steps = due(run(control=CANCEL), chunks=SENT, submissions=[asked])
    assert steps == [("cancel", LATER), ("poll", LATER)]


@pytest.mark.parametrize("control", list(RunControlState))
def test_collecting_is_always_due_at_once(control: RunControlState) -> None:
    """Results would expire at the provider."""
    steps = due(run(control=control), chunks=SENT, submissions=[submission(ENDED)])
    assert steps == [("collect", NOW)]


def test_an_unsettled_create_is_looked_for() -> None:
    """A batch that we do not know of would only be looked for when settling is over."""

    def at(**values: Any) -> datetime:
        ((step, instant),) = due(run(), chunks=SENT, submissions=[submission(INTENDED, **values)])
        assert step == "recover"
        return instant

    soon = NOW + timedelta(seconds=20)
    assert at(create_allowed_until=LATER) == soon
    assert at(create_allowed_until=LATER, create_ended_at=NOW) == soon
    nearly = NOW - timedelta(seconds=170)
    assert at(create_ended_at=nearly) == NOW + timedelta(seconds=10)
    assert at(create_ended_at=NOW - timedelta(seconds=181)) == NOW
    assert at() == NOW  # its process died before the call


def test_retries_wait_for_their_instant_and_for_control() -> None:
    """Rows would be sent again too early, or although the run is paused or cancelled."""
    waits = submission(COLLECTED, retry_at=LATER, retry_count=1)
    assert due(run(), submissions=[waits]) == [("retry", LATER)]
    assert due(run(control=PAUSE), submissions=[waits]) == []
    assert due(run(control=CANCEL), submissions=[waits]) == [("finish", NOW)]
    assert due(run(), submissions=[submission(COLLECTED, retry_count=1)]) == [("retry", NOW)]


def test_a_run_with_nothing_open_is_closed() -> None:
    """It would stay open for ever."""
    assert due(run()) == [("finish", NOW)]
    assert due(run(control=CANCEL)) == [("finish", NOW)]
    assert due(run(control=PAUSE)) == []


def test_polling_alone_is_light() -> None:
    """A sensor would start a process for each look at a batch."""
    assert "poll" not in HEAVY_STEPS
    assert Due(step="poll", at=NOW) == Due(step="poll", at=NOW)
