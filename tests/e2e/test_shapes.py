"""Backfills of any shape, in one ``dagster dev`` that is reloaded and restarted in the middle."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster import BatchParquetIOManager
from tests.e2e.shapes_story import (
    BAD,
    DATES,
    GRID_ALONE,
    GRID_RANGE,
    MANY,
    ODD_ALONE,
    ODD_KEYS,
    Story,
    days,
    is_range,
    tell,
)

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

ROWS = 2
COMPLETE = "COMPLETED_SUCCESS"
ENDS = {
    "range": "COMPLETED_FAILED",
    "daily": COMPLETE,
    "both": COMPLETE,
    "both again": COMPLETE,
    "lap": COMPLETE,
    "lap further": COMPLETE,
    "again": COMPLETE,
    "retry": COMPLETE,
    "halt": "COMPLETED_FAILED",
    "odd": COMPLETE,
    "grid": COMPLETE,
    "chain": COMPLETE,
    "many": COMPLETE,
}
COUNTS = {
    "range": {"tickets": (6, 0), "ranged": (5, 1), "report": (5, 1), "total": (0, 1)},
    "daily": {"daily": (6, 0), "daily_note": (6, 0)},
    "both": {"plain": (2, 0)},
    "both again": {"plain": (2, 0)},
    "lap": {"lap": (4, 0)},
    "lap further": {"lap": (4, 0)},
    "again": {"plain": (1, 0), "slow": (1, 0)},
    "retry": {"stored": (1, 0)},
    "halt": {"lap": (0, 2)},
    "odd": {"odd": (len(ODD_KEYS), 0)},
    "grid": {"grid": (len(GRID_RANGE), 0)},
    "chain": {"first": (1, 0), "second": (1, 0), "last": (1, 0)},
    "many": {"many": (len(MANY), 0)},
}
"""By backfill and asset: partitions that were materialized, and that failed."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All of it, told once."""
    return tell(tmp_path_factory.mktemp("shapes"))


def stored(story: Story, asset: str, partition: str | None = None) -> pl.DataFrame:
    """The stored table of a partition, where the IO manager says that it is."""
    manager = BatchParquetIOManager(base_path=str(story.folder / "out"))
    return pl.read_parquet(Path(str(manager.path_for([asset], partition))), glob=False)


@pytest.mark.parametrize("name", ENDS)
def test_how_it_ends(story: Story, name: str) -> None:
    """A backfill would be red or hang although all was answered, or green although it was not."""
    backfill = story.backfills[name]
    assert backfill.status == ENDS[name], backfill
    assert backfill.error is None
    counts = {asset: (c.materialized, c.failed) for asset, c in backfill.assets.items()}
    assert counts == COUNTS[name]


def test_every_wish_is_materialized_once(story: Story) -> None:
    """Downstream would run twice for nothing, or a backfill would miss what it waits for."""
    for asset in ("tickets", "ranged", "report"):
        group = days("range", 0, 5)
        expected = Counter(group if asset == "tickets" else [d for d in group if d != BAD])
        assert story.times_materialized(asset) == expected
    for asset in ("daily", "daily_note"):
        assert story.times_materialized(asset) == Counter(DATES)
    assert story.times_materialized("plain") == Counter(days("both", 0, 1) * 2 + ["again-0"])
    assert story.times_materialized("lap") == Counter(days("lap", 0, 3) + days("lap", 2, 5))
    assert story.times_materialized("slow") == Counter(["again-0"])
    assert story.times_materialized("stored") == Counter(["retry-0"])
    assert story.times_materialized("odd") == Counter([*ODD_KEYS, ODD_ALONE])
    assert story.times_materialized("grid") == Counter([*GRID_RANGE, GRID_ALONE])
    assert story.times_materialized("first") == Counter(["chain-0"])
    assert story.times_materialized("second") == Counter(["chain-0"])
    assert story.times_materialized("last") == Counter([None])
    assert story.times_materialized("many") == Counter(MANY)


def test_nothing_is_paid_twice(story: Story) -> None:
    """The user would be charged again for what is in flight or answered already."""
    assert story.ledger["paid_twice"] == []
    paid = Counter(entry["digest"] for entry in story.ledger["entries"] if entry["billed"])
    assert set(paid.values()) == {1}
    partitions = 5 + 6 + 2 + 6 + 2 + 1 + len(ODD_KEYS) + 1 + len(GRID_RANGE) + 1 + 3 + len(MANY)
    assert len(paid) == ROWS * partitions


def test_nothing_is_left_open(story: Story) -> None:
    """Batches would go on costing money, and holds would stay in the queue for ever."""
    assert story.open_holds == []
    assert not [w for w in story.waiters if w.state is WaiterState.OPEN]
    assert not [run for run in story.runs if not run.state.is_terminal]
    statuses = {batch["status"] for batch in story.ledger["batches"].values()}
    assert statuses == {"completed", "cancelled"}


def test_sensors_do_not_fail(story: Story) -> None:
    """A tick that fails serves nobody, and is repeated for ever."""
    assert story.failed_ticks == []


