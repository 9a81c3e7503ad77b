"""A preview: first rows are answered and shown, and nothing else has changed."""

import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster import batch_asset
from batchor_dagster.constants import (
    META_PREVIEW_ANSWERS,
    META_PREVIEW_COST_USD,
    META_PREVIEW_FAILURE_RATE,
    META_PREVIEW_INPUT_TOKENS,
    META_PREVIEW_ROWS,
    META_PREVIEW_ROWS_OF,
    META_PREVIEW_ROWS_REUSED,
    META_PREVIEW_WHOLE_COST_USD,
    TAG_BACKFILL,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
)
from tests.dagster.world import (
    DAYS,
    MODEL,
    ROWS,
    World,
    answers_asset,
    events,
    failure,
    rows_of,
    while_waiting,
)


def configured(**values: Any) -> dict[str, Any]:
    """A run's configuration, as the launchpad sends it."""
    return {"ops": {"answers": {"config": values}}}


def preview(
    world: World, answers: Any, rows: int, *, batches: int = 1, **options: Any
) -> Mapping[str, Any]:
    """Preview rows, the provider working once it has so many batches; return what is shown."""
    config = configured(preview_rows=rows, **options.pop("config", {}))
    with while_waiting(world, world.provider_works, batches=batches) if batches else nullcontext():
        result = world.request(answers, run_config=config, **options)
    assert result.success, failure(result)
    assert events(result) == ["ASSET_OBSERVATION"]
    return world.observations()[-1]


