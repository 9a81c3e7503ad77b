"""What changes while batches work: declarations, assets, partitions, sensors; and who asks."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from batchor_core.model.states import RunState, WaiterState
from batchor_dagster import BatchParquetIOManager
from batchor_dagster.constants import META_ESTIMATED_COST_USD
from tests.e2e.dagster_dev import RunInfo
from tests.e2e.shapes_story_changes import (
    DRY,
    FILES,
    GONE,
    LOOSE_FILES,
    TRIED,
    WITHOUT_SENSORS,
    Story,
    is_request,
    tell,
)

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

ROWS = 3
COMPLETE = "COMPLETED_SUCCESS"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it, told once."""
    return tell(tmp_path_factory.mktemp("changes"))


def stored(story: Story, asset: str, partition: str) -> pl.DataFrame:
    """The stored table of a partition."""
    manager = BatchParquetIOManager(base_path=str(story.folder / "out"))
    return pl.read_parquet(Path(str(manager.path_for([asset], partition))))


def of_partition(story: Story, partition: str, kind: str) -> list[RunInfo]:
    """The requests for a partition that were launched by what a tag names."""
    tags = {"dagster/partition": partition}
    return [
        run
        for run in story.dagster_runs
        if tags.items() <= run.tags.items() and kind in run.tags and is_request(run)
    ]


@pytest.mark.parametrize("name", ["changing", "changed", "range", "changed in range", "configured"])
def test_backfills_end_in_success(story: Story, name: str) -> None:
    """A backfill would be red, or hang, because somebody changed what it asks for."""
    backfill = story.backfills[name]
    assert backfill.status == COMPLETE, backfill
    for counts in backfill.assets.values():
        assert (counts.materialized, counts.failed) == (counts.targeted, 0)


def test_changed_declaration_answers_both_backfills(story: Story) -> None:
    """One of two backfills would be given the answers of a model that is not declared any more."""
    assert set(stored(story, "changing", "d0")["batch_model"]) == {"gpt-4.1-nano"}
    assert set(stored(story, "changing", "d1")["batch_model"]) == {"gpt-4.1-mini"}
    assert story.times_materialized("changing") == Counter({"d0": 2, "d1": 1})
    first, second = story.waiters_of("changing", "d0")
    assert first.run_id == second.run_id
    assert {first.state, second.state} == {WaiterState.SERVED}


def test_superseded_batch_is_cancelled(story: Story) -> None:
    """Answers that nobody wants any more would be paid."""
    runs = {run.run_id: run for run in story.runs}
    new = runs[story.waiters_of("changing", "d0")[0].run_id]
    assert new.predecessor is not None
    assert runs[new.predecessor].state is RunState.CANCELLED
    assert story.batches_of(new.predecessor) == ["cancelled"]


def test_changed_partition_leaves_its_range(story: Story) -> None:
    """The whole range would be paid again because one of its partitions changed."""
    for day, word in {"d0": "first", "d1": "second", "d2": "first", "d3": "first"}.items():
        prompts = [f"{word} range of {day} row {n};" for n in range(ROWS)]
        assert stored(story, "changing_range", day)["prompt"].to_list() == prompts
    assert story.times_materialized("changing_range") == Counter(
        {"d0": 1, "d1": 2, "d2": 1, "d3": 1}
    )


def test_removed_asset(story: Story) -> None:
    """The provider would go on working for an asset that is not there any more."""
    (waiter,) = story.waiters_of("removed", "d0")
    assert waiter.state is WaiterState.CANCELLED
    assert waiter.reason == "asset 'removed' is not defined any more"
    assert story.batches_of(waiter.run_id) == ["cancelled"]
    assert not story.backfills["removed"].is_open


def test_removed_partition(story: Story) -> None:
    """One partition that is gone would take the others with it, or fail the sensor for ever."""
    files = [*FILES, *LOOSE_FILES]
    assert story.times_materialized("files") == Counter(f for f in files if f not in GONE)
    (waiter,) = story.waiters_of("files", "f3")
    assert waiter.state is WaiterState.CANCELLED
    assert waiter.reason == "partition 'f4' is not defined any more"