def test_range_is_one_provider_batch(story: Story) -> None:
    """A thousand small partitions would be a thousand provider batches."""
    assert story.batches_of("ranged", days("range", 0, 5)) == ["completed"]
    assert story.batches_of("many", MANY) == ["completed"]


def test_range_materializes_in_segments_of_one_verdict(story: Story) -> None:
    """A bad partition would take down its neighbours, or be materialized with them."""
    runs = {
        (
            run.tags.get("dagster/asset_partition_range_start", run.tags.get("dagster/partition")),
            run.tags.get("dagster/asset_partition_range_end"),
        ): run.status
        for run in story.runs_of("range", "materialize")
    }
    assert runs == {
        ("range-0", "range-1"): "SUCCESS",
        (BAD, None): "FAILURE",
        ("range-3", "range-5"): "SUCCESS",
    }


def test_hold_of_a_range_has_the_range(story: Story) -> None:
    """Dagster books a terminated hold under its tags: without any the backfill would crash."""
    for name in ("range", "daily", "lap", "halt", "odd", "grid", "many"):
        holds = story.runs_of(name, "hold")
        assert len(holds) == 1
        assert is_range(holds[0])


def test_some_hundred_partitions_are_few_dagster_runs(story: Story) -> None:
    """Dagster starts its runs one after another: four hundred of them would take half an hour."""
    runs = [run for run in story.backfills["many"].runs if run.tags.get("batchor/kind") != "hold"]
    assert len(runs) == 2
    for partition in (MANY[0], MANY[99], MANY[-1]):
        assert f"many of {partition} row 1;" in stored(story, "many", partition)["output_text"][1]


def test_downstream_without_policy_runs_by_partition(story: Story) -> None:
    """Who wants single values downstream would have to take dicts."""
    others = [run for run in story.runs_of("daily", None) if not is_range(run)]
    assert sorted(run.tags["dagster/partition"] for run in others) == DATES
    for date in DATES:
        prompts = [f"daily of {date} row {n};" for n in range(ROWS)]
        assert stored(story, "daily_note", date)["prompt"].to_list() == prompts


def test_overlapping_backfills_share_what_is_in_flight(story: Story) -> None:
    """What two people ask for at the same time would be paid twice."""
    runs = {w.run_id for w in story.waiters if w.partitions == ("both-0",)}
    assert len(runs) == 1
    shared = [w for w in story.waiters if w.asset == "lap" and "lap-2" in w.partitions]
    assert sorted(w.partitions for w in shared) == [
        tuple(days("lap", 0, 3)),
        tuple(days("lap", 2, 3)),
    ]
    assert len({w.run_id for w in shared}) == 1


def test_execution_again_turns_an_open_backfill_green(story: Story) -> None:
    """One bad partition would mean to launch the whole backfill again."""
    assert story.failed_once is not None
    assert story.failed_once.is_open
    assert story.failed_once.assets["plain"].failed == 1
    assert story.turned_green is not None
    assert story.turned_green.is_open
    assert story.turned_green.assets["plain"].failed == 0


def test_failed_materialize_run_is_tried_again(story: Story) -> None:
    """A full disk at the wrong moment would lose answers that are paid for."""
    runs = story.runs_of("retry", "materialize")
    assert sorted(run.status for run in runs) == ["FAILURE", "SUCCESS"]


def test_terminated_range_is_cancelled(story: Story) -> None:
    """The provider would go on working, and charging, for a range that nobody wants."""
    assert story.batches_of("lap", days("halt", 0, 1)) == ["cancelled"]
    (waiter,) = [w for w in story.waiters if "halt-0" in w.partitions]
    assert waiter.state is WaiterState.CANCELLED


@pytest.mark.parametrize(("name", "batches"), [("upload", []), ("create", ["cancelled"])])
def test_terminated_submit_leaves_nothing_at_work(
    story: Story, name: str, batches: list[str]
) -> None:
    """A batch that was being created when its run was terminated would be paid for nothing."""
    assert story.stuck[name] == "CANCELED"
    assert story.batches_of("plain", [f"{name}-0"]) == batches
    (waiter,) = [w for w in story.waiters if w.partitions == (f"{name}-0",)]
    assert waiter.state is WaiterState.CANCELLED


@pytest.mark.parametrize("key", [*ODD_KEYS, ODD_ALONE])
def test_odd_partition_keys(story: Story, key: str) -> None:
    """A key that is no file name would lose its answers, or overwrite those of another."""
    prompts = [f"odd of {key} row {n};" for n in range(ROWS)]
    assert stored(story, "odd", key)["prompt"].to_list() == prompts


@pytest.mark.parametrize("key", [*GRID_RANGE, GRID_ALONE])
def test_several_dimensions(story: Story, key: str) -> None:
    """Partitions of two dimensions could not be asked for, alone or in a range."""
    prompts = [f"grid of {key} row {n};" for n in range(ROWS)]
    assert stored(story, "grid", key)["prompt"].to_list() == prompts


def test_batch_assets_feed_one_another(story: Story) -> None:
    """The second batch asset would be skipped, or ask about nothing."""
    for prompt, row in zip(stored(story, "last")["prompt"], range(ROWS), strict=True):
        assert prompt.startswith("last: ")
        assert f"first of chain-0 row {row};" in prompt
