"""Run retries on, and a run queue that does not block runs on pools."""

import pytest

from tests.deployment.projects.parts import ROWS
from tests.deployment.settings_story import SettingsStory
from tests.e2e.answers_story import hold_of, is_hold

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


def test_hold_is_suspended_where_the_queue_would_start_it(settings: SettingsStory) -> None:
    """The queue would start the hold, which fails the backfill, or runs the user's step again."""
    for backfill in settings.held.values():
        assert backfill.status == "REQUESTED"
        assert hold_of(backfill).status == "SUSPENDED"


def test_backfill_of_flaky_steps_ends_in_success(settings: SettingsStory) -> None:
    """A warehouse that was restarted would cost the answers of two days."""
    backfill = settings.flaky.backfill
    assert backfill.status == "COMPLETED_SUCCESS", settings.flaky.timeline
    assert hold_of(backfill).status == "SUCCESS"
    assert sorted(run.status for run in settings.materialize_runs("flaky_answers")) == [
        "FAILURE",
        "FAILURE",
        "SUCCESS",
        "SUCCESS",
    ]


def test_failed_request_is_executed_again_by_dagster(settings: SettingsStory) -> None:
    """The user's run retries would not hold for batch assets."""
    requests = [run for run in settings.held["flaky"].runs if not is_hold(run)]
    assert sorted(run.status for run in requests) == ["FAILURE", "SUCCESS", "SUCCESS"]


def test_verdict_is_not_retried(settings: SettingsStory) -> None:
    """Dagster would execute the failed run again, which asks anew and pays."""
    backfill = settings.strict.backfill
    assert backfill.status == "COMPLETED_FAILED", settings.strict.timeline
    assert hold_of(backfill).status == "SUCCESS"
    counts = backfill.assets["strict_answers"]
    assert (counts.materialized, counts.failed) == (1, 1)
    runs = settings.materialize_runs("strict_answers")
    assert sorted(run.status for run in runs) == ["FAILURE", "SUCCESS"]


def test_no_failure_is_paid_for_again(settings: SettingsStory) -> None:
    """Each retry of a Dagster run would send its rows once more."""
    digests = [entry["digest"] for entry in settings.ledger["entries"]]
    assert len(digests) == len(set(digests)) == 2 * 2 * ROWS
