"""The op jobs that pause, resume and cancel batch runs from the UI."""

from typing import Any

import dagster as dg
import pytest

from batchor_core.model.states import RunControlState, WaiterState
from batchor_dagster import BatchorResource, batchor_definitions
from batchor_dagster.components import BatchorComponent
from batchor_dagster.constants import CANCEL_JOB, PAUSE_JOB, RESUME_JOB
from batchor_dagster.sensors.builder import build_batch_sensors
from tests.dagster.world import World, answers_asset, failure

UNAUTHORIZED = {"kind": "http_error", "status": 401, "message": "Incorrect API key provided."}
DAYS = ("d0", "d1", "d2")


@pytest.fixture
def answers() -> dg.AssetsDefinition:
    """A batch asset."""
    return answers_asset()


@pytest.mark.parametrize("setup", ["definitions", "sensors", "component"])
def test_jobs_come_with_any_setup(world: World, answers: dg.AssetsDefinition, setup: str) -> None:
    """Somebody without a shell could not stop what costs money."""
    match setup:
        case "definitions":
            defs = batchor_definitions([answers], resources=world.resources)
        case "sensors":
            defs = dg.Definitions(
                assets=[answers], sensors=build_batch_sensors(), resources=world.resources
            )
        case _:
            component = BatchorComponent(providers={})
            defs = component.build_defs(None)  # type: ignore[arg-type]  # it looks at none
    names = {job.name for job in defs.get_repository_def().get_all_jobs()}
    assert {PAUSE_JOB, RESUME_JOB, CANCEL_JOB} <= names


@pytest.mark.parametrize("job", [PAUSE_JOB, RESUME_JOB, CANCEL_JOB])
@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "nothing is selected"),
        ({"partitions": ["d0"]}, "give asset as well"),
        ({"asset": "answers", "everything": True}, "give one of them"),
        ({"asset": "other"}, "no batch run in progress in the namespace 'default'"),
        ({"batch_runs": ["run_gone"]}, "no batch run in progress"),
    ],
)
def test_selection_that_may_be_a_mistake_is_refused(
    world: World, answers: dg.AssetsDefinition, job: str, config: dict[str, Any], text: str
) -> None:
    """An empty launchpad would cancel whatever is in progress, or a typing error do nothing."""
    world.request(answers)
    assert text in failure(control(world, answers, job, **config))
    assert world.run.control is RunControlState.RUN


def test_pause_and_resume(world: World, answers: dg.AssetsDefinition) -> None:
    """A provider's bad day could only be waited out by cancelling what was paid."""
    for day in DAYS:
        world.request(answers, partition=day)
    result = control(world, answers, PAUSE_JOB, asset="answers", partitions=["d1"], reason="why")
    assert [run.control.value for run in world.runs] == ["run", "pause", "run"]
    assert world.runs[1].control_reason == "why"
    (row,) = table(result)
    assert row["batch_run"] == world.runs[1].run_id
    assert (row["asset"], row["partitions"], row["was"]) == ("answers", "d1", "running")

    world.provider_works()
    world.drive(answers)
    assert [run.state.value for run in world.runs] == ["succeeded", "running", "succeeded"]
    control(world, answers, RESUME_JOB, paused_because="WHY")
    world.finish(answers)
    assert world.materialized() == ["d0", "d2", "d1"]


def test_dry_run_lists_and_changes_nothing(world: World, answers: dg.AssetsDefinition) -> None:
    """Whoever wants to see first what would be cancelled would have cancelled it."""
    for day in DAYS:
        world.request(answers, partition=day)
    result = control(world, answers, CANCEL_JOB, everything=True, dry_run=True)
    assert [row["partitions"] for row in table(result)] == list(DAYS)
    assert {run.control.value for run in world.runs} == {"run"}
    assert world.open_waiters == 3


def test_resume_with_a_new_budget(world: World) -> None:
    """What stands still at the end of its budget could only be paid for from a shell."""
    asset = answers_asset(budget_usd=100.0)
    world.request(asset)
    world.store.set_control(world.run.run_id, RunControlState.PAUSE, "budget: it is used up")
    control(world, asset, RESUME_JOB, paused_because="budget", budget_usd=200.0)
    assert world.run.control is RunControlState.RUN
    assert world.run.budget_usd == 200.0
    refused = control(world, asset, RESUME_JOB, everything=True, budget_usd=-1.0)
    assert "more than 0" in failure(refused)


