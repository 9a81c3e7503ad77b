"""Requests that come back as they were launched, whatever is done to them in the meantime."""

import polars as pl
import pytest

from batchor_core.model.states import RunControlState, RunState, WaiterState
from batchor_dagster import BatchParquetIOManager
from batchor_dagster.constants import CANCEL_JOB, PAUSE_JOB, RESUME_JOB
from tests.e2e.handed_back_story import (
    BACKFILL,
    CANCELLED,
    JOB,
    PAUSED,
    SHELL,
    TAGS,
    THRESHOLD,
    Story,
    tell,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it, told once."""
    return tell(tmp_path_factory.mktemp("handed_back"), tmp_path_factory.mktemp("home"))


def test_materialize_run_is_of_the_job_that_asked(story: Story) -> None:
    """Executor, tags and the longest runtime of a job would be lost on the way."""
    assert story.request is not None
    assert (story.request.job_name, story.request.status) == ("nightly", "SUCCESS")
    run = story.materialize_run(JOB)
    assert run.run_id != story.request.run_id
    assert (run.job_name, run.status) == ("nightly", "SUCCESS")
    tags = {**TAGS, "dagster/max_runtime": "600"}
    assert tags.items() <= run.tags.items()


def test_hook_fires_for_what_was_materialized(story: Story) -> None:
    """Whoever wants to be told would be told of the request only, of which nothing is stored."""
    run = story.materialize_run(JOB)
    fired = {(job, step) for run_id, job, step in story.hooked if run_id == run.run_id}
    assert fired == {("nightly", "answers"), ("nightly", "judged")}


def test_run_configuration_reaches_what_is_downstream(story: Story) -> None:
    """A launch with required configuration would fail, or run with a default."""
    assert story.materialize_run(JOB, "judged").run_id == story.materialize_run(JOB).run_id
    manager = BatchParquetIOManager(base_path=str(story.folder / "out"))
    table = pl.read_parquet(str(manager.path_for(["judged"], JOB)))
    assert set(table["threshold"]) == {THRESHOLD}


def test_removed_descendant_takes_nothing_with_it(story: Story) -> None:
    """Dagster fails such a backfill: what was paid for would be thrown away with it."""
    assert story.backfill is not None
    assert story.backfill.status == "FAILED"
    assert "existed at storage-time, but no longer does" in str(story.backfill.error)
    assert story.materialize_run(BACKFILL).status == "SUCCESS"
    assert story.materialize_run(BACKFILL, "kept").status == "SUCCESS"
    waiter = story.waiters[BACKFILL]
    assert waiter.state is WaiterState.SERVED
    assert "'removed' is not defined any more" in str(waiter.reason)
    assert story.batches(BACKFILL) == ["completed"]


def test_sensors_do_not_fail(story: Story) -> None:
    """A tick that fails serves nobody, and is repeated for ever."""
    assert story.failed_ticks == []


def test_command_line_is_refused(story: Story) -> None:
    """A batch would be paid for that no sensor ever looks after."""
    assert story.shell is not None
    assert story.shell.returncode != 0
    text = " ".join(story.shell.stdout.split())
    assert "nothing was sent: asset 'answers' was launched outside of a code location" in text
    assert """--config-json '{"ops": {"answers": {"config": {"wait": true}}}}'""" in text
    assert SHELL not in story.waiters


def test_pause(story: Story) -> None:
    """A bad day of the provider's could not be waited out from the UI."""
    assert story.controls[PAUSE_JOB].status == "SUCCESS"
    run_id = story.waiters[PAUSED].run_id
    line = f"batch run {run_id} is paused: what is in flight is still collected"
    assert line in story.control_logs[PAUSE_JOB]
    assert story.while_paused is not None
    assert story.while_paused.control is RunControlState.PAUSE
    assert story.while_paused.control_reason == "a bad day"
    assert story.materialized_while_paused == {JOB, BACKFILL}


def test_resume_with_a_budget(story: Story) -> None:
    """What was paused could only be let go from a shell."""
    assert story.controls[RESUME_JOB].status == "SUCCESS"
    run = story.runs[story.waiters[PAUSED].run_id]
    assert (run.state, run.budget_usd) == (RunState.SUCCEEDED, 50.0)
    assert story.materialize_run(PAUSED).status == "SUCCESS"


def test_cancel(story: Story) -> None:
    """A batch that nobody wants could only be stopped from a shell."""
    assert story.controls[CANCEL_JOB].status == "SUCCESS"
    waiter = story.waiters[CANCELLED]
    assert (waiter.state, waiter.reason) == (WaiterState.CANCELLED, "a wrong prompt")
    assert story.batches(CANCELLED) == ["cancelled"]


def test_nothing_is_paid_twice(story: Story) -> None:
    """Rows would be paid again without anybody having asked for it."""
    assert story.ledger["paid_twice"] == []
    assert len([entry for entry in story.ledger["entries"] if entry["billed"]]) == 3 * 3
