"""Holds against the installed Dagster: real backfills, launched as the UI launches them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from batchor_dagster.constants import TAG_KIND, TAG_WAITING_FOR
from tests.e2e.dagster_dev import Backfill, DagsterDev, RunInfo, TimelineEntry

PROJECT = Path(__file__).parent / "projects" / "hold_project.py"
ASSETS = ["answers", "report"]
LONGER_THAN_TWO_TICKS_S = 75.0
"""The daemon looks at backfills every 30 s; without a hold, the second look fails them."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


@dataclass(frozen=True, kw_only=True)
class Story:
    """Backfills that went on side by side in one server, and what was seen of them."""

    succeeded: Backfill
    timeline: Sequence[TimelineEntry]
    waited_s: float
    materializing: set[str]
    terminated: Backfill
    refusal: str | None
    cancelled: Backfill
    reopened: Backfill
    suspended: Backfill
    log: str


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Release a backfill after more than two ticks, and meddle with the others while they wait."""
    control = tmp_path_factory.mktemp("control")
    with DagsterDev(target=["-f", str(PROJECT)], env={"HOLD_CONTROL": str(control)}) as dev:
        released = dev.launch_backfill(ASSETS, ["a0", "a1"])
        terminated = dev.launch_backfill(ASSETS, ["b0", "b1"])
        cancelled = dev.launch_backfill(ASSETS, ["c0", "c1"])
        reopened = dev.launch_backfill(ASSETS, ["d0"])
        suspended = dev.launch_backfill(ASSETS, ["e0"], {"test/hold_kind": "suspended"})
        for backfill_id in (released, terminated, cancelled, reopened, suspended):
            _wait_until_held(dev, backfill_id)
        held_since = time.monotonic()
        (refusal,) = dev.terminate_runs([_hold(dev.backfill(terminated)).run_id]).values()
        for backfill_id in (cancelled, suspended):
            dev.cancel_backfill(backfill_id)
        dev.delete_run(_hold(dev.backfill(reopened)).run_id)
        materializing = _watch_open(dev, released, held_since)
        waited_s = time.monotonic() - held_since
        for partition in ("a0", "a1", "d0"):
            (control / f"release-{partition}").touch()
        end = dev.wait_backfill(released, timeout_s=120)
        return Story(
            succeeded=end.backfill,
            timeline=end.timeline,
            waited_s=waited_s,
            materializing=materializing,
            terminated=dev.wait_backfill(terminated, timeout_s=60).backfill,
            refusal=refusal,
            cancelled=dev.wait_backfill(cancelled, timeout_s=60).backfill,
            reopened=dev.wait_backfill(reopened, timeout_s=60).backfill,
            suspended=dev.wait_backfill(suspended, timeout_s=60).backfill,
            log=dev.log(),
        )


def test_backfill_stays_open_while_the_provider_works(story: Story) -> None:
    """Without the hold the backfill is failed while its batches are still running."""
    assert story.waited_s > LONGER_THAN_TWO_TICKS_S
    assert story.materializing >= {"a0", "a1"}


def test_backfill_ends_in_success(story: Story) -> None:
    """A backfill whose partitions all materialised, downstream included, would not be green."""
    assert story.succeeded.status == "COMPLETED_SUCCESS", story.timeline
    assert {key: counts.materialized for key, counts in story.succeeded.assets.items()} == {
        "answers": 2,
        "report": 2,
    }
    assert _hold(story.succeeded).status == "SUCCESS"
    assert _hold(story.succeeded).tags[TAG_WAITING_FOR] == story.succeeded.backfill_id


def test_there_is_one_hold_for_all_requests_of_a_backfill(story: Story) -> None:
    """A hold per run would fill the queue, and end the backfill's bookkeeping in a mess."""
    for backfill in (story.succeeded, story.terminated, story.cancelled):
        assert len([run for run in backfill.runs if _is_hold(run)]) == 1


def test_hold_can_be_terminated_from_the_ui(story: Story) -> None:
    """The user could not stop a waiting backfill by the run that stands for it."""
    assert story.refusal is None
    assert _hold(story.terminated).status == "CANCELED"
    assert story.terminated.status == "COMPLETED_FAILED"
    assert story.terminated.error is None
    assert story.terminated.assets["answers"].failed == 2


def test_cancelled_backfill_ends_as_cancelled(story: Story) -> None:
    """A cancelled backfill would hang as CANCELING for as long as its hold is open."""
    assert story.cancelled.status == "CANCELED"
    assert story.cancelled.error is None
    assert _hold(story.cancelled).status == "CANCELED"


def test_deleted_hold_is_opened_again(story: Story) -> None:
    """Tidying up the queue would fail the backfill while its batches are running."""
    assert story.reopened.status == "COMPLETED_SUCCESS"
    assert _hold(story.reopened).status == "SUCCESS"


def test_suspended_hold_is_closed_for_a_cancelled_backfill(story: Story) -> None:
    """Dagster does not cancel suspended runs itself: the backfill would hang as CANCELING."""
    assert story.suspended.status == "CANCELED"
    assert _hold(story.suspended).status == "CANCELED"


def test_no_hold_was_ever_started(story: Story) -> None:
    """A hold that takes a run slot would start the user's step again."""
    backfills = (story.succeeded, story.terminated, story.cancelled, story.reopened)
    for hold in map(_hold, backfills):
        assert f"{hold.run_id} is blocked by global concurrency limits" in story.log
        assert f"{hold.run_id} - " not in story.log  # how the events of a running run are logged


def _is_hold(run: RunInfo) -> bool:
    return run.tags.get(TAG_KIND) == "hold"


def _hold(backfill: Backfill) -> RunInfo:
    return next(run for run in backfill.runs if _is_hold(run))


def _is_held(backfill: Backfill) -> bool:
    requests = [run for run in backfill.runs if not _is_hold(run)]
    return (
        len(requests) == backfill.assets["answers"].targeted
        and all(run.status == "SUCCESS" for run in requests)
        and _hold(backfill).status in {"QUEUED", "SUSPENDED"}
    )


def _wait_until_held(dev: DagsterDev, backfill_id: str) -> None:
    deadline = time.monotonic() + 120
    while not _is_held(backfill := dev.backfill(backfill_id)):
        assert backfill.is_open, backfill
        assert time.monotonic() < deadline, backfill
        time.sleep(1)


def _watch_open(dev: DagsterDev, backfill_id: str, since: float) -> set[str]:
    """Return the partitions that were shown as materializing all the time."""
    shown = dev.materializing_partitions("answers")
    while time.monotonic() - since <= LONGER_THAN_TWO_TICKS_S:
        backfill = dev.backfill(backfill_id)
        assert backfill.status == "REQUESTED", backfill
        shown &= dev.materializing_partitions("answers")
        time.sleep(2)
    return shown
