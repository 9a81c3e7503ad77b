"""What a request asked for is done as it was asked, against the code location as it is by then."""

from typing import Any

import dagster as dg
import polars as pl
import pytest

from batchor_core.model.states import WaiterState
from batchor_dagster import batch_asset, build_batch_sensors
from batchor_dagster.constants import TAG_BACKFILL
from batchor_dagster.waiting.sensor_status import MATERIALIZE_SENSOR
from tests.dagster.world import DAYS, MODEL, World, answers_asset, rows_of

OTHER_DAYS = dg.StaticPartitionsDefinition(["x", "y"])


def small_asset() -> dg.AssetsDefinition:
    """Another batch asset, beside those that change."""

    @batch_asset(model=MODEL, partitions_def=DAYS)
    def small(context: dg.AssetExecutionContext) -> pl.DataFrame:
        return rows_of(context.partition_key)

    return small


def report_asset(**options: Any) -> dg.AssetsDefinition:
    """What is downstream of ``answers``."""

    @dg.asset(**{"deps": ["answers"], "partitions_def": DAYS, **options})
    def report() -> None: ...

    return report


CHANGES = {
    "deleted": [],
    "renamed": [report_asset(key=["new", "report"])],
    "detached": [report_asset(deps=[])],
    "repartitioned": [report_asset(deps=[], partitions_def=OTHER_DAYS)],
    "unpartitioned": [report_asset(deps=[], partitions_def=None)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_stale_selection_stops_nobody(world: World, change: str) -> None:
    """A deployment would stop every materialization of the code location, for ever."""
    answers, small = answers_asset(), small_asset()
    before = world.definitions(answers, report_asset())
    world.launch_job(before, asset_selection=[answers.key, report_asset().key])
    world.request(small)
    after = world.definitions(answers, small, *CHANGES[change])
    assert all(result.success for result in world.finish(after))

    assert [w.state for w in world.waiters] == [WaiterState.SERVED] * 2
    assert (world.materialized(), world.materialized("small")) == (["d0"], ["d0"])
    if change in ("deleted", "renamed", "repartitioned"):
        told = [seen.get("batchor/progress_status") for seen in world.observations()]
        assert any("'report'" in str(text) for text in told)


def test_descendant_that_has_other_partitions_is_named(world: World) -> None:
    """Dagster would refuse a run of two kinds of partitions, and everything else with it."""
    answers = answers_asset()
    before = world.definitions(answers, report_asset())
    world.launch_job(before, asset_selection=[answers.key, report_asset().key])
    after = world.definitions(answers, report_asset(deps=[], partitions_def=OTHER_DAYS))
    world.finish(after)
    (waiter,) = world.waiters
    assert waiter.state is WaiterState.SERVED
    assert "'report' has other partitions" in str(waiter.reason)


class Threshold(dg.Config):
    """Configuration of a descendant, with a default that is never meant."""

    threshold: float = 0.1


class Needed(dg.Config):
    """Configuration that cannot be left out."""

    threshold: float


def configured(config: type[dg.Config], seen: list[float]) -> dg.AssetsDefinition:
    """A descendant that notes what it was configured with."""

    def report(config: Any) -> None:
        seen.append(config.threshold)

    report.__annotations__["config"] = config
    return dg.asset(deps=["answers"], partitions_def=DAYS)(report)


@pytest.mark.parametrize("config", [Threshold, Needed])
def test_run_configuration_is_passed_on(world: World, config: type[dg.Config]) -> None:
    """A descendant would run with its defaults, or be refused with everything else."""
    seen: list[float] = []
    answers, report = answers_asset(), configured(config, seen)
    definitions = world.definitions(answers, report)
    world.launch_job(
        definitions,
        asset_selection=[answers.key, report.key],
        run_config={"ops": {"report": {"config": {"threshold": 0.9}}}},
        tags={"team": "ours", "dagster/priority": "7", TAG_BACKFILL: "b"},
    )
    world.drive(definitions)
    (request,) = world.materialize_tick(definitions)
    assert (request.tags["team"], request.tags["dagster/priority"]) == ("ours", "7")
    assert world.launch(request, definitions).success
    assert seen == [0.9]


def test_configuration_that_does_not_fit_any_more(world: World) -> None:
    """One that cannot run any more would hold up what was paid for, or run with defaults."""
    seen: list[float] = []
    answers, report = answers_asset(), configured(Threshold, seen)
    world.launch_job(
        world.definitions(answers, report),
        asset_selection=[answers.key, report.key],
        run_config={"ops": {"report": {"config": {"threshold": 0.9}}}},
    )

    class Renamed(dg.Config):
        limit: float

    after = world.definitions(answers, configured(Renamed, seen), small_asset())
    world.request(small_asset())
    world.finish(after)
    assert (world.materialized(), world.materialized("small"), seen) == (["d0"], ["d0"], [])
    assert "Dagster refuses a run of 'report'" in str(world.waiters[0].reason)


def test_refusal_quotes_no_configuration(world: World) -> None:
    """A key that somebody has typed into the launchpad would be stored with us."""
    seen: list[float] = []
    answers, report = answers_asset(), configured(Threshold, seen)

    class Text(dg.Config):
        threshold: str

    world.launch_job(
        world.definitions(answers, configured(Text, seen)),
        asset_selection=[answers.key, report.key],
        run_config={"ops": {"report": {"config": {"threshold": "sk-secret"}}}},
    )
    world.finish(world.definitions(answers, report))
    assert "'ops.report.config.threshold' does not fit" in str(world.waiters[0].reason)
    assert "sk-secret" not in str(world.waiters[0].reason)


def test_what_cannot_be_launched_ends_alone(world: World) -> None:
    """One waiter that Dagster refuses would spoil every tick for all others."""
    answers, small = answers_asset(), small_asset()
    world.request(answers)
    world.request(small)

    class Own(dg.Config):
        needed: int

    @batch_asset(model=MODEL, partitions_def=DAYS, name="answers")
    def changed(context: dg.AssetExecutionContext, config: Own) -> pl.DataFrame:
        return rows_of(context.partition_key, config.needed)

    after = world.definitions(changed, small)
    world.drive(after)
    data = world.tick(MATERIALIZE_SENSOR, [after])
    first, second = world.waiters
    assert first.state is WaiterState.FAILED
    assert "'answers'" in str(first.reason)
    assert [request.tags["batchor/asset"] for request in data.run_requests] == ["small"]
    assert second.state is WaiterState.OPEN
    failed = [e for e in data.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    assert [(e.check_name, e.partition, e.passed) for e in failed] == [
        ("rows_answered", "d0", False)
    ]


def test_materialize_run_is_of_the_job_that_asked(world: World) -> None:
    """Hooks, executor, tags and the longest runtime of a job would be lost on the way."""
    fired: list[str] = []

    @dg.success_hook
    def told(context: dg.HookContext) -> None:
        fired.append(context.run_id)

    answers, report = answers_asset(), report_asset()
    job = dg.define_asset_job(
        "nightly", selection=[answers, report], hooks={told}, tags={"dagster/max_runtime": "60"}
    )
    definitions = dg.Definitions(
        assets=[answers, report, small_asset()],
        jobs=[job],
        sensors=build_batch_sensors(jobs=[job]),
        resources=world.resources,
    )
    world.launch_job(definitions, "nightly")
    world.drive(definitions)
    (request,) = world.materialize_tick(definitions)
    assert request.job_name == "nightly"
    assert request.tags["dagster/max_runtime"] == "60"
    result = world.launch(request, definitions)
    assert result.success
    assert fired.count(result.run_id) == 2


def test_job_that_is_gone_is_done_without(world: World) -> None:
    """What a deleted job has asked for would never be materialized."""
    answers = answers_asset()
    job = dg.define_asset_job("nightly", selection=[answers])
    before = dg.Definitions(
        assets=[answers],
        jobs=[job],
        sensors=build_batch_sensors(jobs=[job]),
        resources=world.resources,
    )
    world.launch_job(before, "nightly")
    world.finish(answers)
    assert world.materialized() == ["d0"]


def test_resources_configured_at_launch(world: World) -> None:
    """The answers would be stored with an IO manager's defaults, or not at all."""
    stored: list[str] = []

    class Manager(dg.ConfigurableIOManager):
        base_path: str

        def handle_output(self, context: dg.OutputContext, obj: object) -> None:
            stored.append(self.base_path)

        def load_input(self, context: dg.InputContext) -> None: ...

    world.resources["io_manager"] = Manager.configure_at_launch()
    definitions = world.definitions(answers_asset())
    world.launch_job(
        definitions, run_config={"resources": {"io_manager": {"config": {"base_path": "here"}}}}
    )
    world.finish(definitions)
    assert stored == ["here"]


def test_configuration_of_upstream_assets(world: World) -> None:
    """Configuration of what the materialize run has not selected would have it refused."""
    ran: list[float] = []

    @dg.asset(partitions_def=DAYS)
    def up(config: Threshold) -> None: ...

    @dg.asset(partitions_def=DAYS, deps=["answers"])
    def report(config: Threshold) -> None:
        ran.append(config.threshold)

    answers = answers_asset(deps=["up"])
    definitions = world.definitions(up, answers, report)
    world.launch_job(
        definitions,
        asset_selection=[up.key, answers.key, report.key],
        run_config={
            "ops": {
                "up": {"config": {"threshold": 0.5}},
                "report": {"config": {"threshold": 0.9}},
            },
            "loggers": {"console": {"config": {"log_level": "DEBUG"}}},
            "execution": {"config": {"in_process": {}}},
        },
    )
    world.finish(definitions)
    assert ran == [0.9]


def test_job_that_is_configured(world: World) -> None:
    """A job that is configured as a whole would be refused for a part of its assets."""
    ran: list[float] = []

    @dg.asset(partitions_def=DAYS)
    def up(config: Threshold) -> None: ...

    @dg.asset(partitions_def=DAYS, deps=["answers"])
    def report(config: Threshold) -> None:
        ran.append(config.threshold)

    answers = answers_asset(deps=["up"])
    job = dg.define_asset_job(
        "nightly",
        selection=[up, answers, report],
        config={
            "ops": {
                "up": {"config": {"threshold": 0.5}},
                "report": {"config": {"threshold": 0.9}},
            }
        },
    )
    definitions = dg.Definitions(
        assets=[up, answers, report],
        jobs=[job],
        sensors=build_batch_sensors(jobs=[job]),
        resources=world.resources,
    )
    world.launch_job(definitions, "nightly")
    world.finish(definitions)
    assert ran == [0.9]


def test_configuration_of_a_graph(world: World) -> None:
    """The nested configuration of a graph would be lost."""
    ran: list[float] = []

    @dg.op(config_schema={"threshold": float})
    def inner(context: dg.OpExecutionContext, answers: pl.DataFrame) -> pl.DataFrame:
        ran.append(context.op_config["threshold"])
        return pl.DataFrame({"label": ["good"]})

    @dg.graph_asset(partitions_def=DAYS)
    def report(answers: Any) -> Any:
        return inner(answers)

    answers = answers_asset()
    definitions = world.definitions(answers, report)
    world.launch_job(
        definitions,
        asset_selection=[answers.key, report.key],
        run_config={"ops": {"report": {"ops": {"inner": {"config": {"threshold": 0.9}}}}}},
    )
    world.finish(definitions)
    assert ran == [0.9]


def test_descendant_that_goes_between_two_attempts(world: World) -> None:
    """A partition that is materialized would be shown as one that never will be."""
    answers = answers_asset()

    @dg.asset(deps=["answers"], partitions_def=DAYS)
    def report() -> None:
        raise RuntimeError("once")

    before = world.definitions(answers, report)
    world.launch_job(before, asset_selection=[answers.key, report.key])
    world.drive(before)
    (request,) = world.materialize_tick(before)
    world.launch(request, before)
    data = world.tick(MATERIALIZE_SENSOR, [answers])
    assert world.materialized() == ["d0"]
    assert [e for e in data.asset_events if isinstance(e, dg.AssetCheckEvaluation)] == []
    assert [w.state for w in world.waiters] == [WaiterState.SERVED]