def test_cancel_ends_those_who_wait(world: World, answers: dg.AssetsDefinition) -> None:
    """A backfill would stay in progress for what nobody will ever answer."""
    for day in DAYS:
        world.request(answers, partition=day)
    run_id = world.runs[0].run_id
    control(world, answers, CANCEL_JOB, batch_runs=[run_id], reason="a wrong prompt")

    assert world.store.get_run(run_id).control is RunControlState.CANCEL
    first, *others = world.waiters
    assert (first.state, first.reason) == (WaiterState.CANCELLED, "a wrong prompt")
    assert {waiter.state for waiter in others} == {WaiterState.OPEN}
    world.finish(answers)
    assert world.batches == ["cancelled", "completed", "completed"]
    assert world.materialized() == ["d1", "d2"]


@pytest.mark.filterwarnings("ignore:Parameter `backfill_policy`")
def test_cancel_of_one_partition_leaves_its_range_alone(world: World) -> None:
    """Ninety-nine partitions that share a batch run with a wrong one would be thrown away."""
    asset = answers_asset(backfill_policy=dg.BackfillPolicy.multi_run(10))
    tags = {
        "dagster/asset_partition_range_start": "d0",
        "dagster/asset_partition_range_end": "d2",
    }
    world.request(asset, partition=None, tags=tags)
    result = control(world, asset, CANCEL_JOB, asset="answers", partitions=["d1"])
    (row,) = table(result)
    assert "holds other partitions" in row["outcome"]
    assert world.run.control is RunControlState.RUN
    control(world, asset, CANCEL_JOB, asset="answers", partitions=list(DAYS))
    assert world.run.control is RunControlState.CANCEL


def test_other_code_locations_are_left_alone(world: World, answers: dg.AssetsDefinition) -> None:
    """One team would pause another team's work on a shared store."""
    world.request(answers)
    state = str(world.folder / "state.sqlite3")
    world.resources["batchor"] = BatchorResource(state=state, namespace="theirs")
    result = control(world, answers, PAUSE_JOB, everything=True)
    assert "in the namespace 'theirs'" in failure(result)
    assert world.run.control is RunControlState.RUN


def test_what_cannot_be_done_for_one_is_done_for_the_others(
    world: World, answers: dg.AssetsDefinition
) -> None:
    """One model without a known price would keep all the others paused."""
    unpriced = answers_asset(model="somebody/fine-tuned")
    world.request(unpriced)
    world.request(answers, partition="d1")
    for run in world.runs:
        world.store.set_control(run.run_id, RunControlState.PAUSE, "by hand")
    result = control(world, answers, RESUME_JOB, everything=True, budget_usd=5.0)
    assert f"not done for {world.runs[0].run_id}" in failure(result)
    assert [run.control.value for run in world.runs] == ["pause", "run"]


def test_paused_partition_names_the_job(
    world: World, answers: dg.AssetsDefinition, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads why a partition waits would look for a shell."""
    world.sim.faults(**UNAUTHORIZED)
    world.request(answers)
    assert f"the job {RESUME_JOB}" in capfd.readouterr().err


def control(
    world: World, definition: dg.AssetsDefinition, job: str, **config: Any
) -> dg.ExecuteInProcessResult:
    """Launch one of the jobs, as from the launchpad."""
    defs = batchor_definitions([definition], resources=world.resources)
    op = job.removeprefix("batchor_")
    return defs.resolve_job_def(job).execute_in_process(
        run_config={"ops": {op: {"config": config}}},
        instance=world.instance,
        raise_on_error=False,
    )


def table(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Return what the job shows of each batch run."""
    (metadata,) = [
        event.step_output_data.metadata for event in result.all_events if event.is_successful_output
    ]
    value: Any = metadata["batchor/batch_runs"]
    assert metadata["batchor/batch_run_count"].value == len(value.records)
    return [dict(record.data) for record in value.records]
