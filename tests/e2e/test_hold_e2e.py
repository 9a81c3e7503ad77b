"""Holds against the installed Dagster: what becomes of them when somebody meddles."""

import pytest

from batchor_dagster.constants import TAG_WAITING_FOR
from tests.e2e.answers_story import (
    ORPHANED,
    SUSPENDED,
    TERMINATED,
    Story,
    hold_of,
    is_hold,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


def test_there_is_one_hold_for_all_requests_of_a_backfill(story: Story) -> None:
    """A hold per run would fill the queue, and end the backfill's bookkeeping in a mess."""
    for wait in (story.straight, story.flaky, story.stopped, story.terminated):
        holds = [run for run in wait.backfill.runs if is_hold(run)]
        assert [run.tags[TAG_WAITING_FOR] for run in holds] == [wait.backfill.backfill_id]


def test_hold_ends_in_success(story: Story) -> None:
    """A run that waits for nothing would stay in the queue for ever."""
    for wait in (story.straight, story.flaky):
        assert hold_of(wait.backfill).status == "SUCCESS"


def test_hold_can_be_terminated_from_the_ui(story: Story) -> None:
    """The user could not stop a waiting backfill by the run that stands for it."""
    assert story.refusal is None
    backfill = story.terminated.backfill
    assert hold_of(backfill).status == "CANCELED"
    assert backfill.status == "COMPLETED_FAILED"
    assert backfill.error is None
    assert backfill.assets["answers"].failed == len(TERMINATED)


def test_terminated_hold_cancels_what_it_stands_for(story: Story) -> None:
    """The provider would go on working, and charging, for a backfill that nobody wants."""
    count = len(TERMINATED)
    assert story.batches(TERMINATED) == ["cancelled"] * count
    assert [run.state for run in story.batch_runs(TERMINATED)] == ["cancelled"] * count
    assert [waiter.state for waiter in story.waiters(TERMINATED)] == ["cancelled"] * count


def test_deleted_hold_is_opened_again(story: Story) -> None:
    """Tidying up the queue would fail the backfill while its batches are running."""
    backfill = story.orphaned.backfill
    assert backfill.status == "COMPLETED_SUCCESS", story.orphaned.timeline
    assert hold_of(backfill).status == "SUCCESS"
    assert story.event("answers", ORPHANED[0]).metadata["batchor/rows_ok"] > 0


def test_suspended_hold_is_closed_for_a_cancelled_backfill(story: Story) -> None:
    """Dagster does not cancel suspended runs itself: the backfill would hang as CANCELING."""
    backfill = story.suspended.backfill
    assert backfill.status == "CANCELED"
    assert hold_of(backfill).status == "CANCELED"
    assert story.batches(SUSPENDED) == ["cancelled"]


def test_code_locations_share_a_store_without_meeting(story: Story) -> None:
    """One location's sensors would advance, serve or end what belongs to another."""
    assert {run.namespace for run in story.batch_runs(TERMINATED)} == {"answers_project"}
    assert {run.namespace for run in story.batch_runs(SUSPENDED)} == {"suspended_project"}


def test_no_hold_was_ever_started(story: Story) -> None:
    """A hold that takes a run slot would start the user's step again."""
    waits = (story.straight, story.flaky, story.stopped, story.terminated, story.orphaned)
    for hold in (hold_of(wait.backfill) for wait in waits):
        assert f"{hold.run_id} is blocked by global concurrency limits" in story.log
        assert f"{hold.run_id} - " not in story.log  # how the events of a running run are logged
