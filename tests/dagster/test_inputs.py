"""What a batch asset's step loads of its upstream assets, and when."""

from typing import Any

import dagster as dg
import polars as pl
import pytest
from dagster import ExecuteInProcessResult

from batchor_dagster import batch_asset
from tests.dagster.world import DAYS, MODEL, ROWS, World, failure, rows_of

pytestmark = pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")


def loads(result: ExecuteInProcessResult, step: str = "answers") -> list[str]:
    """The inputs that a step has loaded."""
    return [
        event.event_specific_data.input_name  # type: ignore[union-attr]
        for event in result.all_events
        if event.event_type_value == "LOADED_INPUT" and event.step_key == step
    ]


@dg.asset(partitions_def=DAYS)
def tickets(context: dg.AssetExecutionContext) -> pl.DataFrame:
    """Rows of a day."""
    return rows_of(context.partition_key)


def answers_of(annotation: Any = pl.DataFrame, **options: Any) -> dg.AssetsDefinition:
    """A batch asset over ``tickets``."""

    def answers(tickets: annotation) -> Any:
        return tickets

    return batch_asset(**{"model": MODEL, "partitions_def": DAYS, **options})(answers)


@pytest.mark.parametrize("annotation", [pl.DataFrame, pl.LazyFrame | None, Any])
def test_a_materialize_run_needs_no_upstream_file(world: World, annotation: Any) -> None:
    """Answers that were paid for would be lost, after three attempts, with their inputs."""
    answers = answers_of(annotation)
    assert loads(world.request(tickets, answers)) == ["tickets"]
    (world.folder / "out" / "tickets" / "d0.parquet").unlink()
    (result,) = world.finish(answers, tickets)
    assert result.success, failure(result)
    assert loads(result) == []
    assert world.table().height == ROWS


def test_a_range_is_not_held_in_memory_twice(world: World) -> None:
    """A materialize run of many partitions would load all of their inputs, for nothing."""
    policy = dg.BackfillPolicy.single_run()
    answers = answers_of(backfill_policy=policy)
    for day in ("d0", "d1"):
        world.request(tickets, partition=day)
    tags = {"dagster/asset_partition_range_start": "d0", "dagster/asset_partition_range_end": "d1"}
    asked = world.request(tickets, answers, partition=None, tags=tags, selection=[answers])
    assert loads(asked) == ["tickets"]
    for day in ("d0", "d1"):
        (world.folder / "out" / "tickets" / f"{day}.parquet").unlink()
    (result,) = world.finish(answers, tickets)
    assert result.success, failure(result)
    assert loads(result) == []
    assert sorted(map(str, world.materialized())) == ["d0", "d1"]


def test_lineage_survives_the_upstream_file(world: World) -> None:
    """The columns' origin was looked up in inputs that a materialize run does not load."""
    answers = answers_of(keep={"prompt": pl.String})
    world.request(tickets, answers)
    (world.folder / "out" / "tickets" / "d0.parquet").unlink()
    world.finish(answers, tickets)
    (record,) = world.instance.fetch_materializations(dg.AssetKey("answers"), limit=1).records
    assert record.asset_materialization is not None
    lineage = record.asset_materialization.metadata["dagster/column_lineage"].value
    origin = dg.TableColumnDep(dg.AssetKey("tickets"), "prompt")
    assert lineage == dg.TableColumnLineage({"prompt": [origin]})


