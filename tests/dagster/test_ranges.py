"""Many partitions in one Dagster run: one batch run, whose batches hold rows of all of them."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core import ChunkPolicy
from batchor_core.model.states import RunControlState, RunState, WaiterState
from batchor_dagster import batch_asset
from batchor_dagster.constants import (
    META_BATCH_RUN,
    META_ROWS_OK,
    TAG_PARTITION_RANGE_END,
    TAG_PARTITION_RANGE_START,
)
from tests.dagster.world import (
    DAYS,
    MODEL,
    ROWS,
    Verdict,
    World,
    answers_asset,
    failure,
    rows_of,
    while_waiting,
)

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
SINGLE_RUN = dg.BackfillPolicy.single_run()


def ranged(**options: Any) -> dg.AssetsDefinition:
    """The usual asset, asked for in ranges."""
    return answers_asset(
        **{"backfill_policy": SINGLE_RUN, "output": None, "keep": {"prompt": pl.String}, **options}
    )


def range_tags(first: str, last: str) -> dict[str, str]:
    """What Dagster tags a run of several partitions with."""
    return {TAG_PARTITION_RANGE_START: first, TAG_PARTITION_RANGE_END: last}


def ask(world: World, asset: Any, first: str, last: str, **options: Any) -> Any:
    """Materialize a range of partitions as a backfill does."""
    others = options.pop("others", ())
    tags = range_tags(first, last)
    return world.request(asset, *others, partition=None, tags=tags, **options)


def check_answers(table: pl.DataFrame, prompts: list[str]) -> None:
    """Every row has the answer to its own prompt: the simulator quotes it."""
    assert table.height == len(prompts)
    for text, prompt in zip(table["output_text"], prompts, strict=True):
        assert prompt in text


def test_a_range_is_one_batch_run(world: World) -> None:
    """A hundred small partitions would become a hundred provider batches."""
    answers = ranged()
    assert ask(world, answers, "d3", "d6").success
    assert world.batches == ["validating"] or len(world.batches) == 1
    (waiter,) = world.waiters
    assert waiter.partitions == ("d3", "d4", "d5", "d6")
    assert world.materialized() == []
    (result,) = [r for r in world.finish(answers) if r.dagster_run.asset_selection]
    assert result.success
    assert world.run.state is RunState.SUCCEEDED
    assert sorted(map(str, world.materialized())) == ["d3", "d4", "d5", "d6"]
    assert world.waiters[0].state is WaiterState.SERVED
    for day in waiter.partitions:
        table = world.table(partition=day)
        assert table["item_id"].to_list() == ["0", "1", "2"]
        assert table["batch_status"].to_list() == ["ok"] * ROWS
        check_answers(table, rows_of(day)["prompt"].to_list())


def test_metadata_is_the_partitions_own(world: World) -> None:
    """Counts and cost of the whole range would be plotted at each of its partitions."""
    sizes = {"d0": 1, "d1": 4, "d2": 0}

    @batch_asset(model=MODEL, output=Verdict, partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key, sizes[context.partition_key])

    ask(world, answers, "d0", "d2")
    world.finish(answers)
    records = world.instance.fetch_materializations(dg.AssetKey("answers"), limit=10).records
    metadata = {r.partition_key: r.asset_materialization.metadata for r in records}
    assert {day: m[META_ROWS_OK].value for day, m in metadata.items()} == sizes
    assert {m[META_BATCH_RUN].value for m in metadata.values()} == {world.run.run_id}
    assert world.table(partition="d2").is_empty()


def test_a_bad_partition_fails_alone(world: World) -> None:
    """One partition over its failure rate would take the whole range down with it."""
    answers = ranged(max_failure_rate=0.5)
    for number in range(ROWS):
        fault = {"kind": "line_error", "status": 400, "match": {"prompt": f"d2 row {number};"}}
        world.sim.faults(fault)
    ask(world, answers, "d0", "d4")
    results = world.finish(answers)
    served = [r for r in results if r.dagster_run.asset_selection]
    assert [r.success for r in served] == [True, False, True]
    assert "3 of 3 rows failed" in failure(served[1])
    assert set(world.materialized()) == {"d0", "d1", "d3", "d4"}
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.FAILED
    assert "3 of 3 rows failed" in str(waiter.reason)


def test_waiting_range(world: World) -> None:
    """Small jobs over several partitions could not be had in one go."""
    answers = ranged(wait=True)
    with while_waiting(world, world.provider_works):
        result = ask(world, answers, "d0", "d2")
    assert result.success
    assert set(world.materialized()) == {"d0", "d1", "d2"}


def test_inputs_come_by_partition(world: World) -> None:
    """The user's function would get the rows of all partitions, or those of another one."""

    @dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def tickets(context: dg.AssetExecutionContext) -> dict[str, pl.DataFrame]:
        return {day: pl.DataFrame({"day": [day] * 2}) for day in context.partition_keys}

    @dg.asset
    def tone() -> pl.DataFrame:
        return pl.DataFrame({"tone": ["kind"]})

    @batch_asset(model=MODEL, partitions_def=DAYS, backfill_policy=SINGLE_RUN, wait=True)
    def answers(
        context: dg.AssetExecutionContext, tickets: pl.LazyFrame, tone: pl.DataFrame
    ) -> pl.LazyFrame:
        assert isinstance(context, dg.AssetExecutionContext)
        assert context.partition_keys == [context.partition_key]
        assert tone.height == 1
        return tickets.select(prompt=pl.format("{} of {}", "day", pl.lit(context.partition_key)))

    world.request(tone, partition=None)
    with while_waiting(world, world.provider_works):
        result = ask(
            world, tickets, "d7", "d9", others=[answers, tone], selection=[tickets, answers]
        )
    assert result.success, failure(result)
    for day in ("d7", "d8", "d9"):
        check_answers(world.table(partition=day), [f"{day} of {day}"] * 2)


