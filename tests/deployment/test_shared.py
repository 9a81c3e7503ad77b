"""PostgreSQL, S3, two code locations, a process per step, and Celery workers, in one deployment."""

import pytest

from tests.deployment.backfilling import DAYS
from tests.deployment.projects.parts import ROWS
from tests.deployment.services import missing_for_celery
from tests.deployment.shared_story import PLACES, QUEUE, SharedStory
from tests.e2e.answers_story import hold_of, is_hold

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
MISSING = missing_for_celery()
through_celery = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
everywhere = pytest.mark.parametrize("place", [*PLACES, pytest.param(QUEUE, marks=through_celery)])


@everywhere
def test_backfill_is_held_open(shared: SharedStory, place: str) -> None:
    """On PostgreSQL, the backfill would fail while its answers are being paid for."""
    backfill = shared.held[place]
    assert backfill.status == "REQUESTED"
    assert hold_of(backfill).status == "QUEUED"
    assert {run.status for run in backfill.runs if not is_hold(run)} == {"SUCCESS"}
    answers = backfill.assets[f"{place}_answers"]
    assert (answers.targeted, answers.in_progress) == (len(DAYS), len(DAYS))


@everywhere
def test_backfill_ends_in_success(shared: SharedStory, place: str) -> None:
    """Answers would not get back through the shared store, or the hold would stay for ever."""
    end = shared.ends[place]
    assert end.backfill.status == "COMPLETED_SUCCESS", end.timeline
    assert hold_of(end.backfill).status == "SUCCESS"
    for asset in ("answers", "report"):
        assert end.backfill.assets[f"{place}_{asset}"].materialized == len(DAYS)


@everywhere
def test_outputs_lie_on_the_object_store(shared: SharedStory, place: str) -> None:
    """What one machine wrote could not be read on another."""
    for day in DAYS:
        answers = shared.tables[f"{place}_answers/{day}"]
        assert answers["batch_status"].to_list() == ["ok"] * ROWS
        assert shared.tables[f"{place}_report/{day}"]["len"].sum() == ROWS


def test_nothing_is_paid_twice(shared: SharedStory) -> None:
    """Processes and code locations that share a store would send the same rows."""
    assert shared.paid_twice == []
    digests = [entry["digest"] for entry in shared.ledger["entries"]]
    assert len(digests) == len(set(digests)) == len(shared.ends) * len(DAYS) * ROWS


def test_each_code_location_has_its_own_namespace(shared: SharedStory) -> None:
    """One location's sensors would advance, serve or end what belongs to another."""
    namespaces = sorted(run.namespace for run in shared.batch_runs)
    assert namespaces == sorted([*shared.ends] * len(DAYS))


def test_nothing_is_warned_of(shared: SharedStory) -> None:
    """Users who share all that has to be shared would be told that they do not."""
    assert shared.warnings == []


@through_celery
def test_submitting_and_collecting_workers_differ(shared: SharedStory) -> None:
    """What a worker needs of a batch run would lie on the machine of another."""
    assert shared.workers["request"] == {"first"}
    assert shared.workers["advance"] == {"second"}
    assert shared.workers["materialize"] == {"first", "second"}  # the answers, and their report
