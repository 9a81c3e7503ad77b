"""What can be said of one Dagster run of a batch asset."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster import BatchRunConfig, batch_asset
from batchor_dagster.constants import (
    META_ESTIMATED_COST_USD,
    META_ESTIMATED_INPUT_TOKENS,
    META_ESTIMATED_ROWS,
    TAG_BACKFILL,
)
from tests.dagster.world import (
    DAYS,
    MODEL,
    ROWS,
    Verdict,
    World,
    answers_asset,
    events,
    failure,
    rows_of,
    while_waiting,
)


def config(asset: str = "answers", **values: Any) -> dict[str, Any]:
    """A run's configuration, as the launchpad sends it."""
    return {"ops": {asset: {"config": values}}}


def materialize(world: World, asset: Any, **values: Any) -> None:
    """Ask for the partition and let everything happen."""
    result = world.request(asset, run_config=config(**values))
    assert result.success, failure(result)
    world.finish(asset)


def fail_row(world: World, number: int, times: int = 1) -> None:
    """Let the provider refuse a row for good."""
    world.sim.faults({"kind": "line_error", "status": 400, "match": {"prompt": f"row {number};"}})


def test_dry_run_tells_the_cost_and_sends_nothing(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever wants to know the cost first would have to pay it."""
    answers = answers_asset()
    result = world.request(answers, run_config=config(dry_run=True))
    assert result.success, failure(result)
    assert events(result) == ["ASSET_OBSERVATION"]
    (told,) = world.observations()
    assert told[META_ESTIMATED_ROWS] == ROWS
    assert told[META_ESTIMATED_INPUT_TOKENS] > 0
    assert told[META_ESTIMATED_COST_USD] > 0
    assert (world.batches, world.runs, world.waiters) == ([], [], [])
    assert f"{ROWS} rows in 1 provider batch(es) for about $0." in capfd.readouterr().err
    assert list((world.folder / "artifacts" / "runs").glob("*")) == []


def test_dry_run_of_a_backfill_warns(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A backfill would fail, and nobody would know why."""
    tags = {TAG_BACKFILL: "some-backfill"}
    result = world.request(answers_asset(), tags=tags, run_config=config(dry_run=True))
    assert result.success
    assert "mark its backfill as failed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("refresh", "asked_again"),
    [("changed", 2), ("failed", 1), ("all", ROWS)],
)
def test_what_is_asked_again(world: World, refresh: str, asked_again: int) -> None:
    """Mending one row would pay for all, or a new prompt would never be asked."""
    prompts = [f"Judge row {n};" for n in range(ROWS)]

    def asset() -> dg.AssetsDefinition:
        @batch_asset(
            model=MODEL, output=Verdict, partitions_def=DAYS, id_column="id", max_failure_rate=0.5
        )
        def answers() -> pl.DataFrame:
            return pl.DataFrame({"prompt": prompts, "id": [f"row {n}" for n in range(ROWS)]})

        return answers

    fail_row(world, 2)
    materialize(world, asset())
    assert world.table()["batch_status"].to_list() == ["ok", "ok", "failed"]
    world.sim.clear_faults()
    before = world.sim.ledger().executed()
    prompts[0] = "Judge the first row in another way;"
    materialize(world, asset(), refresh=refresh)
    assert world.table()["batch_status"].to_list() == ["ok"] * ROWS
    assert world.sim.ledger().executed() - before == asked_again


def test_kept_answers_do_not_pass_for_answers_to_the_new_prompt(world: World) -> None:
    """After mending failed rows, a changed prompt would never be asked of the others."""
    prompt = ["Judge {}"]

    def asset() -> dg.AssetsDefinition:
        @batch_asset(model=MODEL, output=Verdict, partitions_def=DAYS, id_column="id")
        def answers() -> pl.DataFrame:
            ids = [f"row {n}" for n in range(ROWS)]
            return pl.DataFrame({"prompt": [prompt[0].format(i) for i in ids], "id": ids})

        return answers

    materialize(world, asset())
    prompt[0] = "Judge {} in another way"
    materialize(world, asset(), refresh="failed")
    assert world.sim.ledger().executed() == ROWS
    materialize(world, asset())
    assert world.sim.ledger().executed() == 2 * ROWS


def test_failed_rows_cannot_be_told_by_their_numbers(world: World) -> None:
    """A row would be given another row's answer once the input has changed."""
    result = world.request(answers_asset(), run_config=config(refresh="failed"))
    assert "give the asset an id_column" in failure(result)
    assert world.batches == []


def test_waiting_can_be_asked_for(world: World) -> None:
    """An asset would have to be declared anew for whoever has no daemon."""
    answers = answers_asset()
    with while_waiting(world, world.provider_works):
        result = world.request(answers, run_config=config(wait=True))
    assert "ASSET_MATERIALIZATION" in events(result), failure(result)
    assert [waiter.state for waiter in world.waiters] == [WaiterState.SERVED]


def test_not_waiting_can_be_asked_for(world: World) -> None:
    """A backfill of an asset that waits would hold a worker for each partition."""
    answers = answers_asset(wait=True)
    result = world.request(answers, run_config=config(wait=False))
    assert events(result) == ["ASSET_OBSERVATION"]
    world.finish(answers)
    assert world.materialized() == ["d0"]


class OwnConfig(BatchRunConfig):
    """A user's configuration beside ours."""

    tone: str = "kind"


def test_own_config_inherits_ours(world: World) -> None:
    """Users with a configuration of their own would lose ours, or theirs."""

    @batch_asset(model=MODEL, output=Verdict, partitions_def=DAYS)
    def answers(context: dg.AssetExecutionContext, config: OwnConfig) -> pl.DataFrame:
        rows = rows_of(context.partition_key)
        return rows.with_columns(prompt=pl.format("{} Be {}.", "prompt", pl.lit(config.tone)))

    assert world.request(answers, run_config=config(tone="stern", dry_run=True)).success
    assert world.batches == []
    materialize(world, answers, tone="stern")
    assert world.materialized() == ["d0"]


class ForeignConfig(dg.Config):
    """A user's configuration that knows nothing of ours."""

    rows: int = 1


def test_foreign_config_is_left_alone(world: World) -> None:
    """An asset with a configuration of its own could not be materialized."""

    @batch_asset(model=MODEL, output=Verdict, partitions_def=DAYS)
    def answers(context: dg.AssetExecutionContext, config: ForeignConfig) -> pl.DataFrame:
        return rows_of(context.partition_key, config.rows)

    materialize(world, answers, rows=2)
    assert world.table().height == 2


def test_wrong_values_are_refused_by_the_launchpad(world: World) -> None:
    """A misspelt wish would be found out after the rows were paid for."""
    with pytest.raises(dg.DagsterInvalidConfigError, match="refresh"):
        world.request(answers_asset(), run_config=config(refresh="everything"))