def test_range_of_several_chunks(world: World) -> None:
    """Partitions that lie across the border of two provider batches would lose rows."""
    answers = ranged(chunks=ChunkPolicy(max_requests=4))
    ask(world, answers, "d0", "d4")
    world.finish(answers)
    assert len(world.batches) == 4
    for day in ("d0", "d1", "d2", "d3", "d4"):
        assert world.table(partition=day).height == ROWS
        check_answers(world.table(partition=day), rows_of(day)["prompt"].to_list())


def changed(**options: Any) -> dg.AssetsDefinition:
    """The usual asset, asking in another way."""
    return ranged(system_prompt="Answer in another way.", **options)


def test_overlapping_ranges_share_what_is_in_work(world: World) -> None:
    """Partitions that two backfills have in common would be paid for twice."""
    answers = ranged()
    ask(world, answers, "d0", "d3")
    ask(world, answers, "d2", "d5")
    assert [w.partitions for w in world.waiters] == [
        ("d0", "d1", "d2", "d3"),
        ("d2", "d3"),
        ("d4", "d5"),
    ]
    assert len(world.runs) == 2
    world.finish(answers)
    assert world.sim.ledger().executed() == 6 * ROWS
    assert world.sim.ledger().paid_twice() == []
    assert [w.state for w in world.waiters] == [WaiterState.SERVED] * 3
    counts = {day: world.materialized().count(day) for day in ("d0", "d2", "d3", "d5")}
    assert counts == {"d0": 1, "d2": 2, "d3": 2, "d5": 1}


def test_one_partition_of_a_range_in_work_can_be_joined(world: World) -> None:
    """Whoever materializes one day out of a backfill would pay for it again."""
    answers = ranged()
    ask(world, answers, "d0", "d3")
    assert world.request(answers, partition="d1").success
    assert len(world.runs) == 1
    world.finish(answers)
    assert world.sim.ledger().executed() == 4 * ROWS
    assert world.materialized().count("d1") == 2