def records(shown: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of the table that is shown."""
    return [record.data for record in shown[META_PREVIEW_ANSWERS].records]


def test_preview_shows_answers_and_stores_nothing(world: World) -> None:
    """Trying out a prompt would overwrite a partition, and wake what is downstream."""

    @dg.asset(partitions_def=DAYS)
    def report(answers: pl.DataFrame) -> pl.DataFrame:
        return answers

    answers = answers_asset()
    shown = preview(world, answers, 2)
    assert (shown[META_PREVIEW_ROWS], shown[META_PREVIEW_ROWS_OF]) == (2, ROWS)
    assert shown[META_PREVIEW_FAILURE_RATE] == 0
    assert shown[META_PREVIEW_INPUT_TOKENS] > 0
    whole = shown[META_PREVIEW_COST_USD] / 2 * ROWS
    assert shown[META_PREVIEW_WHOLE_COST_USD] == pytest.approx(whole, abs=1e-8)
    assert [row["item_id"] for row in records(shown)] == ["0", "1"]
    assert {"label", "score", "batch_status"} <= records(shown)[0].keys()
    assert world.sim.ledger().executed() == 2
    assert (world.waiters, world.materialized()) == ([], [])
    world.finish(answers, report)
    assert (world.materialized(), world.materialized("report")) == ([], [])


@pytest.mark.parametrize("options", [{}, {"reuse": "off"}, {"reuse": "namespace"}])
def test_answers_of_a_preview_are_not_paid_again(world: World, options: dict[str, Any]) -> None:
    """Whoever looks before he leaps would pay twice for what he has seen."""
    answers = answers_asset(**options)
    preview(world, answers, 2)
    world.request(answers)
    world.finish(answers)
    assert world.table().height == world.sim.ledger().executed() == ROWS
    assert world.table()["batch_reused"].to_list() == [True, True, False]
    assert world.sim.ledger().paid_twice() == []


def test_preview_of_all_rows_anew_is_paid_once(world: World) -> None:
    """With `refresh: all`, the rows of the preview would be paid twice."""
    answers = answers_asset()
    world.request(answers)
    world.finish(answers)
    preview(world, answers, 2, config={"refresh": "all"})
    assert world.sim.ledger().executed() == ROWS + 2
    for asked_again in (1, ROWS):  # what was handed over meanwhile is asked anew
        before = world.sim.ledger().executed()
        world.request(answers, run_config=configured(refresh="all"))
        world.finish(answers)
        assert world.sim.ledger().executed() - before == asked_again


def test_preview_takes_answers_that_are_there(world: World) -> None:
    """A second look at the same rows would be paid again, and a cost of 0 be extrapolated."""
    answers = answers_asset()
    preview(world, answers, 2)
    shown = preview(world, answers, 2, batches=0)
    assert shown[META_PREVIEW_ROWS_REUSED] == 2
    assert META_PREVIEW_WHOLE_COST_USD not in shown
    assert world.sim.ledger().executed() == 2


def test_preview_leaves_what_is_in_flight_alone(world: World) -> None:
    """A trial would cancel the real batch, and serve everybody with one row."""
    answers = answers_asset()
    world.request(answers)
    real = world.run
    prompt_changed = answers_asset(system_prompt="Be stern.")
    preview(world, prompt_changed, 1, batches=2)
    assert world.store.get_run(real.run_id).control == "run"
    assert [waiter.run_id for waiter in world.waiters] == [real.run_id]
    assert world.batches == ["completed", "completed"]
    assert world.request(answers).success  # joins the real one
    world.finish(answers)
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]
    assert world.table().height == ROWS
    assert world.sim.ledger().executed() == ROWS + 1


def test_previews_do_not_hide_older_answers(world: World) -> None:
    """After some looks at one row, the whole partition would be paid for again."""
    answers = answers_asset()
    world.request(answers)
    world.finish(answers)
    for number in range(4):
        preview(world, answers_asset(system_prompt=f"Be {number}."), 1)
    before = world.sim.ledger().executed()
    world.request(answers)
    world.finish(answers)
    assert world.sim.ledger().executed() == before


def test_preview_of_another_prompt_mends_no_failed_row(world: World) -> None:
    """`refresh: failed` would fill a partition with answers to a prompt that was only tried out."""

    def asset(prompt: str) -> dg.AssetsDefinition:
        @batch_asset(model=MODEL, partitions_def=DAYS, id_column="id")
        def answers() -> pl.DataFrame:
            ids = [f"row {n}" for n in range(ROWS)]
            return pl.DataFrame({"prompt": [prompt.format(i) for i in ids], "id": ids})

        return answers

    world.request(asset("Judge {};"))
    world.finish(asset("Judge {};"))
    before = world.table()["output_text"].to_list()
    preview(world, asset("Sing of {};"), ROWS)
    world.request(asset("Judge {};"), run_config=configured(refresh="failed"))
    world.finish(asset("Judge {};"))
    assert world.table()["output_text"].to_list() == before


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
@pytest.mark.parametrize(("rows", "of_each"), [(4, [2, 1, 1]), (1, [1, 0, 0]), (99, [ROWS] * 3)])
def test_preview_of_several_partitions_is_one_table(
    world: World, rows: int, of_each: list[int]
) -> None:
    """Twenty rows would become twenty of each of a hundred days, shown a hundred times."""
    answers = answers_asset(backfill_policy=dg.BackfillPolicy.single_run())
    tags = {TAG_PARTITION_RANGE_START: "d3", TAG_PARTITION_RANGE_END: "d5"}
    shown = preview(world, answers, rows, partition=None, tags=tags)
    found = [row["batch_partition"] for row in records(shown)]
    assert [found.count(day) for day in ("d3", "d4", "d5")] == of_each
    assert shown[META_PREVIEW_ROWS_OF] == 3 * ROWS
    assert len(world.observations()) == 1
    world.request(answers, partition="d3")
    world.finish(answers)
    assert world.sim.ledger().executed() == sum(of_each) + ROWS - of_each[0]


def test_preview_shows_why_rows_fail(world: World) -> None:
    """A prompt that the provider refuses would look as if it had no answers."""
    fault = {"kind": "line_error", "status": 400, "match": {"prompt": "row 1;"}}
    world.sim.faults(fault)
    shown = preview(world, answers_asset(), 2)
    assert shown[META_PREVIEW_FAILURE_RATE] == 0.5
    assert [row["batch_status"] for row in records(shown)] == ["ok", "failed"]
    assert records(shown)[1]["batch_error_code"]


def test_long_answers_are_cut(world: World) -> None:
    """An event of a megabyte would be stored for a look at some rows."""

    @batch_asset(model=MODEL, partitions_def=DAYS, keep={"body": pl.String})
    def answers() -> pl.DataFrame:
        return rows_of("d0").with_columns(body=pl.lit("long " * 1000))

    shown = preview(world, answers, 1)
    assert len(records(shown)[0]["body"]) == 200


def test_preview_without_rows(world: World) -> None:
    """A day without tickets would fail, or divide by nothing."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def answers() -> pl.DataFrame:
        return rows_of("d0", 0)

    shown = preview(world, answers, 5, batches=0)
    assert (shown[META_PREVIEW_ROWS], shown[META_PREVIEW_ROWS_OF]) == (0, 0)
    assert records(shown) == []


def test_stopped_preview_cancels_its_batch(world: World) -> None:
    """The provider would go on working for nobody."""
    with while_waiting(world, lambda: os.kill(os.getpid(), signal.SIGINT)):
        result = world.request(answers_asset(), run_config=configured(preview_rows=1))
    assert not result.success
    world.drive(answers_asset())
    assert world.batches == ["cancelled"]
    (run,) = world.store.list_runs()
    assert (run.state, run.control_reason) == ("cancelled", "its preview was stopped")


def test_preview_within_a_budget(world: World) -> None:
    """Looking at the answers first would be the way around the budget."""
    config = configured(preview_rows=1)
    result = world.request(answers_asset(budget_usd=1e-9), run_config=config)
    assert "budget" in failure(result)
    world.drive(answers_asset())
    assert (world.batches, [run.state for run in world.store.list_runs()]) == ([], ["cancelled"])


def test_preview_of_a_backfill_warns(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A backfill would fail, and nobody would know why."""
    preview(world, answers_asset(), 1, tags={TAG_BACKFILL: "some"})
    assert "mark its backfill as failed" in capfd.readouterr().err