def test_removed_partition_of_a_backfill(story: Story) -> None:
    """Dagster fails such a backfill: what was paid for its other partitions would be lost."""
    backfill = story.backfills["files"]
    assert backfill.status == "FAILED"
    assert "have been removed since this backfill was stored" in str(backfill.error)
    (waiter,) = story.waiters_of("files", FILES[0])
    assert waiter.state is WaiterState.CANCELLED
    assert waiter.reason == "partition 'f1' is not defined any more"
    assert story.batches_of(waiter.run_id) == ["completed"]


def test_nothing_is_left_open(story: Story) -> None:
    """Batches would go on costing money, and holds would stay in the queue for ever."""
    assert [run for run in story.dagster_runs if not run.is_finished] == []
    assert not [w for w in story.waiters if w.state is WaiterState.OPEN]
    assert not [run for run in story.runs if not run.state.is_terminal]
    assert {b["status"] for b in story.ledger["batches"].values()} <= {"completed", "cancelled"}


def test_nothing_is_paid_twice(story: Story) -> None:
    """Rows would be paid again without anybody having asked for it."""
    assert story.ledger["paid_twice"] == []
    paid = Counter(entry["digest"] for entry in story.ledger["entries"] if entry["billed"])
    assert sorted(paid.values(), reverse=True)[:4] == [2, 2, 2, 1]  # what `all` asked again


def test_sensors_do_not_fail(story: Story) -> None:
    """A tick that fails serves nobody, and is repeated for ever."""
    assert story.failed_ticks == []


def test_sensors_off(story: Story) -> None:
    """A partition would wait for ever, and nobody would know what for."""
    told = [line for line in story.log_without_sensors if "are switched off" in line]
    assert len(told) == 1
    assert "batchor_advance_sensor, batchor_materialize_sensor" in told[0]
    assert not story.materialized_without_sensors
    assert story.times_materialized("configured")[WITHOUT_SENSORS] == 1


def test_dry_run(story: Story) -> None:
    """Whoever wants to know the cost first would have to pay it."""
    assert story.dry_run is not None
    assert story.dry_run.status == "SUCCESS"
    (told,) = [event.metadata for event in story.observations if event.partition == DRY]
    assert told[META_ESTIMATED_COST_USD] > 0
    assert story.waiters_of("configured", DRY) == []
    assert story.times_materialized("configured")[DRY] == 0


@pytest.mark.parametrize(
    ("partition", "paid"), [("d3", 1), ("d4", ROWS), ("d5", 0), (TRIED, ROWS - 1)]
)
def test_what_is_asked_again(story: Story, partition: str, paid: int) -> None:
    """Mending one row would pay for all, or the rows of a preview would be paid again."""
    assert story.paid_by(story.refreshes[partition]) == paid
    assert story.times_materialized("configured")[partition] == (1 if partition == TRIED else 2)
    assert stored(story, "configured", partition)["batch_status"].to_list() == ["ok"] * ROWS


def test_users_sensor_is_a_request(story: Story) -> None:
    """Partitions could only be asked for by hand."""
    assert len(of_partition(story, "d7", "dagster/run_key")) == 1
    assert story.times_materialized("asked") == Counter(["d7"])


def test_automation_upstream(story: Story) -> None:
    """An automated batch asset would not be asked, or again and again while it waits."""
    assert len(of_partition(story, "d0", "dagster/from_automation_condition")) == 1
    assert story.times_materialized("automated") == Counter(["d0"])


def test_automation_downstream(story: Story) -> None:
    """What is automated downstream would run before the answers are there, or twice."""
    assert story.times_materialized("watcher") == Counter(["d7"])
    assert story.times_materialized("follower") == Counter(["d0"])
    assert not [run for run in story.dagster_runs if run.status == "FAILURE"]