def test_one_changed_partition_is_superseded_alone(world: World) -> None:
    """The other partitions of the range would be asked anew, or lose who waits for them."""
    ask(world, ranged(), "d0", "d3")
    assert world.request(changed(), partition="d1").success
    first, second = world.runs
    assert second.predecessor == first.run_id
    assert first.control == "run"
    waiting = {(w.run_id, w.partitions) for w in world.waiters}
    assert waiting == {(first.run_id, ("d0", "d2", "d3")), (second.run_id, ("d1",))}
    results = world.finish(changed())
    served = [r for r in results if r.dagster_run.asset_selection]
    assert all(result.success for result in served)
    assert [w.state for w in world.waiters] == [WaiterState.SERVED] * 3
    assert {day: world.materialized().count(day) for day in ("d0", "d1", "d2", "d3")} == {
        "d0": 1,
        "d1": 2,
        "d2": 1,
        "d3": 1,
    }
    assert world.sim.ledger().executed() == 5 * ROWS


def test_a_whole_range_is_superseded(world: World) -> None:
    """A changed prompt would be answered in its old and in its new form."""
    ask(world, ranged(), "d0", "d3")
    ask(world, changed(), "d0", "d3")
    first, second = world.runs
    assert (first.control, second.predecessor) == ("cancel", first.run_id)
    world.finish(changed())
    assert world.batches[0] == "cancelled"
    assert [w.run_id for w in world.waiters] == [second.run_id]
    assert sorted(map(str, world.materialized())) == ["d0", "d1", "d2", "d3"]


def test_a_delivered_range_asks_only_what_has_changed(world: World) -> None:
    """Every backfill of a whole year would pay for the whole year."""
    answers = ranged()
    ask(world, answers, "d0", "d3")
    world.finish(answers)
    ask(world, answers, "d2", "d5")
    world.finish(answers)
    assert world.sim.ledger().executed() == 6 * ROWS
    assert world.table(partition="d3")["batch_reused"].all()
    assert not world.table(partition="d5")["batch_reused"].any()


def test_partitions_that_are_gone_are_given_up(world: World) -> None:
    """One removed partition would take the others of its range down with it."""
    files = dg.DynamicPartitionsDefinition(name="files")
    names = [f"file {n}/ä" for n in range(5)]
    world.instance.add_dynamic_partitions("files", names)
    answers = ranged(partitions_def=files)
    ask(world, answers, names[0], names[4])
    world.instance.delete_dynamic_partition("files", names[2])
    results = world.finish(answers)
    served = [r for r in results if r.dagster_run.asset_selection]
    assert [r.success for r in served] == [True, True]
    assert sorted(map(str, world.materialized())) == [names[0], names[1], names[3], names[4]]
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.CANCELLED
    assert "not defined any more" in str(waiter.reason)


def test_partitions_that_go_while_they_are_served(world: World) -> None:
    """The partitions of a range that are left would be given up with the one that is gone."""
    files = dg.DynamicPartitionsDefinition(name="files")
    world.instance.add_dynamic_partitions("files", list("abc"))
    answers = ranged(partitions_def=files)
    ask(world, answers, "a", "c")
    world.drive(answers)
    (request,) = world.materialize_tick(answers)
    world.instance.delete_dynamic_partition("files", "b")
    world.finish(answers)
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.CANCELLED
    assert "'b' is not defined any more" in str(waiter.reason)
    assert request.tags[TAG_PARTITION_RANGE_END] == "c"
    assert world.materialized() == ["a", "c"]


def test_range_that_has_grown_is_refused(world: World) -> None:
    """A partition that nobody asked for would be materialized empty, or with another's rows."""
    keys = ["a", "c"]

    def asset() -> dg.AssetsDefinition:
        return ranged(partitions_def=dg.StaticPartitionsDefinition(list(keys)))

    ask(world, asset(), "a", "c")
    world.drive(asset())
    (request,) = world.materialize_tick(asset())
    keys.insert(1, "b")
    result = world.launch(request, asset())
    assert "or were defined anew" in failure(result)
    assert world.materialized() == []