def test_what_is_asked_in_a_materialize_run_is_loaded(world: World) -> None:
    """A batch asset over another one's answers is a request there, and would get no rows."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def second(answers: pl.DataFrame) -> pl.DataFrame:
        return answers.select(prompt="output_text")

    answers = answers_of()
    world.request(tickets, answers, second)
    results = world.finish(answers, second, tickets)
    assert all(result.success for result in results)
    assert [loads(result, "second") for result in results] == [["answers"], []]
    assert world.table("second").height == ROWS


def test_a_verdict_executed_again_asks_with_its_rows(world: World) -> None:
    """Executing a failed partition again is a request, and would have no rows to ask."""
    answers = answers_of()
    world.sim.faults(kind="line_error", status=400, message="Simulated refusal.")
    world.request(tickets, answers)
    (refused,) = [result for result in world.finish(answers, tickets) if not result.success]
    world.sim.clear_faults()
    asked = world.execute_again(refused, answers, tickets)
    assert (asked.success, loads(asked)) == (True, ["tickets"])
    world.finish(answers, tickets)
    assert world.materialized() == ["d0"]


def test_a_broken_disk_executed_again_needs_no_upstream_file(world: World) -> None:
    """A materialize run that is executed again would need its inputs after all."""
    answers = answers_of()
    world.request(tickets, answers)
    world.drive(answers, tickets)
    (world.folder / "out" / "tickets" / "d0.parquet").unlink()
    (world.folder / "out" / "answers").write_text("in the way")
    (request,) = world.materialize_tick(answers, tickets)
    broken = world.launch(request, answers, tickets)
    assert not broken.success
    (world.folder / "out" / "answers").unlink()
    stored = world.execute_again(broken, answers, tickets)
    assert stored.success, failure(stored)
    assert (loads(stored), world.materialized()) == ([], ["d0"])


class Told(dg.IOManager):
    """An old-fashioned IO manager that notes what Dagster tells it of an input."""

    def __init__(self, notes: list[dict[str, Any]]) -> None:
        self._notes = notes

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Store nothing."""

    def load_input(self, context: dg.InputContext) -> pl.DataFrame:
        """Return rows, and note whatever could tell inputs apart."""
        upstream = context.upstream_output
        assert upstream is not None
        self._notes.append(
            {
                "name": context.name,
                "asset": context.asset_key,
                "partitions": context.has_asset_partitions and context.asset_partition_keys,
                "partition": context.has_partition_key and context.partition_key,
                "type": context.dagster_type.typing_type,
                "type name": context.dagster_type.display_name,
                "metadata": context.definition_metadata,
                "config": context.resource_config,
                "resource": context.resources.disk,
                "upstream step": upstream.step_key,
                "upstream metadata": upstream.definition_metadata,
                "upstream config": upstream.resource_config,
            }
        )
        return rows_of("d0")


@pytest.mark.parametrize("in_one_run", [True, False])
@pytest.mark.parametrize("own_manager", [True, False])
def test_inputs_are_loaded_as_those_of_any_asset(
    world: World, *, in_one_run: bool, own_manager: bool
) -> None:
    """An IO manager would be told something else of a batch asset than of a plain one."""
    notes: list[dict[str, Any]] = []

    @dg.io_manager(required_resource_keys={"disk"}, config_schema={"folder": str})
    def told(_context: dg.InitResourceContext) -> Told:
        return Told(notes)

    @dg.asset(partitions_def=DAYS, io_manager_key="told", metadata={"of": "upstream"})
    def source() -> pl.DataFrame:
        return rows_of("d0")

    def read(rows: pl.DataFrame) -> pl.DataFrame:
        return rows

    given = dg.AssetIn(
        "source",
        metadata={"of": "the input"},
        input_manager_key="mine" if own_manager else None,
        partition_mapping=dg.SpecificPartitionsPartitionMapping(["d1", "d2"]),
    )
    plain = dg.asset(name="plain", partitions_def=DAYS, ins={"rows": given})(read)
    batch = batch_asset(model=MODEL, name="batch", partitions_def=DAYS, ins={"rows": given})(read)
    for key in ("told", "mine"):
        world.resources[key] = told.configured({"folder": key})
    world.resources["disk"] = dg.ResourceDefinition.hardcoded_resource("a disk")

    for asset in (plain, batch):
        selection = [source, asset] if in_one_run else [asset]
        assert world.request(source, asset, selection=selection).success
    expected, found = notes
    assert found == expected
    assert found["config"] == {"folder": "mine" if own_manager else "told"}