@pytest.mark.filterwarnings("ignore:Non-compliant tag keys")  # Dagster's own, of dimensions
@pytest.mark.parametrize("bad", [None, "2026-01-03 in eu"])
def test_ranges_over_two_dimensions(world: World, bad: str | None) -> None:
    """Assets partitioned by day and region could not be asked for in ranges."""
    both = dg.MultiPartitionsDefinition(
        {
            "day": dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04"),
            "region": dg.StaticPartitionsDefinition(["as", "eu", "us"]),
        }
    )

    @batch_asset(model=MODEL, partitions_def=both, backfill_policy=SINGLE_RUN)
    def answers(context: dg.AssetExecutionContext) -> pl.DataFrame:
        day = context.partition_time_window.start.strftime("%Y-%m-%d")
        region = context.multi_partition_key.keys_by_dimension["region"]
        return pl.DataFrame({"prompt": [f"{day} in {region};"]})

    if bad:
        fault = {"kind": "line_error", "status": 400, "match": {"prompt": bad}}
        world.sim.faults(fault)
    result = ask(world, answers, "2026-01-02|eu", "2026-01-03|us")  # a rectangle
    assert result.success, failure(result)
    served = [r for r in world.finish(answers) if r.dagster_run.asset_selection]
    assert len(served) == (1 if bad is None else 3)
    days, regions = ("2026-01-02", "2026-01-03"), ("eu", "us")
    good = {f"{d}|{r}" for d in days for r in regions if f"{d} in {r}" != bad}
    assert set(map(str, world.materialized())) == good
    for key in good:
        table = pl.read_parquet(
            world.resources["io_manager"].path_for(["answers"], key).path, glob=False
        )
        check_answers(table, [f"{key.replace('|', ' in ')};"])


def test_a_range_that_was_cancelled_fails_as_one(world: World) -> None:
    """A cancelled backfill would show its partitions as in progress for ever."""
    answers = ranged()
    ask(world, answers, "d0", "d3")
    world.store.set_control(world.run.run_id, RunControlState.CANCEL, "by hand")
    results = world.finish(answers)
    (served,) = [r for r in results if r.dagster_run.asset_selection]
    assert "by hand" in failure(served)
    assert [w.state for w in world.waiters] == [WaiterState.FAILED]


def test_ranged_assets_can_still_be_asked_one_by_one(world: World) -> None:
    """A policy for backfills would break the button for one partition."""

    @dg.asset(partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    @batch_asset(model=MODEL, partitions_def=DAYS, backfill_policy=SINGLE_RUN)
    def answers(context: dg.AssetExecutionContext, tickets: pl.DataFrame) -> pl.DataFrame:
        assert isinstance(tickets, pl.DataFrame)
        return tickets

    world.request(tickets, partition="d5")
    result = world.request(tickets, answers, partition="d5", selection=[answers])
    assert result.success, failure(result)
    world.finish(answers, tickets)
    check_answers(world.table(partition="d5"), rows_of("d5")["prompt"].to_list())


def test_input_that_does_not_come_by_partition_is_told(world: World) -> None:
    """All partitions would be asked with the rows of all of them."""

    @dg.asset(partitions_def=DAYS)
    def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def answers(tickets: pl.DataFrame) -> pl.DataFrame:
        return tickets

    for day in ("d0", "d1"):
        world.request(tickets, partition=day)
    result = ask(world, answers, "d0", "d1", others=[tickets], selection=[answers])
    assert "give the asset a backfill_policy" in failure(result)
    assert world.batches == []


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame])
def test_several_upstream_partitions_of_each(world: World, annotation: Any) -> None:
    """A week would get the rows of one of its days, or of another week."""
    days = dg.DailyPartitionsDefinition("2026-01-04", end_date="2026-01-18")
    weeks = dg.WeeklyPartitionsDefinition("2026-01-04", end_date="2026-01-18")

    @dg.asset(partitions_def=days)
    def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key, 1)

    def read(tickets: Any) -> Any:
        return tickets

    read.__annotations__["tickets"] = annotation
    read.__name__ = "answers"
    answers = batch_asset(model=MODEL, partitions_def=weeks, backfill_policy=SINGLE_RUN)(read)
    for day in days.get_partition_keys():
        world.request(tickets, partition=day)
    result = ask(world, answers, "2026-01-04", "2026-01-11", others=[tickets], selection=[answers])
    assert result.success, failure(result)
    world.finish(answers, tickets)
    for week, first in (("2026-01-04", 0), ("2026-01-11", 7)):
        expected = [f"Judge {d} row 0;" for d in days.get_partition_keys()[first : first + 7]]
        check_answers(world.table(partition=week), expected)
